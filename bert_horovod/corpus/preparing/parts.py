"""Parts: what a store is prepared in, about `--shard_bytes` of text each, in the files of shards.

    shard-<task>-<number>.safetensors       a part
    shard-<task>-<number>+<n>.safetensors   n parts from this one on, joined to a shard
    shard-00000.safetensors                 of one or more parts, in the finished store

A file with such a name is complete, because it is renamed into place at the end; its record has the SHA-256 of what
comes before the record, and the fields of each Part. The content of a part depends only on its task, its number and the
position where it begins, so any part can be made again alone.
"""

import functools
import json
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bert_horovod.corpus.preparing.builder import ShardTotals
from bert_horovod.corpus.preparing.planning import Plan, Position, ShardTask
from bert_horovod.corpus.shard import COUNTS, MOST_TOKENS, SUFFIX, Shard, describe, map_shard, shard_file, write_shard
from bert_horovod.runtime.reading_progress import ReadingProgress
from bert_horovod.storage.reading import check_type
from bert_horovod.storage.writing import sync

PATTERN = rf"shard-(\d{{5,}}|[0-9a-f]{{24}}-\d{{3,}}(\+\d+)?){SUFFIX.replace('.', '[.]')}"


_FINISHED = re.compile(rf"shard-\d{{5,}}{SUFFIX}")
_TOTALS = {each.name for each in fields(ShardTotals)}


@dataclass(frozen=True)
class Part:
    """One finished part, which may be empty (then it is left out of the store)."""

    task: str
    number: int
    end: tuple[int, int, int]  # the Position in the task after this part
    last: bool  # whether the task ends with it
    counts: dict[str, int]  # by the names of COUNTS
    totals: dict[str, Any]  # the fields of builder.ShardTotals
    passed_over: dict[str, int]  # what was left out of the sources: kind and count
    hashes: dict[int, str] = field(default_factory=dict)  # SHA-256 of files that are one piece, by piece number


@dataclass(frozen=True)
class PartFile:
    """A file of one or more parts, and its entry for the manifest but for the name."""

    parts: tuple[Part, ...]
    entry: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its shard in an unfinished store."""
        return part_name(self.parts[0].task, self.parts[0].number, len(self.parts))


def part_name(task: str, number: int, parts: int = 1) -> str:
    """The name, in an unfinished store, of a shard of so many parts, of which this is the first."""
    return f"shard-{task}-{number:03d}" + (f"+{parts}" if parts > 1 else "")


def write_part(store: Path, shard: Shard, totals: ShardTotals, **fields: Any) -> PartFile:
    """Write a part under a temporary name, sync, rename."""
    lengths = (shard.documents, shard.sections, shard.sentences)
    numbers = (*(len(offsets) - 1 for offsets in lengths), len(shard.tokens), totals.bytes)
    part = Part(counts=dict(zip(COUNTS, numbers, strict=True)), totals=asdict(totals), **fields)
    return write_parts(store, [part], [shard])


def write_parts(store: Path, parts: Sequence[Part], shards: Sequence[Shard]) -> PartFile:
    """Write parts with these arrays into one file; an earlier file of the same parts is replaced."""
    # Number keys become strings, as in parts that were read.
    described = json.loads(json.dumps([asdict(part) for part in parts]))

    def record(sha256: str) -> bytes:
        return json.dumps({"sha256": sha256, "parts": described}, sort_keys=True).encode()

    name = part_name(parts[0].task, parts[0].number, len(parts))
    temporary = store / f".{name}{SUFFIX}.partial"
    temporary.unlink(missing_ok=True)
    text_bytes = sum(part.counts["bytes"] for part in parts)
    entry = write_shard(temporary, shards, text_bytes, record)
    os.replace(temporary, shard_file(store, name))
    sync(store)
    return PartFile(tuple(parts), entry | {"name": name})


def find_parts(store: Path, tasks: Iterable[ShardTask]) -> list[PartFile]:
    """Find the undamaged files of parts of these tasks, and rename back finished ones; delete all other shards."""
    of_key = {task.key: task for task in tasks}
    whole: dict[tuple[str, int], PartFile] = {}
    kept: list[tuple[Path, PartFile]] = []
    for path, found in read_files(sorted(store.glob("shard-*"))).items():
        if found is not None and all(is_of(part, of_key.get(part.task)) for part in found.parts):
            kept.append((path, found))
        else:
            path.unlink()
    for path, found in kept:
        os.replace(path, shard_file(store, found.name))
        for part in found.parts:  # a part that was joined but not yet deleted is in two files
            if len(whole.get(key := (part.task, part.number), found).parts) <= len(found.parts):
                whole[key] = found
    return list({found.name: found for found in whole.values()}.values())


def is_of(part: Part, task: ShardTask | None) -> bool:
    """Whether a part that was read can be one of this task: it names no piece that the task lacks."""
    if task is None or part.end[0] > len(task.pieces):
        return False
    return all(int(number) < len(task.pieces) for number in (*part.totals["pieces"], *part.hashes))


def read_files(paths: list[Path]) -> dict[Path, PartFile | None]:
    """The parts in each of these files, compared with their hash; None for a damaged file."""
    sizes = [path.lstat().st_size for path in paths]
    # Hashing releases the GIL.
    with ReadingProgress("check", sum(sizes)) as progress, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        files = {}
        for path, size, found in zip(paths, sizes, threads.map(_read_parts, paths), strict=True):
            files[path] = found
            progress.add(size)
    return files


def group_parts(parts: Sequence[Part], plan: Plan) -> list[list[Part]]:
    """The parts of each shard, in order, without empty ones."""
    run_of = {task.key: number for number, run in enumerate(plan.runs) for task in run}
    groups: list[list[Part]] = []
    run, tokens = -1, 0
    for part in parts:
        if not part.counts["tokens"]:
            continue
        tokens += part.counts["tokens"]
        if run != run_of[part.task] or len(groups[-1]) == plan.together or tokens > MOST_TOKENS:
            groups.append([])
            run, tokens = run_of[part.task], part.counts["tokens"]
        groups[-1].append(part)
    return groups


@dataclass(frozen=True)
class JoinJob:
    """Parts to join to a shard, and the files that hold them."""

    store: Path
    parts: tuple[Part, ...]
    files: tuple[PartFile, ...]
    vocabulary_size: int


def join_parts(job: JoinJob) -> PartFile:
    """Write a shard of these parts, and delete the files that held them alone."""
    joined = write_parts(job.store, job.parts, list(PartArrays(job.store, job.parts, job.files, job.vocabulary_size)))
    for file in job.files:
        if all(part in job.parts for part in file.parts):
            shard_file(job.store, file.name).unlink()
    return joined


def number_shards(store: Path, files: Sequence[PartFile]) -> list[dict[str, Any]]:
    """Rename files in this order to shard-00000 and so on, delete all other shards; returns the manifest's entries."""
    names = {shard_file(store, file.name) for file in files}
    for path in store.glob("shard-*"):
        if path not in names:
            path.unlink()
    shard_entries = []
    for number, file in enumerate(files):
        name = f"shard-{number:05d}"
        os.rename(shard_file(store, file.name), shard_file(store, name))
        shard_entries.append(file.entry | {"name": name})
    sync(store)
    return shard_entries


