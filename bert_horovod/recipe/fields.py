"""Sections of settings: dataclasses with limits for their fields; they are read from tables and checked."""

import dataclasses
import errno
import math
import operator
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bert_horovod.errors import UserError, file_error
from bert_horovod.storage.reading import read_text, shown
from bert_horovod.wording import did_you_mean

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

_LIMIT_BYTES = 1 << 20  # of a TOML file
_MOST_DOTS = 1000  # in a line of TOML
_MOST = 1 << 40  # limit of whole numbers whose field has none: large enough for any count; products stay exact
_MOST_PROBLEMS = 10  # in one message
_KIND_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "a table",
}
NUMBERS = "a table of names and numbers"
_LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (operator.ge, "at least"),
    "above": (operator.gt, "more than"),
    "maximum": (operator.le, "at most"),
    "below": (operator.lt, "less than"),
    "choices": (lambda value, choices: value in choices, "one of"),
}


class ReadIf(NamedTuple):
    """When a setting changes anything; elsewhere a value other than its default is refused (recipe/checking.py)."""

    words: str  # the settings with which it does, for messages and docs/recipe.md
    # Of the recipe; for a setting of a phase, of the recipe with this phase alone. None: it always does
    holds: Callable[[Any], bool] | None = None
    tasks: tuple[str, ...] = ()  # the tasks that read it (recipe/checking.py); (): all


def setting(
    default: Any,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    choices: tuple | None = None,
    read_if: ReadIf | None = None,
) -> Any:
    """A field of a recipe section with the limits of its value, and the condition under which it is read."""
    limits = {"minimum": minimum, "above": above, "maximum": maximum, "below": below, "choices": choices}
    metadata = limits | {"read_if": read_if}
    return dataclasses.field(
        default=default, metadata={key: value for key, value in metadata.items() if value is not None}
    )


def named(name: str, read_if: ReadIf | None = None, usual: str = "") -> Any:
    """The field of a section that names its dataclass: the setting by which OneOf chooses.

    `read_if`: when this choice changes anything; `usual`: the one that is expected elsewhere.
    """
    metadata = {"read_if": read_if, "usual": usual} if read_if else None
    return dataclasses.field(default=name, init=False, metadata=metadata)


def fixed(value: Any) -> Any:
    """A field that is a setting in another dataclass of its section, and has one value in this one."""
    return dataclasses.field(default=value, init=False)


@dataclasses.dataclass(frozen=True)
class OneOf:
    """A section whose other settings depend on one of them, a `named` field."""

    key: str  # that setting
    kinds: Mapping[str, type]  # the dataclasses by its values; the first is the default


class Numbers(tuple):
    """The value of a setting that is a table of names and numbers, none below 0: its pairs, sorted."""

    KEY = re.compile("[a-z][a-z0-9_-]*")  # what a name must be

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name} = {number}' for name, number in self)}}}"  # as TOML writes it


class NumbersTable(dict):
    """Numbers in a table of settings: written as a table, and one value, which `flat` does not take apart."""

    def __repr__(self) -> str:
        return repr(Numbers(self.items()))


