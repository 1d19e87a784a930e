"""Cuts a corpus into tasks: runs of pieces with shards of their own, so any worker can do any task, in any order."""

import hashlib
import heapq
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from bert_horovod.corpus.reading.pieces import Piece, split_source
from bert_horovod.corpus.reading.sources import SourceFile
from bert_horovod.corpus.reading.text import SECTION_BYTES
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED, TokenizerSettings
from bert_horovod.errors import UserError

_MAXIMUM_SHARD_BYTES = 1 << 31  # offsets are uint32
# Bytes of text per compressed byte on the disk, a rough estimate: it only makes tasks of similar size.
_COMPRESSED_TEXT = 3
_MOST_SHARDS = 1000  # of more blocks, several make a shard


@dataclass(frozen=True)
class Settings:
    """The settings that determine a store's content, together with its sources and its vocabulary."""

    documents: str = "file"  # where a plain text's documents end: one of text.DOCUMENTS
    held_out: float = 0.01  # fraction of sections
    shard_bytes: int = 32 << 20  # of text
    section_bytes: int = SECTION_BYTES  # of text, at most; only recorded, because sections are always cut at this size
    text_field: str = "text"  # key in JSON Lines, or column of a table, that holds the text
    bad_lines: str | None = None  # "stop", "skip" or None, as SourceReader takes it
    tokenizer: TokenizerSettings = UNCASED  # how text is normalised and cut, as the model was or will be trained

    def described(self) -> dict[str, Any]:
        """The settings as the manifest has them, but those of the tokenizer, which stand with the vocabulary.

        text_field and bad_lines are left out at their defaults, because stores older than these settings lack them.
        """
        table = asdict(self)
        del table["tokenizer"]
        unset = {"text_field": "text", "bad_lines": None}
        return {name: value for name, value in table.items() if name not in unset or value != unset[name]}

    def check(self) -> None:
        """Raise UserError for a value that makes no sense."""
        if not 0 <= self.held_out <= 0.5:
            raise UserError(f"--held_out {self.held_out}: expected a fraction from 0 to 0.5")
        if not 1 <= self.shard_bytes <= _MAXIMUM_SHARD_BYTES:
            raise UserError(f"--shard_bytes {self.shard_bytes}: expected 1 to {_MAXIMUM_SHARD_BYTES}")


class Position(NamedTuple):
    """How much of a task has been read."""

    piece: int = 0  # the piece that comes next, or is being read
    documents: int = 0  # documents taken from that piece
    sections: int = 0  # sections taken from the document after those


@dataclass(frozen=True)
class ShardTask:
    """Pieces that are read one after another; `key` names their content, the settings and the vocabulary."""

    key: str
    pieces: tuple[Piece, ...]
    text_bytes: int  # as far as the sizes of files tell

    @property
    def bytes(self) -> int:
        """Bytes to read, as they lie on the disk."""
        return sum(piece.end - piece.begin for piece in self.pieces)


