"""The row index: a token store's windows, sorted for random access, and the templates by which they share rows.

    <store>/index/<hash>/             or <directory>/<hash>/
        start.npy              uint32 or int64 [windows]    first token, counted over all shards
        first.npy              uint16 [windows]             tokens of the first segment
        by_length.npy          uint32 or int64 [windows]    window numbers, sorted by the positions of their sequences
        classes.npy            int64  [5, L + 1]            the fields of `Classes`, for each number 0 to L
        template_rows.npy      int64  [templates]           rows of an epoch made from each template
        template_lengths.npy   uint16 [templates, S]        positions of each sequence of such a row; 0: none
        hashes.json            SHA-256 of each of these files

L is the sequence length, S the most sequences in a row. Windows are sorted by the tokens of their second segment (0:
there is none) and then as in the store, so a window's number tells the length of its second segment. The hash names the
store, this format and the settings. A directory with that name is complete, because it is renamed into place. All
arrays are memory-mapped, so a host's processes share them. The process that may build an index also checks it, as
index_check.py says.
"""

import bisect
import functools
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.packing import Templates, fill, pack, single
from bert_horovod.batches.text.index_check import ARRAYS, narrow, positions_of, read_arrays
from bert_horovod.batches.text.windows import Windows, cut_windows
from bert_horovod.corpus.statistics import kept_sections
from bert_horovod.corpus.store import Store
from bert_horovod.errors import RunError, UserError, file_error
from bert_horovod.storage.reading import hash_file
from bert_horovod.storage.writing import sync, write_atomically

FORMATS = {"none": 3, "next_sentence": 3, "sentence_order": 4}  # versions of files and windows, by objective.pair
SPLITS = ("train", "held_out")
_CHUNK = 1 << 20  # windows sorted at once
# Possible shares of windows drawn short (see windows.py). The smallest that fills enough of the rows is taken, because
# short windows cost context.
_SHORT_SHARES = tuple(step / 50 for step in range(41))
_ENOUGH_FILL = 0.98  # share of positions that hold a sequence
_SAMPLED_PARTS = 8


class Classes(NamedTuple):
    """Counts for each number of tokens or positions, int64 [L + 1] each."""

    windows: np.ndarray  # windows with so many tokens in the second segment: a class
    largest_run: np.ndarray  # the most windows of the class that are of one document
    run_end: np.ndarray  # where that document's windows end, counted from the first of the class
    sequences: np.ndarray  # sequences with so many positions, [CLS] and [SEP] included
    tokens: np.ndarray  # the most tokens of a sequence with so many positions


@dataclass(frozen=True)
class RowIndex:
    """An opened index; its arrays (see the module's docstring) are memory-mapped, not loaded."""

    path: Path
    sequence_length: int
    pair: str
    packing: bool
    split: str
    start: np.ndarray
    first: np.ndarray
    by_length: np.ndarray
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


def open_index(
    store: Store,
    sequence_length: int,
    pair: str,
    packing: bool,
    split: str = "train",
    directory: str | Path | None = None,
    build: bool = True,
) -> RowIndex:
    """Open the row index of a store, and build it first if it is missing.

    Args:
        store: the token store.
        sequence_length: positions per row, [CLS] and [SEP] included.
        pair: the recipe's objective.pair.
        packing: whether several sequences share a row.
        split: "train" or "held_out".
        directory: where indexes are kept; None: in `index/` of the store.
        build: whether to build a missing index; one process per host builds, the others wait for it and open.

    Raises:
        UserError: the split has no windows, or no pairs, or for next-sentence pairs only one document.
        DamagedData: the index is damaged.
        RunError: it is missing and not to be built, or cannot be written (UserError if the path is at fault).
    """
    if split not in SPLITS or not 4 <= sequence_length < 1 << 16:
        raise ValueError(
            f"open_index: split = {split!r}, sequence_length = {sequence_length}: "
            f"expected one of {SPLITS} and 4 to {(1 << 16) - 1}"
        )
    settings = {
        "store": store.hash,
        "format": FORMATS[pair],
        "sequence_length": sequence_length,
        "pair": pair,
        "packing": packing,
        "split": split,
    }
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
    path = (Path(directory) if directory is not None else store.path / "index") / name
    if not path.is_dir():
        if not build:
            raise RunError(
                f"{path} is missing: the process that builds the row index has failed, or has another file "
                "system; run again, or name a directory that a host's processes share with --index_dir"
            )
        _build(_Cutter(store, sequence_length, pair, split), packing, path)
    arrays = read_arrays(path, sequence_length, store.manifest["totals"]["tokens"], check=build)
    classes = Classes(*arrays.pop("classes"))
    templates = Templates(arrays.pop("template_rows"), arrays.pop("template_lengths"))
    return RowIndex(path, sequence_length, pair, packing, split, **arrays, classes=classes, templates=templates)


