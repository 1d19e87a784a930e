"""Hostile changes to files, and what must not happen while they are read."""

import contextlib
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.errors import ReportedError

MEMORY_BYTES = 1 << 30  # that reading may take more than there is
PATIENCE_S = 20  # after which reading counts as hung
SECRET = "secret"  # a file that is no part of what is read


def put_in_its_place(path: Path, kind: str, outside: Path) -> None:
    """Put something else in a file's place; `outside` is a directory that nothing may read or write."""
    if kind == "sparse":
        os.truncate(path, 1 << 42)
        return
    path.unlink()
    match kind:
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "link_out":
            path.symlink_to(outside / SECRET)
        case "link_loop":
            path.symlink_to(path.name)


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
