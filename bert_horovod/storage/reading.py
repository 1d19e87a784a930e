"""Read files that anybody may have written: none can hang the program, fill its memory or run code.

A problem with a file raises OSError (it cannot be read) or ValueError (its content is wrong): callers tell the user how
to fix it.
"""

import ctypes
import dataclasses
import errno
import hashlib
import io
import json
import math
import mmap
import os
import re
import stat
import types
import typing
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from bert_horovod.errors import UserError, file_error

TEXT_BYTES = 32 << 20  # largest text file: JSON may take 20 times that in memory when it is parsed
VOCABULARY_BYTES = 1 << 30  # largest vocab.txt, in which a line is a token
_SHOWN = 200  # most characters of a value in a message
# As NumPy writes it for arrays in C order: {'descr': '<i4', 'fortran_order': False, 'shape': (3,), }
_NPY_HEADER = re.compile(rb"\{'descr': '([<>|=]?\w+)', 'fortran_order': False, 'shape': \(([\d, ]{0,99})\), \} *\n")
_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value
_MOST_DIGITS = 100  # of a whole number: transformers writes 31 for "no limit", float64 ends at 308


def shown(value: Any) -> str:
    """A value as text for a message; only its beginning if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, a list nested thousands deep
        return f"a {type(value).__name__} too large to print"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def open_regular(path: str | Path, inside: Path | None = None) -> io.BufferedReader:
    """Open a regular file for reading.

    Raises OSError for any other kind of file, because a FIFO blocks and a device has no end; with `inside`, also for a
    symbolic link that leads out of that directory.
    """
    try:
        if inside is not None and not Path(path).resolve().is_relative_to(inside.resolve()):
            raise OSError(errno.EXDEV, f"it is a link out of {inside}: expected the file itself")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (ValueError, RuntimeError) as error:  # a name with a NUL or a lone surrogate; a loop of links
        raise OSError(errno.EINVAL, f"no file has such a name: {error}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_text(path: str | Path, inside: Path | None = None, limit_bytes: int = TEXT_BYTES) -> str:
    """Read UTF-8 text; every line end becomes LF. Raises OSError, also above `limit_bytes`, and UnicodeDecodeError."""
    with open_regular(path, inside) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit_bytes:
            raise OSError(errno.EFBIG, f"it has more than {limit_bytes:,} bytes")
        content = file.read(size)
    return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: str | Path, inside: Path | None = None) -> Any:
    """Read a JSON file's value; raises OSError, and ValueError as parse_json."""
    return parse_json(read_text(path, inside))


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, in UTF-8.

    Raises ValueError, also for NaN, Infinity, numbers that float64 cannot hold, whole numbers of more than a hundred
    digits, and strings that UTF-8 cannot encode.
    """
    text = text if isinstance(text, str) else text.decode("utf-8")
    try:
        contents = _JSON.decode(text)
        if _SURROGATE.search(text):
            json.dumps(contents, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return contents


def _refuse_number(text: str) -> Any:
    raise ValueError(f"{text[:20]}{'...' * (len(text) > 20)} is a number that no field can have")


def _whole(text: str) -> int:
    return int(text) if len(text) <= _MOST_DIGITS else _refuse_number(text)


def _finite(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _refuse_number(text)


_JSON = json.JSONDecoder(parse_int=_whole, parse_float=_finite, parse_constant=_refuse_number)


def read_given_json(path: Path, flag: str, expected: str) -> Any:
    """Read the JSON file that a flag names; raises UserError, which says what was `expected`, or file_error's."""
    try:
        return read_json(path)
    except OSError as error:
        raise file_error(error, f"{flag} {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{flag} {path}: expected {expected} ({error})") from error


def read_record(path: Path, kind: Any, inside: Path | None = None) -> Any:
    """Read a JSON file whose value is of an annotated type; an object becomes the dataclass that describes it."""
    content = read_json(path, inside)
    check_type(content, kind, "it")
    return kind(**content) if dataclasses.is_dataclass(kind) else content  # type: ignore[operator]


def load_array(
    path: Path, dtype: np.dtype | type, shape: tuple[int | None, ...], inside: Path | None = None
) -> np.ndarray:
    """Map a .npy file of this dtype and shape (None: any length), keeping no file open; raises OSError, ValueError."""
    with open_regular(path, inside) as file:
        found_dtype, found_shape = _npy_header(file)
        if found_dtype != np.dtype(dtype):
            raise ValueError(f"it holds {str(found_dtype)[:_SHOWN]}, expected {np.dtype(dtype)} in C order")
        fits = len(found_shape) == len(shape) and all(
            n is None or n == m for n, m in zip(shape, found_shape, strict=True)
        )
        if not fits:
            expected = ", ".join("any" if n is None else str(n) for n in shape)
            raise ValueError(f"its shape is {shown(found_shape)}, expected ({expected})")
        begin = file.tell()
        size = os.fstat(file.fileno()).st_size - begin
        # Python's integers do not overflow; NumPy's do.
        claimed = np.dtype(dtype).itemsize
        for length in found_shape:
            claimed *= int(length)
        if claimed != size or min(found_shape, default=0) < 0:
            raise ValueError(f"its header claims {shown(claimed)} bytes of values, the file has {size}")
        if not size:  # an empty array cannot be mapped
            return np.zeros(found_shape, dtype)
        return _mapped(file, begin + size)[begin:].view(dtype).reshape(found_shape)


def _mapped(file: io.BufferedReader, size: int) -> np.ndarray:
    """Map the beginning of a file: uint8 [size]. Python's mmap would keep a descriptor open as long as the array."""
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    content = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(content, _LIBC.munmap, address, size).atexit = False  # threads may still read it
    return np.frombuffer(memoryview(content).toreadonly(), np.uint8)


