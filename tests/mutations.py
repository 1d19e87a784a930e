"""Hostile changes to files: what hypothesis draws, how it is done, and what must not happen while they are read."""

import contextlib
import copy
import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from bert_horovod.errors import ReportedError

MEMORY_BYTES = 1 << 30  # that reading may take more than there is
PATIENCE_S = 20  # after which reading counts as hung
SECRET = "secret"  # a file that is no part of what is read

fuzz = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def bounded(examples: int) -> Callable[[Callable], Callable]:
    """Makes a test one of fuzzing that runs so many examples, or FUZZ_EXAMPLES of the environment."""
    chosen = settings(fuzz, max_examples=int(os.environ.get("FUZZ_EXAMPLES", examples)))
    return lambda test: pytest.mark.fuzz(chosen(test))


def nested(depth: int) -> list:
    """A list in a list in a list."""
    layers: list = []
    for _ in range(depth):
        layers = [layers]
    return layers


HOSTILE_VALUES = [
    *(None, True, False, 0, 1, -1, 2, 31, 1 << 31, 1 << 62, 1 << 64, -(10**4000), 10**15),
    *(0.5, -0.5, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "x", "..", ".", f"../../outside/{SECRET}", "/etc/passwd", "a\0b", "\ud800", "n" * 5000, "a/../b", "none"),
    *([], {}, [[]], [None], ["x"], {"x": 1}, {"": {}}, nested(300)),
]
HOSTILE_CONTENTS = [
    *(b"", b"\0", b"\n", b"{", b"[]", b"{}", b"null", b"0", b'""', b"NaN", b"\xff\xfe", b'{"\\ud800": "\\ud800"}'),
    *(b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b'{"a": ' + b"9" * 5000 + b"}", b"\x80\x04K\x01."),
    *((1 << 60).to_bytes(8, "little"), (1 << 60).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"{}"),
]


class Change(NamedTuple):
    """A hostile change to a file."""

    kind: str
    where: int = 0  # which byte or which place of a JSON text; taken modulo their number
    what: Any = None


_WHERE = st.integers(0, 1 << 20)
_BYTE_CHANGES = st.one_of(
    st.builds(Change, st.just("flip"), _WHERE, st.integers(0, 7)),
    st.builds(Change, st.just("truncate"), _WHERE, st.none()),
    st.builds(Change, st.just("append"), st.just(0), st.binary(min_size=1, max_size=16)),
    st.builds(Change, st.just("content"), st.just(0), st.sampled_from(HOSTILE_CONTENTS)),
)
_FILE_CHANGES = st.sampled_from(
    [Change(kind) for kind in ("remove", "directory", "fifo", "link_out", "link_to_nothing", "link_loop", "sparse")]
)
_JSON_CHANGES = st.builds(
    Change, st.sampled_from(["set", "set", "set", "delete", "add", "move"]), _WHERE, st.sampled_from(HOSTILE_VALUES)
)


def changes(names: list[str]) -> st.SearchStrategy[tuple[str, Change]]:
    """Changes to one of these files, by what kind of file it is."""
    common = (_BYTE_CHANGES, _FILE_CHANGES)
    by_suffix = {".json": (_JSON_CHANGES, _JSON_CHANGES, _JSON_CHANGES), ".safetensors": (_JSON_CHANGES, _JSON_CHANGES)}
    return st.one_of(
        *(st.tuples(st.just(name), st.one_of(*common, *by_suffix.get(Path(name).suffix, ()))) for name in names)
    )


def apply(path: Path, change: Change, outside: Path) -> None:
    """Change a file; `outside` is a directory that nothing may read or write."""
    if path.is_symlink() or path.stat().st_size > 1 << 20:  # changed already: it leads out, or has a hole
        return
    content = path.read_bytes()
    match change.kind:
        case "flip":
            changed = bytearray(content or b"\0")
            changed[change.where % len(changed)] ^= 1 << change.what
        case "truncate":
            changed = content[: change.where % (len(content) + 1)]
        case "append":
            changed = content + change.what
        case "content":
            changed = change.what
        case "set" | "delete" | "add" | "move":
            changed = _change_json_file(path, content, change)
        case "sparse":
            os.truncate(path, 1 << 42)
            return
        case _:
            path.unlink()
            _replace(path, change.kind, outside)
            return
    path.write_bytes(changed)


def _replace(path: Path, kind: str, outside: Path) -> None:
    match kind:
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "link_out":
            path.symlink_to(outside / SECRET)
        case "link_to_nothing":
            path.symlink_to(outside / "nothing")
        case "link_loop":
            path.symlink_to(path.name)


def _change_json_file(path: Path, content: bytes, change: Change) -> bytes:
    try:
        if path.suffix == ".safetensors":
            end = 8 + int.from_bytes(content[:8], "little")
            header = json.dumps(change_json(json.loads(content[8:end]), change)).encode()
            header += b" " * (-len(header) % 8)
            return len(header).to_bytes(8, "little") + header + content[end:]
        return json.dumps(change_json(json.loads(content), change), indent=1).encode()
    except (ValueError, RecursionError):  # an earlier change has made it no JSON
        return content


def change_json(value: Any, change: Change) -> Any:
    """A copy of a JSON value with one place in it changed."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places:
        return change.what
    parent, key = places[change.where % len(places)]
    match change.kind:
        case "set":
            parent[key] = change.what
        case "delete":
            del parent[key]
        case "add":
            parent.update({"added": change.what}) if isinstance(parent, dict) else parent.append(change.what)
        case "move":  # another place's value, or its name: right types, wrong meaning
            other, name = places[(change.where * 7 + 3) % len(places)]
            if isinstance(parent, dict) and isinstance(change.what, str):
                parent[change.what] = parent.pop(key)
            else:
                parent[key] = copy.deepcopy(other[name])
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


class Sandbox(NamedTuple):
    """A fresh copy of files in `directory`, and a directory beside it that nobody may touch."""

    directory: Path
    outside: Path

    def read(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result, or the ReportedError that it raised.

        Any other end fails, as do hanging, eating memory and touching what is outside.
        """
        with _limits(), _watch(self.outside):
            try:
                return function(*arguments)
            except ReportedError as error:
                refused = error
        assert 0 < len(str(refused)) < 4000
        return refused


@contextlib.contextmanager
def sandbox(original: Path, directory: Path) -> Iterator[Sandbox]:
    """A copy of the original under `directory`, which is cleared before."""
    shutil.rmtree(directory, ignore_errors=True)
    outside = directory / "outside"
    outside.mkdir(parents=True)
    (outside / SECRET).write_text('{"secret": 1}', encoding="utf-8")
    shutil.copytree(original, directory / "copy" / "it")
    yield Sandbox(directory / "copy" / "it", outside)
    assert [path.name for path in outside.iterdir()] == [SECRET]
    assert (outside / SECRET).read_text(encoding="utf-8") == '{"secret": 1}'
    assert [path.name for path in (directory / "copy").iterdir()] == ["it"]


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, _hung)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, before[1]))
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _hung(*_: Any) -> None:
    raise AssertionError(f"still reading after {PATIENCE_S} s")


_opened: list[str] | None = None


def _note(event: str, arguments: tuple) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        _opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(_note)  # there is no way to take one back


@contextlib.contextmanager
def _watch(outside: Path) -> Iterator[None]:
    """Fails if a file of `outside` was opened by its own path or by a path that leads there."""
    global _opened
    _opened = []
    try:
        yield
    finally:
        opened, _opened = _opened, None
    assert not [path for path in opened if os.path.realpath(path).startswith(str(outside) + os.sep)]
