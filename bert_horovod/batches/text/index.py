"""The row index: a token store's windows for random access, and the templates by which they share rows.

    <store>/index/<hash>/              or <directory>/<hash>/
        index.json                     why a split has no rows, if so; SHA-256 of the small files
        verified.jsonl                 see index_check.py
        train/, held_out/
            start.npy                  uint32 [windows]   first token, counted from the first of the shard
            first.npy                  uint16 [windows]   tokens of the first segment
            by_length.npy              uint32 [windows]   windows, counted from the first of the shard
            windows_by_class.npy, windows_by_shard.npy    int64, the fields of RunningCounts
            cell_start.npy, cell_place.npy, cell_shard.npy    int64, int64, uint32 [cells]
            NAME.crcs.npy              uint32 [pages]             CRC-32 of each KiB of NAME's values, as above
            classes.npy                int64  [5, L + 1]          the fields of `Classes`, for each number 0 to L
            template_rows.npy          int64  [templates]         rows of an epoch made from each template
            template_lengths.npy       uint16 [templates, S]      positions of each sequence of such a row; 0: none

L is the sequence length, S the most sequences in a row. A window's class is the tokens of its second segment (0: there
is none). start and first have the windows of a shard after those of the shard before, sorted by class and then as in
the text; a window's number is its rank in the order by class, shard and text. Likewise by_length has the windows of a
shard sorted by the positions of their sequences, then by class and text, and a sequence's number is its rank by
positions, class, shard and text: sequences cell_start[i] and following, up to those of the next cell, are in shard
cell_shard[i], at by_length[cell_place[i]] and following. So each shard's part is made alone, and nothing is sorted over
all shards (see index_check.py).

The hash names the store, this format and the settings. A directory with that name is complete, because it is renamed
into place. All arrays are memory-mapped, so a host's processes share them, and a process's memory is what its rows
touch.
"""

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.packing import Templates
from bert_horovod.batches.text.crews import Crew
from bert_horovod.batches.text.cutting import SPLITS, Classes
from bert_horovod.batches.text.index_check import CheckedArray, RunningCounts, read_description, read_split
from bert_horovod.batches.text.making import make_index
from bert_horovod.corpus.store import Store
from bert_horovod.errors import RunError, UserError


class NoRows(UserError):
    """A split of a store has no rows of the wished kind."""


FORMATS = {"none": 6, "next_sentence": 6, "sentence_order": 7}  # versions of files and windows, by objective.pair


class WindowsAt(NamedTuple):
    """Windows; int64 [n] each."""

    number: np.ndarray
    shard: np.ndarray
    start: np.ndarray  # first token, in the shard
    first: np.ndarray  # tokens of the first segment
    second: np.ndarray  # tokens of the second segment; 0: there is none


@dataclass(frozen=True)
class RowIndex:
    """An opened index; its large arrays (see the module's docstring) are mapped, and compared where they are read."""

    path: Path
    sequence_length: int
    pair: str
    start: CheckedArray
    first: CheckedArray
    by_length: CheckedArray
    cell_start: CheckedArray
    cell_place: CheckedArray
    cell_shard: CheckedArray
    order: RunningCounts  # of windows
    classes: Classes
    templates: Templates

    @functools.cached_property
    def rows(self) -> int:
        """Rows of an epoch."""
        return int(self.templates.rows.sum())

    @property
    def windows(self) -> int:
        """Number of windows: sequences of an epoch."""
        return len(self.start)

    @property
    def sequences(self) -> int:
        """S, the most sequences in a row."""
        return self.templates.lengths.shape[1]

    def of_sequences(self, numbers: np.ndarray) -> WindowsAt:
        """The windows of sequences by their numbers: int64 [n]."""
        cell = self.cell_start.find(numbers)
        place = self.by_length[self.cell_place[cell] + numbers - self.cell_start[cell]].astype(np.int64)
        place += self.order.by_shard[self.cell_shard[cell].astype(np.int64) * self.order.classes]
        number, shard, second = self.order.numbers(place)
        return WindowsAt(number, shard, *self._at(place), second)

    def of_windows(self, numbers: np.ndarray) -> WindowsAt:
        """Windows by their numbers: int64 [n]."""
        place, shard, second = self.order.places(numbers)
        return WindowsAt(numbers, shard, *self._at(place), second)

    def _at(self, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.start[place].astype(np.int64), self.first[place].astype(np.int64)


def index_path(store: Store, sequence_length: int, pair: str, packing: bool, directory: Path | None) -> Path:
    """Where the index of a store with these settings is or will be; `directory`: as in open_index."""
    settings = {
        "store": store.hash,
        "format": FORMATS[pair],
        "sequence_length": sequence_length,
        "pair": pair,
        "packing": packing,
    }
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
    return (directory or store.path / "index") / name


def open_index(
    store: Store,
    sequence_length: int,
    pair: str,
    packing: bool,
    split: str = "train",
    directory: str | Path | None = None,
    build: bool = True,
) -> RowIndex:
    """Open the row index of a store, and make it first, alone, if it is missing.

    `directory` is where indexes are kept; None: in `index/` of the store. With `build` a missing index is made, and one
    that is there is checked: one process per host does it. Raises NoRows, a UserError, if the split has no windows, or
    no pairs, or for next-sentence pairs only one document; RunError if the index is missing and not to be built, or
    cannot be written (UserError if the path is at fault); DamagedData if it is damaged.
    """
    if split not in SPLITS or not 4 <= sequence_length < 1 << 16:
        raise ValueError(
            f"open_index: split = {split!r}, sequence_length = {sequence_length}: "
            f"expected one of {SPLITS} and 4 to {(1 << 16) - 1}"
        )
    path = index_path(store, sequence_length, pair, packing, None if directory is None else Path(directory))
    if not path.is_dir():
        if not build:
            raise RunError(
                f"{path} is missing: the process that builds the row index has failed, or has another file "
                "system; run again, or name a directory that a host's processes share with --index_dir"
            )
        make_index(store, path, sequence_length, pair, packing, Crew(), missing=True)
    description = read_description(path)
    if refusal := description["refusals"].get(split):
        raise NoRows(f"{store.path} {refusal}")
    shards = len(store.manifest["shards"])
    arrays = read_split(path, split, sequence_length, shards, description["sha256"] if build else None)
    order = RunningCounts(arrays.pop("windows_by_class"), arrays.pop("windows_by_shard"), shards)
    classes = Classes(*arrays.pop("classes"))
    templates = Templates(arrays.pop("template_rows"), arrays.pop("template_lengths"))
    return RowIndex(path, sequence_length, pair, **arrays, order=order, classes=classes, templates=templates)
