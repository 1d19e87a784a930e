"""Parts: the finished shards of a store that is being made, each in a directory that tells what it is.

    shard-<task>-<number>/   or, in its place in the finished store, shard-<number>/
        *.npy        the shard's arrays
        part.json    {"part": the fields of Part, "sha256": of them as JSON}

A directory of these names is whole: it is renamed into place. What a part holds follows from its task, its number and
where it begins, so any part can be made again alone.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bert_horovod.corpus.manifest import COUNTS
from bert_horovod.corpus.preparing.builder import ShardTotals
from bert_horovod.corpus.preparing.planning import Position, ShardTask
from bert_horovod.corpus.store import Shard, hash_shard, write_shard
from bert_horovod.storage.reading import read_text
from bert_horovod.storage.writing import sync, write_atomically

PATTERN = r"shard-(\d{5,}|[0-9a-f]{24}-\d{3,})"


@dataclass(frozen=True)
class Part:
    """One finished shard, which may be empty (then it is left out of the store)."""

    task: str
    number: int
    end: tuple[int, int, int]  # the task's position after it
    last: bool  # of its task
    counts: dict[str, int]  # by the names of store.COUNTS
    array_bytes: int  # of its arrays' files
    sha256: str  # of its arrays
    totals: dict[str, Any]  # builder.ShardTotals
    passed_over: dict[str, int]  # what kind of thing in the sources, how many
    hashes: dict[str, str] = field(default_factory=dict)  # SHA-256 of whole files read to their end, by piece number

    @property
    def name(self) -> str:
        """Its directory while the store is being made."""
        return part_name(self.task, self.number)


def part_name(task: str, number: int) -> str:
    """The directory of a task's part while the store is being made."""
    return f"shard-{task}-{number:03d}"


def write_part(store: Path, shard: Shard, totals: ShardTotals, **fields: Any) -> Part:
    """Write a shard with its part.json under a temporary name, sync, rename.

    Args:
        store: the store's directory.
        shard: the arrays.
        totals: the builder's.
        fields: those of Part that neither of these tells.
    """
    temporary = store / f".{part_name(fields['task'], fields['number'])}.partial"
    shutil.rmtree(temporary, ignore_errors=True)
    shown = write_shard(temporary, shard, totals.bytes)
    counts = {name: shown[name] for name in COUNTS}
    part = Part(
        counts=counts,
        array_bytes=_array_bytes(temporary),
        sha256=shown["sha256"],
        totals=asdict(totals),
        **fields,
    )
    write_atomically(temporary / "part.json", _text(part))
    shutil.rmtree(store / part.name, ignore_errors=True)
    os.rename(temporary, store / part.name)
    sync(store)
    return part


def rewrite_part(directory: Path, part: Part, totals: dict[str, Any], sha256: str) -> None:
    """Say in a part's directory that its arrays, and with them these fields, have changed."""
    write_atomically(directory / "part.json", _text(replace(part, totals=totals, sha256=sha256)))


def find_parts(store: Path, tasks: Iterable[ShardTask]) -> dict[tuple[str, int], Part]:
    """Find the parts of these tasks that are whole, by task and number; take away all other ones.

    Every part found is afterwards in the directory of its own name.
    """
    keys = {task.key for task in tasks}
    found = {}
    for directory in sorted(store.glob("shard-*")):
        part = _read_part(directory)
        if part is None or part.task not in keys or not _is_whole(directory, part):
            shutil.rmtree(directory)
            continue
        if directory.name != part.name:
            shutil.rmtree(store / part.name, ignore_errors=True)
            os.rename(directory, store / part.name)
        found[part.task, part.number] = part
    return found


def number_parts(store: Path, parts: list[Part]) -> list[dict[str, Any]]:
    """Give the parts that hold anything their places in the store, in this order; returns the manifest's entries."""
    entries = []
    for part in parts:
        if not part.counts["tokens"]:
            shutil.rmtree(store / part.name)
            continue
        name = f"shard-{len(entries):05d}"
        os.rename(store / part.name, store / name)
        entries.append({"name": name, **part.counts, "sha256": part.sha256})
    sync(store)
    return entries


def missing_parts(task: ShardTask, found: dict[tuple[str, int], Part]) -> list[tuple[int, Position, int | None]]:
    """The runs of parts that a task lacks: first number, where it begins, number to stop before (None: none)."""
    numbers = sorted(number for key, number in found if key == task.key)
    runs, begin, expected = [], Position(), 0
    for number in numbers:
        if number > expected:
            runs.append((expected, begin, number))
        begin, expected = Position(*found[task.key, number].end), number + 1
    if not numbers or not found[task.key, numbers[-1]].last:
        runs.append((expected, begin, None))
    return runs


def _read_part(directory: Path) -> Part | None:
    try:
        text = read_text(directory / "part.json", inside=directory)
        part = Part(**json.loads(text)["part"])
        return part if _text(part) == text else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _is_whole(directory: Path, part: Part) -> bool:
    """Whether its arrays are those that were written; a file of another size is not read."""
    return _array_bytes(directory) == part.array_bytes and hash_shard(directory) == part.sha256


def _array_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.npy") if file.is_file())


def _text(part: Part) -> str:
    """What part.json holds."""
    content = json.loads(json.dumps(asdict(part)))  # with the keys that it has when it was read: strings
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({"part": content, "sha256": digest}, sort_keys=True) + "\n"