@dataclass(frozen=True)
class _Cutter:
    """Cuts one split of a store."""

    store: Store
    sequence_length: int
    pair: str
    split: str

    def windows(self, short_share: float, parts: list[int] | None = None) -> Iterator[tuple[int, Windows]]:
        """Yield (tokens of the store before a part, the part's windows), for the parts of these numbers or all."""
        limit = self.sequence_length - (2 if self.pair == "none" else 3)
        tokens = number = 0
        for place, shard in enumerate(self.store.shards):
            chosen = kept_sections(shard, self.store.repeated(place))
            chosen &= np.asarray(shard.held_out) == (self.split == "held_out")
            sections = 0
            for part in shard.split():
                of_part = chosen[sections : sections + len(part.held_out)]
                if parts is None or number in parts:
                    yield tokens, cut_windows(part, limit, of_part, self.pair, short_share, tokens)
                tokens, sections, number = tokens + len(part.tokens), sections + len(part.held_out), number + 1


def _build(cutter: _Cutter, packing: bool, path: Path) -> None:
    """Write an index under a temporary name, sync, rename."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        temporary.mkdir(parents=True)
        _write(cutter, packing, temporary)
        try:
            os.rename(temporary, path)
        except OSError:
            if not path.is_dir():  # else another host was faster, and its index is the same
                raise
    except OSError as error:
        raise file_error(
            error,
            f"cannot write the row index to {path.parent}: {error.strerror or error}; "
            "name a directory that can be written, local to each host, with --index_dir",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(cutter: _Cutter, packing: bool, directory: Path) -> None:
    """Cut the store twice, to count and then to sort: memory holds one shard, and each window is written once."""
    length = cutter.sequence_length
    short_share = _short_share(cutter) if packing else 0.0
    classes = _count(cutter, short_share)
    templates = pack(classes.sequences, length) if packing else single(classes.sequences)
    tokens = cutter.store.manifest["totals"]["tokens"]
    windows = int(classes.windows.sum())
    start = _create(directory / "start.npy", narrow(tokens), (windows,))
    first = _create(directory / "first.npy", np.uint16, (windows,))
    by_length = _create(directory / "by_length.npy", narrow(windows), (windows,))
    next_place = np.cumsum(classes.windows) - classes.windows
    for base, cut in cutter.windows(short_share):
        places = _sorted_places(cut.second, next_place)
        start[places] = base + cut.start
        first[places] = cut.first
    class_end = np.cumsum(classes.windows)
    next_place = np.cumsum(classes.sequences) - classes.sequences
    for low in range(0, windows, _CHUNK):
        numbers = np.arange(low, min(low + _CHUNK, windows))
        second = np.searchsorted(class_end, numbers, side="right")
        by_length[_sorted_places(positions_of(first[numbers].astype(np.int64), second), next_place)] = numbers
    written = [start, first, by_length]
    for name, values in zip(ARRAYS[3:], (np.stack(classes), templates.rows, templates.lengths), strict=True):
        written.append(_create(directory / f"{name}.npy", values.dtype, values.shape))
        written[-1][...] = values
    for name, array in zip(ARRAYS, written, strict=True):
        array.flush()
        sync(directory / f"{name}.npy")
    hashes = {name: hash_file(directory / f"{name}.npy") for name in ARRAYS}
    write_atomically(directory / "hashes.json", json.dumps(hashes, indent=1) + "\n")


def _short_share(cutter: _Cutter) -> float:
    """Find the share of windows to draw short, on a sample of parts from all over the store."""
    number = sum(shard_entry.get("parts", 1) for shard_entry in cutter.store.manifest["shards"])
    sampled = sorted({number * i // _SAMPLED_PARTS for i in range(_SAMPLED_PARTS)})

    def enough(share: float) -> bool:
        histogram = np.zeros(cutter.sequence_length + 1, np.int64)
        for _, cut in cutter.windows(share, sampled):
            histogram += np.bincount(positions_of(cut.first, cut.second), minlength=len(histogram))
        return fill(pack(histogram, cutter.sequence_length), cutter.sequence_length) >= _ENOUGH_FILL

    # A binary search, because the fill rises with the share.
    return _SHORT_SHARES[min(bisect.bisect_left(_SHORT_SHARES, True, key=enough), len(_SHORT_SHARES) - 1)]


def _count(cutter: _Cutter, short_share: float) -> Classes:
    """Count the windows; raises UserError if there are too few."""
    counts = Classes(*np.zeros((len(Classes._fields), cutter.sequence_length + 1), np.int64))
    documents = 0
    for _, cut in cutter.windows(short_share):
        documents += len(np.unique(cut.document))
        _count_runs(cut, counts)
        counts.windows[:] += np.bincount(cut.second, minlength=len(counts.windows))
        positions = positions_of(cut.first, cut.second)
        counts.sequences[:] += np.bincount(positions, minlength=len(counts.sequences))
        np.maximum.at(counts.tokens, positions, cut.first + cut.second)
    _refuse_too_few(cutter, counts, documents)
    return counts


def _count_runs(cut: Windows, counts: Classes) -> None:
    """Update largest_run and run_end of each class with a shard's windows; no document lies in two shards."""
    order = np.argsort(cut.second, kind="stable")
    second, document = cut.second[order], cut.document[order]
    changes = np.flatnonzero((np.diff(second) != 0) | (np.diff(document) != 0)) + 1
    ends = np.append(changes, len(order))[: len(order)]
    number, run = second[ends - 1], np.diff(ends, prepend=0)
    of_shard = np.bincount(second, minlength=len(counts.windows))
    end = counts.windows[number] + ends - (np.cumsum(of_shard) - of_shard)[number]
    longest_last = np.lexsort((run, number))
    last = np.flatnonzero(np.diff(number[longest_last], append=-1))
    best = longest_last[last]
    best = best[run[best] > counts.largest_run[number[best]]]
    counts.largest_run[number[best]] = run[best]
    counts.run_end[number[best]] = end[best]


