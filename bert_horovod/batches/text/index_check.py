"""Reads the files of a row index and checks them; index.py describes the arrays.

Small files are compared with their SHA-256 at each start. Arrays that grow with the text are compared page by page with
their CRC-32s whenever a row reads a page; and whole at a start where size, inode or time of change is not what
`verified.jsonl` remembers: after a copy to another disk, or if somebody wrote to them.

Elements sorted by class over all shards, while each shard keeps its own together: numbers and places. An element's
number is its rank if all are sorted by class, those of a class by shard and then as in the shard: a stable counting
sort. Its place is where it lies if each shard's elements, sorted by class, lie after those of the shard before. Sums of
the counts by shard and class turn one into the other, so that nothing is sorted over shards.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.batches.text.cutting import Classes
from bert_horovod.corpus.reading.sequences import token_letters
from bert_horovod.corpus.store import Store
from bert_horovod.errors import ReportedError, damaged
from bert_horovod.runtime.reading_progress import ReadingProgress
from bert_horovod.storage.reading import Verified, hash_file, identity, load_array, read_record

LARGE = {"start": np.uint32, "first": np.uint16, "by_length": np.uint32}  # an element for each window
TABLES = dict.fromkeys(("windows_by_class", "windows_by_shard", "cell_start", "cell_place"), np.int64)
TABLES |= {"cell_shard": np.uint32}  # for each class and shard
RECORD = "verified.jsonl"
CRC_BYTES = 1024  # of a page: a row reads a value here and there, so larger pages cost more than reading them


class CheckedArray:
    """A mapped array whose pages are compared with their CRC-32s whenever they are read; raises DamagedData."""

    def __init__(self, values: np.ndarray, crcs: np.ndarray, file: Path, path: Path) -> None:
        self.values, self._file, self._path = values, file, path
        self._bytes, self._crcs = values.view(np.uint8).data, crcs.data
        self._a_page = CRC_BYTES // values.itemsize

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """The values at places: int64 [n], from 0."""
        self.compare({*(places // self._a_page).tolist()})
        return self.values[places]

    def find(self, numbers: np.ndarray) -> np.ndarray:
        """For each number, int64 [n], the last place whose value is at most the number; the values do not fall."""
        places = np.searchsorted(self.values, numbers, side="right") - 1
        # A search ends between two values that it has read: if these are right, so is the place.
        low, high = np.maximum(places, 0), np.minimum(places + 1, len(self) - 1)
        self.compare({*(low // self._a_page).tolist(), *(high // self._a_page).tolist()})
        return places

    def compare(self, pages: Iterable[int] | None = None) -> None:
        """Compare pages by their numbers, or all."""
        content, crcs, crc32 = self._bytes, self._crcs, zlib.crc32  # looked up once
        for page in range(len(crcs)) if pages is None else pages:
            if crc32(content[page * CRC_BYTES : (page + 1) * CRC_BYTES]) != crcs[page]:
                raise _damage(ValueError(f"page {page:,} of its values has another CRC"), self._file, self._path)


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
    """Map the arrays of a split by name, those of LARGE and TABLES as CheckedArrays; raises ReportedError."""
    cells = shards * (sequence_length + 1) + 1
    arrays: dict[str, Any] = {}
    file = path / split
    try:
        for name, dtype, shape in (
            ("classes", np.int64, (5, sequence_length + 1)),
            ("template_rows", np.int64, (None,)),
            ("template_lengths", np.uint16, (None, None)),
        ):
            file = path / split / f"{name}.npy"
            arrays[name] = load_array(file, dtype, shape, inside=path)
            if check is not None and check.get(f"{split}/{name}.npy") != hash_file(file):
                raise ValueError("its SHA-256 is another")
        checked: dict[str, CheckedArray] = {}
        for name, dtype in (LARGE | TABLES).items():
            crcs = load_array(file := path / split / f"{name}.crcs.npy", np.uint32, (None,), inside=path)
            values = load_array(
                file := path / split / f"{name}.npy", dtype, (cells if "windows" in name else None,), inside=path
            )
            if len(crcs) != -(-values.nbytes // CRC_BYTES):
                raise ValueError(f"it has {values.nbytes:,} bytes of values, but {len(crcs):,} CRCs")
            checked[name] = CheckedArray(values, crcs, file, path)
        if check is not None:
            _check_changed(path, split, checked)
        windows = int(checked["windows_by_shard"][np.array([cells - 1])][0])
        for name in LARGE:
            file = path / split / f"{name}.npy"
            if len(checked[name]) != windows:
                raise ValueError(f"it has {len(checked[name]):,} values, expected {windows:,}")
    except (OSError, ValueError) as error:
        raise _damage(error, file, path) from error
    return arrays | checked


def _check_changed(path: Path, split: str, arrays: dict[str, CheckedArray]) -> None:
    """Compare all pages of the arrays whose files are not those that were compared before."""
    record = Verified(path / RECORD)
    known, seen = record.names(), {name: identity([path / split / f"{name}.npy"]) for name in arrays}
    changed = [name for name in arrays if known.get(f"{split}/{name}.npy") != seen[name]]
    with ReadingProgress("checking the row index", sum(arrays[name].values.nbytes for name in changed)) as progress:
        for name in changed:
            arrays[name].compare()
            progress.add(arrays[name].values.nbytes)
            record.remember(f"{split}/{name}.npy", seen[name])


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
            is_prose = not token_letters(store.manifest["settings"].get("documents", ""))
            several = (
                ", or prepare texts with documents of several sentences (with --documents blank_line a blank line "
            )
            return (
                f"has no {which_rows}section of a document with two sentences, so that there are no pairs; set "
                f'objective.pair = "none"{f"{several}ends a document)" * is_prose}'
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
    """How many elements lie before each cell (a class of a shard), in both orders; the last entry is their number."""

    by_class: CheckedArray  # int64 [classes * shards + 1], cell = class * shards + shard
    by_shard: CheckedArray  # int64 [shards * classes + 1], cell = shard * classes + class
    shards: int

    @property
    def classes(self) -> int:
        return (len(self.by_class) - 1) // self.shards

    def places(self, numbers: np.ndarray) -> Found:
        """Find elements by number: int64 [n]."""
        cell = self.by_class.find(numbers)
        of_class, shard = np.divmod(cell, self.shards)
        return Found(self.by_shard[shard * self.classes + of_class] + numbers - self.by_class[cell], shard, of_class)

    def numbers(self, places: np.ndarray) -> Found:
        """Find elements by place: int64 [n]."""
        cell = self.by_shard.find(places)
        shard, of_class = np.divmod(cell, self.classes)
        return Found(self.by_class[of_class * self.shards + shard] + places - self.by_shard[cell], shard, of_class)