def _npy_header(file: io.BufferedReader) -> tuple[np.dtype, tuple[int, ...]]:
    """Dtype and shape in the head of a .npy file; raises ValueError.

    Not by NumPy, which parses it as Python code: in several threads at once CPython 3.11 fails at that.
    """
    magic = file.read(len(_NPY_MAGIC))
    header = file.read(int.from_bytes(file.read(2), "little"))
    found = _NPY_HEADER.fullmatch(header)
    if magic != _NPY_MAGIC or not found:
        raise ValueError(f"no header of a .npy file: {shown(header[:_SHOWN])}")
    try:
        return np.dtype(found[1].decode()), tuple(map(int, filter(str.strip, found[2].decode().split(","))))
    except TypeError as error:
        raise ValueError(f"no header of a .npy file: {shown(str(error))}") from error


def hash_file(path: Path, inside: Path | None = None) -> str:
    """SHA-256 of a regular file, in hexadecimal; raises OSError."""
    with open_regular(path, inside) as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


_LIMIT = 1 << 63
_LARGEST = 1e100  # of a float: more than any float32; sums and products stay finite
Seconds = Annotated[float, 1e11]  # since the epoch: 3,000 years
_NAMES: dict[Any, str] = {
    int: f"a whole number from 0 to {_LIMIT - 1}",
    float: f"a number within {_LARGEST:g}",
    bool: "true or false",
    str: "a string",
    types.NoneType: "null",
    None: "null",
}


def check_type(value: Any, kind: Any, name: str) -> None:
    """Raise ValueError, which calls the value's place in the JSON `name`, if it is not of the type `kind`.

    That is int (a count: not negative), float (within 1e100), bool, str, None, Any, list[X], tuple[X, Y] (a list of as
    many), dict[str, X], dict[int, X] (its keys are digits), X | Y, Annotated[X, most] (from 0); a TypedDict or a
    dataclass, whose required keys (fields without a default) must be present. Neither may have unknown keys.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return
    if origin is Annotated:
        check_type(value, arguments[0], name)
        _expect(0 <= value <= arguments[1], value, f"0 to {arguments[1]:g}", name)
    elif origin in (types.UnionType, typing.Union):
        refusals = []
        for alternative in arguments:
            try:
                return check_type(value, alternative, name)
            except ValueError as error:
                refusals.append(error)
        raise refusals[0]
    elif origin is list:
        _expect(type(value) is list, value, "a list", name)
        for i, element in enumerate(value):
            check_type(element, arguments[0], f"{name}.{i}")
    elif origin is tuple:
        _expect(type(value) is list and len(value) == len(arguments), value, f"a list of {len(arguments)}", name)
        for i, (element, of_place) in enumerate(zip(value, arguments, strict=True)):
            check_type(element, of_place, f"{name}.{i}")
    elif origin is dict:
        _expect(type(value) is dict, value, "an object", name)
        for key, element in value.items():
            _expect(arguments[0] is str or (key.isascii() and key.isdecimal()), key, "digits", f"a key of {name}")
            check_type(element, arguments[1], f"{name}.{shown(key)}")
    elif typing.is_typeddict(kind) or dataclasses.is_dataclass(kind):
        _expect(type(value) is dict, value, "an object", name)
        hints = typing.get_type_hints(kind, include_extras=True)
        unknown = value.keys() - hints.keys()
        missing_keys = _required(kind) - value.keys()
        if unknown or missing_keys:
            problems = [f"{shown(key)} is missing" for key in sorted(missing_keys)]
            problems += [f"unknown {shown(key)}" for key in sorted(unknown)]
            raise ValueError(f"{name}: {'; '.join(problems[:3])}")
        for key, element in value.items():
            check_type(element, hints[key], f"{name}.{key}")
    elif kind is float:
        _expect(type(value) in (int, float) and abs(value) < _LARGEST, value, _NAMES[float], name)
    else:
        fits = value is None if kind in (None, types.NoneType) else type(value) is kind
        fits = fits and (kind is not int or 0 <= int(value) < _LIMIT)
        _expect(fits, value, _NAMES[kind], name)


def _required(kind: Any) -> frozenset[str]:
    if typing.is_typeddict(kind):
        return kind.__required_keys__
    fields, absent = dataclasses.fields(kind), dataclasses.MISSING
    return frozenset(each.name for each in fields if each.default is absent and each.default_factory is absent)


def _expect(fits: bool, value: Any, expected: str, name: str) -> None:
    if not fits:
        raise ValueError(f"{name} is {shown(value)}, expected {expected}")


def identity(files: Sequence[Path]) -> list[int]:
    """Size, inode and time of change (ns since 1970) of each file, one after another."""
    facts = [file.stat() for file in files]
    return [number for fact in facts for number in (fact.st_size, fact.st_ino, fact.st_ctime_ns)]


class Verified:
    """A record of files, by name, that were compared with their checksums; `path`: its file, which need not exist.

    A file that is overwritten, replaced or copied has another identity, so it is compared again. Several processes may
    add to one record at the same time, because each adds a line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> dict[str, list[int]]:
        """What is remembered: the identity of the files of each name."""
        known = {}
        with suppress(OSError, UnicodeDecodeError):
            for line in read_text(self._path).splitlines():
                with suppress(ValueError, TypeError, KeyError, RecursionError):  # half written
                    entry = parse_json(line)
                    known[entry["name"]] = entry["identity"]
        return known

    def remember(self, name: str, seen: list[int]) -> None:
        """Note that the files of a name, which had this identity before, were compared; does nothing if it cannot."""
        line = json.dumps({"name": name, "identity": seen}) + "\n"
        with suppress(OSError):  # a read-only directory: they are compared again another time
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
