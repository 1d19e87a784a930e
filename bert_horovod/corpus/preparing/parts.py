"""Parts: the finished shards of an unfinished store, each in a directory that describes it.

    shard-<task>-<number>/   in the finished store: shard-<number>/
        *.npy        the shard's arrays
        part.json    {"part": the fields of Part, "sha256": SHA-256 of these fields as JSON}

A directory with such a name is complete, because it is renamed into place at the end. The content of a part depends
only on its task, its number and the position where it begins, so any part can be made again alone.
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
    end: tuple[int, int, int]  # the Position in the task after this part
    last: bool  # whether the task ends with it
    counts: dict[str, int]  # by the names of manifest.COUNTS
    array_bytes: int  # of its arrays' files
    sha256: str  # of its arrays
    totals: dict[str, Any]  # the fields of builder.ShardTotals
    passed_over: dict[str, int]  # what was left out of the sources: kind and count
    hashes: dict[str, str] = field(default_factory=dict)  # SHA-256 of files that are one piece, by piece number

    @property
    def name(self) -> str:
        """The name of its directory in an unfinished store."""
        return part_name(self.task, self.number)


def part_name(task: str, number: int) -> str:
    """The name of the directory of a task's part in an unfinished store."""
    return f"shard-{task}-{number:03d}"


def write_part(store: Path, shard: Shard, totals: ShardTotals, **fields: Any) -> Part:
    """Write a shard with its part.json under a temporary name, sync, rename.

    Args:
        store: the store's directory.
        shard: the arrays.
        totals: the builder's.
        fields: the other fields of Part.
    """
    temporary = store / f".{part_name(fields['task'], fields['number'])}.partial"
    shutil.rmtree(temporary, ignore_errors=True)
    shown = write_shard(temporary, shard, totals.bytes)
    counts = {name: shown[name] for name in COUNTS}
    part = Part(
        counts=counts, array_bytes=_array_bytes(temporary), sha256=shown["sha256"], totals=asdict(totals), **fields
    )
    write_atomically(temporary / "part.json", _text(part))
    shutil.rmtree(store / part.name, ignore_errors=True)
    os.rename(temporary, store / part.name)
    sync(store)
    return part


def rewrite_part(directory: Path, part: Part, totals: dict[str, Any], sha256: str) -> None:
    """Write a part's part.json again, after its arrays have changed, with new totals and a new SHA-256."""
    write_atomically(directory / "part.json", _text(replace(part, totals=totals, sha256=sha256)))


def find_parts(store: Path, tasks: Iterable[ShardTask]) -> dict[tuple[str, int], Part]:
    """Find the undamaged parts of these tasks, by (task, number); delete all other parts.

    Parts that have a directory of the finished store are renamed back to `part.name`.
    """
    keys = {task.key for task in tasks}
    whole = {}
    for directory in sorted(store.glob("shard-*")):
        part = _read_part(directory)
        if part is None or part.task not in keys or not _is_whole(directory, part):
            shutil.rmtree(directory)
            continue
        if directory.name != part.name:
            shutil.rmtree(store / part.name, ignore_errors=True)
            os.rename(directory, store / part.name)
        whole[part.task, part.number] = part
    return whole


def number_parts(store: Path, parts: list[Part]) -> list[dict[str, Any]]:
    """Rename the parts in this order to shard-00000 and so on, delete empty ones; returns the manifest's entries."""
    shard_entries: list[dict[str, Any]] = []
    for part in parts:
        if not part.counts["tokens"]:
            shutil.rmtree(store / part.name)
            continue
        name = f"shard-{len(shard_entries):05d}"
        os.rename(store / part.name, store / name)
        shard_entries.append({"name": name, **part.counts, "sha256": part.sha256})
    sync(store)
    return shard_entries


def missing_parts(task: ShardTask, whole: dict[tuple[str, int], Part]) -> list[tuple[int, Position, int | None]]:
    """The runs of parts that a task lacks: (first number, position where it begins, number of the next part or None).

    None: no part comes after the run, which ends with the task.
    """
    numbers = sorted(number for key, number in whole if key == task.key)
    runs: list[tuple[int, Position, int | None]] = []
    begin, expected = Position(), 0
    for number in numbers:
        if number > expected:
            runs.append((expected, begin, number))
        begin, expected = Position(*whole[task.key, number].end), number + 1
    if not numbers or not whole[task.key, numbers[-1]].last:
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
    """Whether a part's arrays are unchanged; they are hashed only if their total size is right."""
    return _array_bytes(directory) == part.array_bytes and hash_shard(directory) == part.sha256


def _array_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.npy") if file.is_file())


def _text(part: Part) -> str:
    """The text of part.json."""
    content = json.loads(json.dumps(asdict(part)))  # number keys become strings, as in a part that was read
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({"part": content, "sha256": digest}, sort_keys=True) + "\n"
