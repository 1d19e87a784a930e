"""Reads the files of a row index and checks them; index.py describes the arrays.

Small files are compared with their SHA-256 at each start. Tables, and files with an element for each window, grow with
the text; they are compared with their SHA-256 or CRC-32s where size, inode or time of change is not what
`verified.jsonl` remembers: after a copy to another disk, or if somebody wrote to them.

Elements sorted by class over all shards, while each shard keeps its own together: numbers and places. An element's
number is its rank if all are sorted by class, those of a class by shard and then as in the shard: a stable counting
sort. Its place is where it lies if each shard's elements, sorted by class, lie after those of the shard before. Sums of
the counts by shard and class turn one into the other, so that nothing is sorted over shards.
"""

import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.batches.text.cutting import Classes
from bert_horovod.corpus.store import Store
from bert_horovod.errors import ReportedError, damaged
from bert_horovod.runtime.reading_progress import ReadingProgress
from bert_horovod.storage.reading import Verified, hash_file, identity, load_array, read_record

TABLES = ("windows_by_class", "windows_by_shard", "cell_start", "cell_place", "cell_shard")  # for each class and shard
LARGE = {"start": np.uint32, "first": np.uint16, "by_length": np.uint32}  # an element for each window
RECORD = "verified.jsonl"


def read_description(path: Path) -> dict[str, Any]:
    """Read index.json: `refusals` (why a split has no rows) and `sha256` of small files; raises ReportedError."""
    file = path / "index.json"
    try:
        description = read_record(file, dict[str, dict[str, str]], inside=path)
        if description.keys() != {"refusals", "sha256"}:
            raise ValueError("expected refusals and sha256")
    except (OSError, ValueError) as error:
        raise _damage(error, file, path) from error
    return description


def read_split(
    path: Path, split: str, sequence_length: int, shards: int, check: dict[str, str] | None
) -> dict[str, Any]:
    """Map the arrays of a split by name; raises ReportedError."""
    cells = shards * (sequence_length + 1) + 1
    arrays: dict[str, np.ndarray] = {}
    file = path / split
    record = Verified(path / RECORD)
    known = record.names() if check is not None else {}
    try:
        for name, dtype, shape in (
            *((name, dtype, (None,)) for name, dtype in LARGE.items()),
            ("classes", np.int64, (5, sequence_length + 1)),
            ("template_rows", np.int64, (None,)),
            ("template_lengths", np.uint16, (None, None)),
            ("windows_by_class", np.int64, (cells,)),
            ("windows_by_shard", np.int64, (cells,)),
            ("cell_start", np.int64, (None,)),
            ("cell_place", np.int64, (None,)),
            ("cell_shard", np.uint32, (None,)),
            ("crcs", np.uint32, (shards, len(LARGE))),
        ):
            file = path / split / f"{name}.npy"
            arrays[name] = load_array(file, dtype, shape, inside=path)
            seen, named = identity([file]), f"{split}/{name}.npy"
            if check is None or name in LARGE or (name in TABLES and known.get(named) == seen):
                continue
            if check.get(named) != hash_file(file):
                raise ValueError("its SHA-256 is another")
            if name in TABLES:
                record.remember(named, seen)
        for name in LARGE:
            file = path / split / f"{name}.npy"
            if len(arrays[name]) != arrays["windows_by_shard"][-1]:
                raise ValueError(f"it has {len(arrays[name]):,} values, expected {arrays['windows_by_shard'][-1]:,}")
        if check is not None:
            _check_large(path, split, arrays, sequence_length + 1, record, known)
    except (OSError, ValueError) as error:
        raise _damage(error, file, path) from error
    return arrays


