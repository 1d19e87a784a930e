"""Remembers which files were compared with their checksums, by size, inode and time of change.

A file that is overwritten, replaced or copied has another of these, so it is compared again. Several processes may add
to one record at the same time, because each adds a line.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bert_horovod.storage.reading import read_text


def identity(files: Sequence[Path]) -> list[int]:
    """Size, inode and time of change (ns since 1970) of each file, one after another."""
    facts = [file.stat() for file in files]
    return [number for fact in facts for number in (fact.st_size, fact.st_ino, fact.st_ctime_ns)]


class Verified:
    """A record of files, by name; `path`: its file, which need not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> dict[str, list[int]]:
        """What is remembered: the identity of the files of each name."""
        known = {}
        with suppress(OSError, UnicodeDecodeError):
            for line in read_text(self._path).splitlines():
                with suppress(ValueError, TypeError, KeyError, RecursionError):  # half written
                    entry = json.loads(line)
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