class PartArrays(Sequence[Shard]):
    """The arrays of parts, in order, mapped where they are asked for; `files` hold them."""

    def __init__(self, store: Path, parts: Sequence[Part], files: Iterable[PartFile], vocabulary_size: int) -> None:
        self.store, self.parts, self.files = store, list(parts), list(files)
        self._vocabulary_size = vocabulary_size
        places = {(part.task, part.number): (file, i) for file in self.files for i, part in enumerate(file.parts)}
        self._places = [places[part.task, part.number] for part in parts]
        self._files = {key: file for key, (file, _) in places.items()}
        entries = {file.name: file.entry for file in self.files}

        @functools.lru_cache(1)
        def split(name: str) -> list[Shard]:
            return map_shard(store, entries[name], vocabulary_size).split()

        self._split = split

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Shard:  # type: ignore[override]  # no slices
        file, place = self._places[number]
        return self._split(file.name)[place]

    def replaced(self, number: int, part: Part, shard: Shard) -> "PartArrays":
        """Write a part's file anew with other arrays of this part; returns the parts after that."""
        file, place = self._places[number]
        parts, shards = list(file.parts), list(self._split(file.name))
        parts[place], shards[place] = part, shard
        written = write_parts(self.store, parts, shards)
        files = [written if other is file else other for other in self.files]
        return PartArrays(
            self.store, [*self.parts[:number], part, *self.parts[number + 1 :]], files, self._vocabulary_size
        )

    def joined(self, parts: Sequence[Part]) -> "PartFile | JoinJob":
        """The file that holds exactly these parts, or the job that makes one."""
        files = {file.name: file for file in (self._files[part.task, part.number] for part in parts)}
        [*others, file] = files.values()
        if not others and len(file.parts) == len(parts):
            return file
        return JoinJob(self.store, tuple(parts), tuple(files.values()), self._vocabulary_size)


def parts_by_task(files: Iterable[PartFile]) -> dict[str, list[Part]]:
    """The parts in these files by task, in order."""
    parts: dict[str, dict[int, Part]] = {}
    for file in files:
        for part in file.parts:
            parts.setdefault(part.task, {})[part.number] = part
    return {task: [of_task[number] for number in sorted(of_task)] for task, of_task in parts.items()}


def in_order(files: Iterable[PartFile], tasks: Iterable[ShardTask]) -> list[Part]:
    """All parts of these tasks, in order."""
    parts = parts_by_task(files)
    return [part for task in tasks for part in parts[task.key]]


def missing_parts(whole: Sequence[Part]) -> list[tuple[int, Position, int | None]]:
    """The runs of parts that a task lacks: (first number, position where it begins, number of the next part or None).

    `whole` are those that it has, in order. None: no part comes after the run, which ends with the task.
    """
    runs: list[tuple[int, Position, int | None]] = []
    begin, expected = Position(), 0
    for part in whole:
        if part.number > expected:
            runs.append((expected, begin, part.number))
        begin, expected = Position(*part.end), part.number + 1
    if not whole or not whole[-1].last:
        runs.append((expected, begin, None))
    return runs


def _read_parts(path: Path) -> PartFile | None:
    """The parts of a file; None if it is damaged."""
    try:
        described, record = describe(path)
        check_type(record["parts"], list[Part], "parts")
        parts = tuple(Part(**{**each, "end": tuple(each["end"])}) for each in record["parts"])
        for part in parts:
            check_type(part.totals, ShardTotals, "totals")
            if part.counts.keys() != set(COUNTS) or part.totals.keys() != _TOTALS:
                raise ValueError("its counts are others")
        counts = {name: sum(part.counts[name] for part in parts) for name in COUNTS}
        found = PartFile(parts, counts | {"parts": len(parts)} | described)
        if path.name != f"{found.name}{SUFFIX}" and not _FINISHED.fullmatch(path.name):
            raise ValueError("its name is that of other parts")
        return PartFile(parts, {"name": found.name} | found.entry)
    except (OSError, ValueError, LookupError):
        return None