def plan_tasks(sources: list[SourceFile], head: dict[str, Any]) -> list[ShardTask]:
    """Cut sources into tasks of about one shard each.

    Large files are cut into pieces where that is possible, small files are put together. The plan depends on the
    sources' names and sizes and on `head` (a manifest's settings and vocabulary) alone.
    """
    settings = head["settings"]
    groups: list[list[Piece]] = []
    bytes_of_groups: list[int] = []
    for source in sources:
        factor = _COMPRESSED_TEXT if source.compression or source.path.suffix.lower() == ".parquet" else 1
        for piece in split_source(source, settings["documents"], max(1, settings["shard_bytes"] // factor)):
            text_bytes = (piece.end - piece.begin) * factor
            if not groups or bytes_of_groups[-1] + text_bytes > settings["shard_bytes"]:
                groups.append([])
                bytes_of_groups.append(0)
            groups[-1].append(piece)
            bytes_of_groups[-1] += text_bytes
    seen: Counter[str] = Counter()
    tasks = []
    for group, text_bytes in zip(groups, bytes_of_groups, strict=True):
        described = [[piece.source.name, piece.source.bytes, piece.begin, piece.end] for piece in group]
        text = json.dumps([head, described], sort_keys=True)
        # Files of one name and size from different directories get different keys by their order.
        key = hashlib.sha256(f"{seen[text]} {text}".encode()).hexdigest()[:24]
        seen[text] += 1
        tasks.append(ShardTask(key, tuple(group), text_bytes))
    return tasks


@dataclass(frozen=True)
class Plan:
    """The work of making a store's shards, or a part of it."""

    runs: list[list[ShardTask]]  # of consecutive tasks, whose blocks make shards of their own
    together: int  # blocks of a shard, at most
    to_hash: list[SourceFile]  # sources that are read in pieces, whose hashes no task yields

    @property
    def tasks(self) -> list[ShardTask]:
        """All tasks, in order."""
        return [task for run in self.runs for task in run]


def plan_shards(sources: list[SourceFile], head: dict[str, Any]) -> Plan:
    """Cut sources into tasks, and these into runs, for about a thousand shards at most.

    The plan alone decides which blocks share a shard, so that shards of any run can be made without the others.
    """
    tasks = plan_tasks(sources, head)
    expected_blocks = [max(1, -(-task.text_bytes // head["settings"]["shard_bytes"])) for task in tasks]
    together = -(-sum(expected_blocks) // _MOST_SHARDS)
    runs: list[list[ShardTask]] = []
    blocks_of_run = 0
    for task, blocks in zip(tasks, expected_blocks, strict=True):
        if not runs or blocks_of_run + blocks > together:
            runs.append([])
            blocks_of_run = 0
        runs[-1].append(task)
        blocks_of_run += blocks
    cut = (piece.source for task in tasks for piece in task.pieces if not piece.is_whole)
    return Plan(runs, together, list(dict.fromkeys(cut)))


_MOST_PARTS = 10_000
_HASHED_BYTES = 64  # are read to hash a file in the time in which one byte becomes tokens


@dataclass(frozen=True)
class Part:
    """Part `number`, from 1, of `of`."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def find_part(given: str | bool, environment: Mapping[str, str]) -> Part:
    """What --part names: "3/16"; True, for no value, in a SLURM array, "/16" in an Indexed Job of Kubernetes.

    In these two, variables tell K, and this function prints it. Raises UserError for anything else.
    """
    expected = (
        "expected K/N, part K of N; --part alone in a SLURM array; --part /N in an Indexed Job of Kubernetes with N "
        "completions"
    )
    number: int | None
    if isinstance(given, bool):
        names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "MAX", "STEP", "COUNT")]
        if "SLURM_ARRAY_TASK_ID" not in environment:
            raise UserError(f"--part without a value, and SLURM_ARRAY_TASK_ID is not set; {expected}")
        try:
            task, first, last, step, count = (int(environment[name]) for name in names)
        except (KeyError, ValueError) as error:
            raise UserError(f"--part: the variables of a SLURM array are not as SLURM sets them ({error})") from error
        if step < 1 or (last - first) // step + 1 != count:
            raise UserError(f"--part: {count} tasks of a SLURM array from {first} to {last} have gaps; {expected}")
        number, of, source = (task - first) // step + 1, count, f"SLURM_ARRAY_TASK_ID={task}, {count} tasks"
    elif match := re.fullmatch(r"(\d{1,9})?/(\d{1,9})", given):
        number, of, source = int(match[1]) if match[1] else None, int(match[2]), ""
        if number is None:
            index = environment.get("JOB_COMPLETION_INDEX", "")
            if not index.isdecimal():
                raise UserError(f"--part {given}, and JOB_COMPLETION_INDEX is not set; {expected}")
            number, source = int(index) + 1, f"JOB_COMPLETION_INDEX={index}"
    else:
        raise UserError(f"--part {given}: {expected}")
    if not 1 <= number <= of <= _MOST_PARTS:
        raise UserError(f"--part: part {number} of {of}; expected 1 to N of at most {_MOST_PARTS:,}")
    if source:
        print(f"--part {number}/{of} ({source})", flush=True)
    return Part(number, of)


def part_plan(plan: Plan, of: int) -> list[Plan]:
    """The parts of a plan, about equal in work: whole runs of tasks and files to hash, the largest dealt out first."""
    runs = len(plan.runs)
    costs = [sum(task.text_bytes for task in run) for run in plan.runs]
    costs += [source.bytes // _HASHED_BYTES for source in plan.to_hash]
    loads = [(0, number) for number in range(of)]
    dealt: list[list[int]] = [[] for _ in range(of)]
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        load, number = loads[0]
        heapq.heapreplace(loads, (load + max(1, costs[item]), number))
        dealt[number].append(item)
    return [
        Plan(
            [plan.runs[item] for item in sorted(items) if item < runs],
            plan.together,
            [plan.to_hash[item - runs] for item in sorted(items) if item >= runs],
        )
        for items in dealt
    ]