def _check_large(
    path: Path, split: str, arrays: dict[str, np.ndarray], classes: int, record: Verified, known: dict[str, list[int]]
) -> None:
    files = {f"{split}/{name}.npy": path / split / f"{name}.npy" for name in LARGE}
    seen = {name: identity([file]) for name, file in files.items()}
    if all(known.get(name) == seen[name] for name in files):
        return
    crcs, bounds = arrays["crcs"], np.asarray(arrays["windows_by_shard"][::classes])
    jobs = [(i, name, shard) for i, name in enumerate(LARGE) for shard in range(len(crcs))]

    def check(job: tuple[int, str, int]) -> None:
        i, name, shard = job
        values = arrays[name][bounds[shard] : bounds[shard + 1]]
        if zlib.crc32(values.data) != crcs[shard, i]:
            raise _damage(ValueError("its CRC is another"), files[f"{split}/{name}.npy"], path)
        progress.add(values.nbytes)

    total = sum(arrays[name].nbytes for name in LARGE)
    # The CRC releases the GIL.
    with ReadingProgress("checking the row index", total) as progress, ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(check, jobs))
    for name, numbers in seen.items():
        record.remember(name, numbers)


def _damage(error: Exception, file: Path, path: Path) -> ReportedError:
    return damaged(error, file, f"remove {path} and run again: it is made anew")


def refusal(store: Store, pair: str, sequence_length: int, split: str, counts: Classes, documents: int) -> str | None:
    """Why a split has too few windows, if it has; the message goes on after the store's path."""
    held_out = split == "held_out"
    which_rows = "held-out " if held_out else ""
    if not counts.windows.any() and held_out:
        return "has no held-out sections; prepare the data with a larger --held_out"
    if not counts.windows.any():
        return (
            "has nothing to train on: every section is held out or repeats another; "
            "prepare the data with a smaller --held_out"
        )
    if pair == "next_sentence" and documents < 2:
        return (
            f"has one {which_rows}document; next-sentence pairs need at least two, since a wrong second "
            'segment comes from another document; prepare more, or set objective.pair = "sentence_order" or "none"'
        )
    if pair != "none" and not counts.windows[1:].any():
        if _most_sentences(store, held_out) < 2:
            return (
                f"has no {which_rows}section of a document with two sentences, so that there are no pairs; set "
                'objective.pair = "none", or prepare texts with documents of several sentences (with --documents '
                "blank_line a blank line ends a document)"
            )
        return (
            f"has no two {which_rows}sentences that fit into sequence_length = {sequence_length} "
            'together, so that there are no pairs; set objective.pair = "none", or a larger sequence_length'
        )
    return None


def _most_sentences(store: Store, held_out: bool) -> int:
    """The most sentences of a section of the split."""
    sections = ((np.diff(shard.sections), np.asarray(shard.held_out)) for shard in store.shards)
    return max(int(sentences[held == held_out].max(initial=0)) for sentences, held in sections)


class Found(NamedTuple):
    """Elements; int64 [n] each."""

    to: np.ndarray  # the place of a number, or the number of a place
    shard: np.ndarray
    of_class: np.ndarray


@dataclass(frozen=True)
class RunningCounts:
    """How many elements lie before each cell (a class of a shard), in both orders; the last entry is their number.

    The arrays may be memory-mapped: what is asked for is read.
    """

    by_class: np.ndarray  # int64 [classes * shards + 1], cell = class * shards + shard
    by_shard: np.ndarray  # int64 [shards * classes + 1], cell = shard * classes + class
    shards: int

    @classmethod
    def of(cls, counts: np.ndarray) -> "RunningCounts":
        """Sum up counts, int64 [shards, classes]."""
        by_class, by_shard = (np.concatenate(([0], np.cumsum(cells))) for cells in (counts.T.ravel(), counts.ravel()))
        return cls(by_class, by_shard, len(counts))

    @property
    def classes(self) -> int:
        return (len(self.by_class) - 1) // self.shards

    def places(self, numbers: np.ndarray) -> Found:
        """Find elements by number: int64 [n]."""
        cell = np.searchsorted(self.by_class, numbers, side="right") - 1
        of_class, shard = np.divmod(cell, self.shards)
        return Found(self.by_shard[shard * self.classes + of_class] + numbers - self.by_class[cell], shard, of_class)

    def numbers(self, places: np.ndarray) -> Found:
        """Find elements by place: int64 [n]."""
        cell = np.searchsorted(self.by_shard, places, side="right") - 1
        shard, of_class = np.divmod(cell, self.classes)
        return Found(self.by_class[of_class * self.shards + shard] + places - self.by_shard[cell], shard, of_class)

    def first(self, shard: int) -> int:
        """The place of a shard's first element."""
        return int(self.by_shard[shard * self.classes])
