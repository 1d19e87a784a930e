"""Blocks: what a store is prepared in, about `--shard_bytes` of text each, in the files of shards.

    shard-<task>-<number>.safetensors       a block
    shard-<task>-<number>+<n>.safetensors   n blocks from this one on, joined to a shard
    shard-00000.safetensors                 of one or more blocks, in the finished store

A file with such a name is complete, because it is renamed into place at the end; its record has the SHA-256 of what
comes before the record, and the fields of each Block. The content of a block depends only on its task, its number and
the position where it begins, so any block can be made again alone.
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
from bert_horovod.corpus.shard import (
    COUNTS,
    MOST_TOKENS,
    SUFFIX,
    Shard,
    describe_shard,
    map_shard,
    shard_file,
    write_shard,
)
from bert_horovod.runtime.reading_progress import ReadingProgress
from bert_horovod.storage.reading import check_type
from bert_horovod.storage.writing import sync

PATTERN = rf"shard-(\d{{5,}}|[0-9a-f]{{24}}-\d{{3,}}(\+\d+)?){SUFFIX.replace('.', '[.]')}"


_FINISHED = re.compile(rf"shard-\d{{5,}}{SUFFIX}")
_TOTALS = {each.name for each in fields(ShardTotals)}


@dataclass(frozen=True)
class Block:
    """One finished block, which may be empty (then it is left out of the store)."""

    task: str
    number: int
    end: tuple[int, int, int]  # the Position in the task after this block
    last: bool  # whether the task ends with it
    counts: dict[str, int]  # by the names of COUNTS
    totals: dict[str, Any]  # the fields of builder.ShardTotals
    passed_over: dict[str, int]  # what was left out of the sources: kind and count
    hashes: dict[int, str] = field(default_factory=dict)  # SHA-256 of files that are one piece, by piece number


@dataclass(frozen=True)
class BlockFile:
    """A file of one or more blocks, and its entry for the manifest but for the name."""

    blocks: tuple[Block, ...]
    entry: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its shard in an unfinished store."""
        return block_name(self.blocks[0].task, self.blocks[0].number, len(self.blocks))


def block_name(task: str, number: int, blocks: int = 1) -> str:
    """The name, in an unfinished store, of a shard of so many blocks, of which this is the first."""
    return f"shard-{task}-{number:03d}" + (f"+{blocks}" if blocks > 1 else "")


def write_block(store: Path, shard: Shard, totals: ShardTotals, **fields: Any) -> BlockFile:
    """Write a block under a temporary name, sync, rename."""
    lengths = (shard.documents, shard.sections, shard.sentences)
    numbers = (*(len(offsets) - 1 for offsets in lengths), len(shard.tokens), totals.bytes)
    block = Block(counts=dict(zip(COUNTS, numbers, strict=True)), totals=asdict(totals), **fields)
    return write_blocks(store, [block], [shard])


def write_blocks(store: Path, blocks: Sequence[Block], shards: Sequence[Shard]) -> BlockFile:
    """Write blocks with these arrays into one file; an earlier file of the same blocks is replaced."""
    # Number keys become strings, as in blocks that were read.
    described = json.loads(json.dumps([asdict(block) for block in blocks]))

    def record(sha256: str) -> bytes:
        return json.dumps({"sha256": sha256, "parts": described}, sort_keys=True).encode()

    name = block_name(blocks[0].task, blocks[0].number, len(blocks))
    temporary = store / f".{name}{SUFFIX}.partial"
    temporary.unlink(missing_ok=True)
    text_bytes = sum(block.counts["bytes"] for block in blocks)
    entry = write_shard(temporary, shards, text_bytes, record)
    os.replace(temporary, shard_file(store, name))
    sync(store)
    return BlockFile(tuple(blocks), entry | {"name": name})


def find_blocks(store: Path, tasks: Iterable[ShardTask]) -> list[BlockFile]:
    """Find the undamaged files of blocks of these tasks, and rename back finished ones; delete all other shards."""
    of_key = {task.key: task for task in tasks}
    whole: dict[tuple[str, int], BlockFile] = {}
    kept: list[tuple[Path, BlockFile]] = []
    for path, found in read_files(sorted(store.glob("shard-*"))).items():
        if found is not None and all(is_of(block, of_key.get(block.task)) for block in found.blocks):
            kept.append((path, found))
        else:
            path.unlink()
    for path, found in kept:
        os.replace(path, shard_file(store, found.name))
        for block in found.blocks:  # a block that was joined but not yet deleted is in two files
            if len(whole.get(key := (block.task, block.number), found).blocks) <= len(found.blocks):
                whole[key] = found
    return list({found.name: found for found in whole.values()}.values())


def is_of(block: Block, task: ShardTask | None) -> bool:
    """Whether a block that was read can be one of this task: it names no piece that the task lacks."""
    if task is None or block.end[0] > len(task.pieces):
        return False
    return all(int(number) < len(task.pieces) for number in (*block.totals["pieces"], *block.hashes))


def read_files(paths: list[Path]) -> dict[Path, BlockFile | None]:
    """The blocks in each of these files, compared with their hash; None for a damaged file."""
    sizes = [path.lstat().st_size for path in paths]
    # Hashing releases the GIL.
    with ReadingProgress("check", sum(sizes)) as progress, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        files = {}
        for path, size, found in zip(paths, sizes, threads.map(_read_blocks, paths), strict=True):
            files[path] = found
            progress.add(size)
    return files