class Removed(NamedTuple):
    """A setting that there was once. Files of earlier runs list it with its default, which is then passed over."""

    default: Any
    instead: str  # what to do in its place, for people: "expected ..."


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text; raises ValueError (TOMLDecodeError is a subclass) if the text is not valid."""
    if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):  # the parser would take minutes
        raise ValueError(f"a line has more than {_MOST_DOTS:,} dots")
    try:
        return tomllib.loads(text)
    except (RecursionError, MemoryError) as error:
        raise ValueError("it is nested too deeply") from error


def read_toml(path: str | Path, name: str, if_missing: str = "") -> dict[str, Any]:
    """The table of a TOML file; raises ReportedError, in which `name` stands before the path.

    `if_missing` is added to the message if there is no such file.
    """
    try:
        return parse_toml(read_text(path, limit_bytes=_LIMIT_BYTES).removeprefix("\ufeff"))
    except OSError as error:
        hint = if_missing if error.errno == errno.ENOENT else ""
        raise file_error(error, f"cannot read {name} {path}: {error.strerror}{hint}") from error
    except ValueError as error:
        raise UserError(f"{name} {path} is not valid TOML: {error}") from error


def flat_table(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables and lists of tables as one, by names with points.

    >>> flat_table({"model": {"hidden_size": 8}, "phase": [{"steps": 2}]})
    {'model.hidden_size': 8, 'phase.0.steps': 2}
    """
    entries: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            value = {str(number): item for number, item in enumerate(value)}
        inner = isinstance(value, dict) and not isinstance(value, NumbersTable)
        entries |= flat_table(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return entries


def sections_from_table(
    kinds: dict[str, Any], table: dict[str, Any], removed: Mapping[str, Mapping[str, Removed]] = MappingProxyType({})
) -> dict[str, Any]:
    """The sections of a table, which may lack some, by name.

    `kinds`: the dataclass of each section, or OneOf; [dataclass] for one or more tables [[name]], which become a tuple;
    `removed`: settings that there are no longer, by section and key. Raises UserError, which lists every wrong key with
    its value and what is allowed.
    """
    problems, sections = _unknown_keys(table, kinds, ""), {}
    for name in [name for name in table if name in kinds]:
        try:
            kind, value = kinds[name], table[name]
            gone = removed.get(name, {})
            if not isinstance(kind, list):
                sections[name] = section_from_table(kind, value, name, gone)
                continue
            if not isinstance(value, list) or not value or not all(isinstance(entry, dict) for entry in value):
                raise UserError(f"{name}: expected one or more [[{name}]] tables")
            (kind,) = kind
            sections[name] = tuple(
                section_from_table(kind, entry, f"{name}.{i}", gone) for i, entry in enumerate(value)
            )
        except UserError as error:
            problems.append(str(error))
    _refuse(problems)
    return sections


def section_from_table(kind: Any, table: Any, name: str, removed: Mapping[str, Removed] = MappingProxyType({})) -> Any:
    """A section, a dataclass or OneOf, from its table as TOML has it; raises UserError as sections_from_table."""
    if not isinstance(table, dict):
        raise UserError(f"{name} = {shown(table)}: expected a table [{name}]")
    problems: list[str] = []
    others: dict[str, _Other] = {}
    values = {}
    if isinstance(kind, OneOf):
        kind, table, others = _chosen(kind, table, name)
    fields = {entry.name: entry for entry in dataclasses.fields(kind) if entry.init}
    for key, value in table.items():
        if key in fields:
            continue
        if key in others:
            if not any(_same(value, default) for default in others[key].defaults):
                problems.append(f"{name}.{key} = {shown(value)}: {others[key].expected}")
        elif key not in removed:
            problems += _unknown_keys({key: value}, fields, f"{name}.")
        elif not _same(value, removed[key].default):
            instead = removed[key].instead
            problems.append(f"{name}.{key} = {shown(value)}: there is no such setting any more; {instead}")
    hints = typing.get_type_hints(kind)
    for key in [key for key in table if key in fields]:
        try:
            values[key] = _checked(table[key], hints[key], fields[key].metadata)
        except ValueError as error:
            problems.append(f"{name}.{key} = {shown(table[key])}: expected {error}")
    _refuse(problems)
    return kind(**values)


class _Other(NamedTuple):
    """A setting that the chosen dataclass of a OneOf lacks, and others have."""

    defaults: list[Any]
    expected: str


def _chosen(one_of: OneOf, table: dict[str, Any], name: str) -> tuple[type, dict[str, Any], dict[str, _Other]]:
    """The dataclass that the table chooses, the table without this choice, and settings of other dataclasses."""
    chosen = table.get(one_of.key, next(iter(one_of.kinds)))
    if is_name := isinstance(chosen, str):
        one_of.kinds.get(chosen)  # a method of another package is read when it is asked for
    try:
        _checked(chosen, str, {"choices": tuple(one_of.kinds)})
    except ValueError as error:
        hint = getattr(one_of.kinds, "hint", str)() if is_name else ""
        raise UserError(f"{name}.{one_of.key} = {shown(chosen)}: expected {error}{hint}") from error
    defaults: dict[str, dict[str, Any]] = {}
    kinds_with: dict[str, list[str]] = {}  # the kinds where a setting is free
    for kind_name, kind in one_of.kinds.items():
        for entry in dataclasses.fields(kind):
            defaults.setdefault(entry.name, {})[kind_name] = entry.default
            kinds_with.setdefault(entry.name, []).extend([kind_name] if entry.init else [])
    others = {}
    for key, by_kind in defaults.items():
        values = [value for i, value in enumerate(by_kind.values()) if value not in list(by_kind.values())[:i]]
        others[key] = _Other(
            values,
            f"{name}.{one_of.key} = {chosen!r} has no such setting; expected {' or '.join(map(str, values))}, which is "
            f"its default, or {name}.{one_of.key} = {' or '.join(kinds_with[key])}",
        )
    return one_of.kinds[chosen], {key: value for key, value in table.items() if key != one_of.key}, others


def _same(value: Any, default: Any) -> bool:
    """Whether a value of a table is a default, as the file of an earlier run has it."""
    return isinstance(value, bool) == isinstance(default, bool) and value == default


def _unknown_keys(table: dict[str, Any], known: Iterable[str], prefix: str) -> list[str]:
    return [
        f"unknown key {prefix}{key[:200]}; {did_you_mean(key, known)}known are: {', '.join(sorted(known))}"
        for key in table
        if key not in known
    ]


def _refuse(problems: list[str]) -> None:
    if problems:
        raise UserError("; ".join(problems[:_MOST_PROBLEMS]))


def _checked(value: Any, kind: Any, limits: Mapping[str, Any]) -> Any:
    """The value as the setting has it; raises ValueError, which says what was expected."""
    if typing.get_origin(kind) is tuple:
        if type(value) is not list or any(type(item) is not str for item in value):
            raise ValueError("a list of strings")
        return tuple(_checked(item, str, limits) for item in value)
    words = [word for part in typing.get_args(kind) for word in typing.get_args(part)]  # as in int | Literal["auto"]
    if words:
        if isinstance(value, str) and value in words:
            return value
        kind = typing.get_args(kind)[0]
    if kind is Numbers and isinstance(value, dict):
        for name in value:
            if not Numbers.KEY.fullmatch(name):
                raise ValueError(f"names that match {Numbers.KEY.pattern}, found {shown(name)}")
        return Numbers(sorted((name, _checked(number, float, {"minimum": 0})) for name, number in value.items()))
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 1 << 1023 else math.inf
    if type(value) is not kind:
        kind_name = _KIND_NAMES.get(type(value), type(value).__name__)
        raise ValueError(f"{' or '.join([_KIND_NAMES.get(kind, NUMBERS), *map(repr, words)])}, found {kind_name}")
    limits = {name: limit for name, limit in limits.items() if name in _LIMITS}
    if kind is int and abs(value) > _MOST:
        limits = {"minimum": -_MOST, "maximum": _MOST} | limits
    finite = kind is not float or math.isfinite(value)
    if not finite or not all(_LIMITS[name][0](value, limit) for name, limit in limits.items()):
        allowed = [
            f"{_LIMITS[name][1]} {', '.join(limit) if name == 'choices' else limit}" for name, limit in limits.items()
        ]
        raise ValueError(" and ".join(allowed) or "a finite number")
    return value
