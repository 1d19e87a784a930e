"""Check values that come from JSON against type annotations."""

import dataclasses
import math
import types
import typing
from typing import Any

from bert_horovod.storage.reading import shown

_LIMIT = 1 << 63
_NAMES: dict[Any, str] = {
    int: f"a whole number from 0 to {_LIMIT - 1}",
    float: "a finite number",
    bool: "true or false",
    str: "a string",
    types.NoneType: "null",
    None: "null",
}


def check_type(value: Any, kind: Any, name: str) -> None:
    """Raise ValueError, which names the value's place, if a value is not of the annotated type.

    Args:
        value: read from JSON.
        kind: int (a count: not negative), float (finite), bool, str, None, Any, list[X], dict[str, X], X | Y; a
            TypedDict, whose required keys must be present, or a dataclass, whose fields may be missing. Neither may
            have unknown keys.
        name: the value's place in the JSON, for the message.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return
    if origin in (types.UnionType, typing.Union):
        refusals = []
        for alternative in arguments:
            try:
                return check_type(value, alternative, name)
            except ValueError as error:
                refusals.append(error)
        raise refusals[0]
    if origin is list:
        _expect(type(value) is list, value, "a list", name)
        for i, element in enumerate(value):
            check_type(element, arguments[0], f"{name}.{i}")
    elif origin is dict:
        _expect(type(value) is dict, value, "an object", name)
        for key, element in value.items():
            check_type(element, arguments[1], f"{name}.{shown(key)}")
    elif typing.is_typeddict(kind) or dataclasses.is_dataclass(kind):
        _expect(type(value) is dict, value, "an object", name)
        hints = typing.get_type_hints(kind)
        unknown = value.keys() - hints.keys()
        missing_keys = set() if dataclasses.is_dataclass(kind) else kind.__required_keys__ - value.keys()
        if unknown or missing_keys:
            problems = [f"{shown(key)} is missing" for key in sorted(missing_keys)]
            problems += [f"unknown {shown(key)}" for key in sorted(unknown)]
            raise ValueError(f"{name}: {'; '.join(problems[:3])}")
        for key, element in value.items():
            check_type(element, hints[key], f"{name}.{key}")
    elif kind is float:
        finite = math.isfinite(value) if type(value) is float else type(value) is int and abs(value) < _LIMIT
        _expect(finite, value, _NAMES[float], name)
    else:
        fits = value is None if kind in (None, types.NoneType) else type(value) is kind
        fits = fits and (kind is not int or 0 <= int(value) < _LIMIT)
        _expect(fits, value, _NAMES[kind], name)


def _expect(fits: bool, value: Any, expected: str, name: str) -> None:
    if not fits:
        raise ValueError(f"{name} is {shown(value)}, expected {expected}")