def group_blocks(blocks: Sequence[Block], plan: Plan) -> list[list[Block]]:
    """The blocks of each shard, in order, without empty ones."""
    run_of = {task.key: number for number, run in enumerate(plan.runs) for task in run}
    groups: list[list[Block]] = []
    run, tokens = -1, 0
    for block in blocks:
        if not block.counts["tokens"]:
            continue
        tokens += block.counts["tokens"]
        if run != run_of[block.task] or len(groups[-1]) == plan.together or tokens > MOST_TOKENS:
            groups.append([])
            run, tokens = run_of[block.task], block.counts["tokens"]
        groups[-1].append(block)
    return groups


@dataclass(frozen=True)
class JoinJob:
    """Blocks to join to a shard, and the files that hold them."""

    store: Path
    blocks: tuple[Block, ...]
    files: tuple[BlockFile, ...]
    vocabulary_size: int


def join_blocks(job: JoinJob) -> BlockFile:
    """Write a shard of these blocks, and delete the files that held them alone."""
    joined = write_blocks(
        job.store, job.blocks, list(BlockArrays(job.store, job.blocks, job.files, job.vocabulary_size))
    )
    for file in job.files:
        if all(block in job.blocks for block in file.blocks):
            shard_file(job.store, file.name).unlink()
    return joined


def number_shards(store: Path, files: Sequence[BlockFile]) -> list[dict[str, Any]]:
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


class BlockArrays(Sequence[Shard]):
    """The arrays of blocks, in order, mapped where they are asked for; `files` hold them."""

    def __init__(self, store: Path, blocks: Sequence[Block], files: Iterable[BlockFile], vocabulary_size: int) -> None:
        self.store, self.blocks, self.files = store, list(blocks), list(files)
        self._vocabulary_size = vocabulary_size
        places = {(block.task, block.number): (file, i) for file in self.files for i, block in enumerate(file.blocks)}
        self._places = [places[block.task, block.number] for block in blocks]
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

    def replaced(self, number: int, block: Block, shard: Shard) -> "BlockArrays":
        """Write a block's file anew with other arrays of this block; returns the blocks after that."""
        file, place = self._places[number]
        blocks, shards = list(file.blocks), list(self._split(file.name))
        blocks[place], shards[place] = block, shard
        written = write_blocks(self.store, blocks, shards)
        files = [written if other is file else other for other in self.files]
        return BlockArrays(
            self.store, [*self.blocks[:number], block, *self.blocks[number + 1 :]], files, self._vocabulary_size
        )

    def joined(self, blocks: Sequence[Block]) -> "BlockFile | JoinJob":
        """The file that holds exactly these blocks, or the job that makes one."""
        files = {file.name: file for file in (self._files[block.task, block.number] for block in blocks)}
        [*others, file] = files.values()
        if not others and len(file.blocks) == len(blocks):
            return file
        return JoinJob(self.store, tuple(blocks), tuple(files.values()), self._vocabulary_size)


def blocks_by_task(files: Iterable[BlockFile]) -> dict[str, list[Block]]:
    """The blocks in these files by task, in order."""
    blocks: dict[str, dict[int, Block]] = {}
    for file in files:
        for block in file.blocks:
            blocks.setdefault(block.task, {})[block.number] = block
    return {task: [of_task[number] for number in sorted(of_task)] for task, of_task in blocks.items()}


def in_order(files: Iterable[BlockFile], tasks: Iterable[ShardTask]) -> list[Block]:
    """All blocks of these tasks, in order."""
    blocks = blocks_by_task(files)
    return [block for task in tasks for block in blocks[task.key]]


def missing_blocks(whole: Sequence[Block]) -> list[tuple[int, Position, int | None]]:
    """The runs of blocks that a task lacks: (first number, position where it begins, number of the next block or None).

    `whole` are those that it has, in order. None: no block comes after the run, which ends with the task.
    """
    runs: list[tuple[int, Position, int | None]] = []
    begin, expected = Position(), 0
    for block in whole:
        if block.number > expected:
            runs.append((expected, begin, block.number))
        begin, expected = Position(*block.end), block.number + 1
    if not whole or not whole[-1].last:
        runs.append((expected, begin, None))
    return runs


def _read_blocks(path: Path) -> BlockFile | None:
    """The blocks of a file; None if it is damaged."""
    try:
        described, record = describe_shard(path)
        check_type(record["parts"], list[Block], "parts")
        blocks = tuple(Block(**{**each, "end": tuple(each["end"])}) for each in record["parts"])
        for block in blocks:
            check_type(block.totals, ShardTotals, "totals")
            if block.counts.keys() != set(COUNTS) or block.totals.keys() != _TOTALS:
                raise ValueError("its counts are others")
        counts = {name: sum(block.counts[name] for block in blocks) for name in COUNTS}
        found = BlockFile(blocks, counts | {"parts": len(blocks)} | described)
        if path.name != f"{found.name}{SUFFIX}" and not _FINISHED.fullmatch(path.name):
            raise ValueError("its name is that of other blocks")
        return BlockFile(blocks, {"name": found.name} | found.entry)
    except (OSError, ValueError, LookupError):
        return None