def _refuse_too_few(cutter: _Cutter, counts: Classes, documents: int) -> None:
    path, held_out = cutter.store.path, cutter.split == "held_out"
    which_rows = "held-out " if held_out else ""
    if not counts.windows.any() and held_out:
        raise UserError(f"{path} has no held-out sections; prepare the data with a larger --held_out")
    if not counts.windows.any():
        raise UserError(
            f"{path} has nothing to train on: every section is held out or repeats another; "
            "prepare the data with a smaller --held_out"
        )
    if cutter.pair == "next_sentence" and documents < 2:
        raise UserError(
            f"{path} has one {which_rows}document; next-sentence pairs need at least two, since a wrong second "
            'segment comes from another document; prepare more, or set objective.pair = "sentence_order" or "none"'
        )
    if cutter.pair != "none" and not counts.windows[1:].any():
        if _most_sentences(cutter) < 2:
            raise UserError(
                f"every {which_rows}section of a document in {path} is one sentence, so that there are no pairs; set "
                'objective.pair = "none", or prepare texts with documents of several sentences (with --documents '
                "blank_line a blank line ends a document)"
            )
        raise UserError(
            f"{path} has no two {which_rows}sentences that fit into sequence_length = {cutter.sequence_length} "
            'together, so that there are no pairs; set objective.pair = "none", or a larger sequence_length'
        )


def _most_sentences(cutter: _Cutter) -> int:
    """The most sentences of a section of the split."""
    held_out = cutter.split == "held_out"
    sections = ((np.diff(shard.sections), np.asarray(shard.held_out)) for shard in cutter.store.shards)
    return max(int(sentences[held == held_out].max(initial=0)) for sentences, held in sections)


def _sorted_places(classes: np.ndarray, next_place: np.ndarray) -> np.ndarray:
    """The places of elements of these classes after a stable counting sort; advances `next_place` of each class."""
    order = np.argsort(classes, kind="stable")
    count = np.bincount(classes, minlength=len(next_place))
    ordered = classes[order]
    places = np.empty(len(classes), np.int64)
    places[order] = next_place[ordered] + np.arange(len(classes)) - (np.cumsum(count) - count)[ordered]
    next_place += count
    return places


def _create(path: Path, dtype: type | np.dtype, shape: tuple[int, ...]) -> np.memmap:
    """Create a .npy file and memory-map it.

    Its disk space is allocated now, because a process that writes to a memory map on a full disk is killed.
    """
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array
