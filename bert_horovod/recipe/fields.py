"""Sections of settings: dataclasses with limits for their fields; they are read from tables and checked."""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable
from typing import Any

from bert_horovod.errors import UserError
from bert_horovod.storage.reading import shown
from bert_horovod.wording import did_you_mean

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

_MOST_DOTS = 1000  # in a line of TOML
_MOST = 1 << 40  # limit of whole numbers whose field has none: large enough for any count; products stay exact
_KIND_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "a table",
}


def setting(
    default: Any,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    choices: tuple | None = None,
) -> Any:
    """A field of a recipe section with the limits of its value."""
    limits = {"minimum": minimum, "above": above, "maximum": maximum, "below": below, "choices": choices}
    return dataclasses.field(
        default=default, metadata={key: value for key, value in limits.items() if value is not None}
    )


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text; raises ValueError (TOMLDecodeError is a subclass) if the text is not valid."""
    if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):  # the parser would take minutes
        raise ValueError(f"a line has more than {_MOST_DOTS:,} dots")
    try:
        return tomllib.loads(text)
    except (RecursionError, MemoryError) as error:
        raise ValueError("it is nested too deeply") from error


def refuse_unknown(table: dict[str, Any], known: Iterable[str], prefix: str) -> None:
    """Raise UserError for the first key of the table that is not known."""
    for key in table:
        if key not in known:
            question = did_you_mean(key, known)
            raise UserError(f"unknown key {prefix}{key[:200]}; {question}known are: {', '.join(sorted(known))}")


def section_from_table(kind: type, table: dict[str, Any], name: str) -> Any:
    """A section (dataclass `kind`) from its table; raises UserError that names key, value and allowed values."""
    fields = {entry.name: entry for entry in dataclasses.fields(kind)}
    refuse_unknown(table, fields, f"{name}.")
    hints = typing.get_type_hints(kind)
    return kind(
        **{key: _checked(f"{name}.{key}", value, hints[key], fields[key].metadata) for key, value in table.items()}
    )


def _checked(name: str, value: Any, kind: type, limits: types.MappingProxyType) -> Any:
    if kind == tuple[int, ...]:
        wrong = [item for item in value if type(item) is not int] if type(value) is list else [value]
        if wrong:
            found = _KIND_NAMES.get(type(wrong[0]), type(wrong[0]).__name__)
            raise UserError(f"{name} = {shown(value)}: expected a list of whole numbers, found {found}")
        return tuple(_checked(name, item, int, limits) for item in value)
    words = [word for part in typing.get_args(kind) for word in typing.get_args(part)]  # as in int | Literal["auto"]
    if words:
        if isinstance(value, str) and value in words:
            return value
        kind = typing.get_args(kind)[0]
        if type(value) not in (int, kind):
            raise UserError(
                f"{name} = {shown(value)}: expected {_KIND_NAMES[kind]} or {' or '.join(map(repr, words))}, "
                f"found {_KIND_NAMES.get(type(value), type(value).__name__)}"
            )
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 1 << 1023 else math.inf
    if type(value) is not kind:
        raise UserError(
            f"{name} = {shown(value)}: expected {_KIND_NAMES[kind]}, "
            f"found {_KIND_NAMES.get(type(value), type(value).__name__)}"
        )
    if kind is int:
        limits = {"minimum": -_MOST, "maximum": _MOST} | dict(limits) if abs(value) > _MOST else limits
    tests = {
        "choices": (lambda limit: value in limit, lambda limit: "one of " + ", ".join(limit)),
        "minimum": (lambda limit: value >= limit, lambda limit: f"at least {limit}"),
        "above": (lambda limit: value > limit, lambda limit: f"more than {limit}"),
        "maximum": (lambda limit: value <= limit, lambda limit: f"at most {limit}"),
        "below": (lambda limit: value < limit, lambda limit: f"less than {limit}"),
    }
    finite = kind is not float or abs(value) < float("inf")
    if not finite or not all(tests[key][0](limit) for key, limit in limits.items()):
        allowed = " and ".join(tests[key][1](limit) for key, limit in limits.items()) or "a finite number"
        raise UserError(f"{name} = {shown(value)}: expected {allowed}")
    return value
