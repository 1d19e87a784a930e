"""The window index: where every window of a token store begins and ends, in flat, memory-mapped arrays.

A window is what becomes one sequence: whole sentences of one section, as many as fit. Sections are cut greedily, and a
sentence that is longer than a window is cut into pieces first. Every token of the split's sections is in one window.

    <store>/index/<hash>/        or <directory>/<hash>/
        shard.npy           int32  [windows]        number of the window's shard
        start.npy           uint32 [windows]        its first token in that shard
        count.npy           uint16 [windows]        its tokens
        document.npy        int32  [windows]        its document, counted over all shards
        first_window.npy    int64  [documents + 1]  windows of document d are first_window[d] to first_window[d + 1]
    and, for sentence pairs:
        first_end.npy       int64  [windows + 1]    sentence ends of window w are ends[first_end[w]:first_end[w + 1]]
        ends.npy            uint16 [ends]           tokens from the window's start; the last of a window is its count

The hash names the store, this format and the settings. A directory of that name is whole: it is renamed into place.
"""

import hashlib
import json
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_horovod.corpus.store import Shard, Store
from bert_horovod.errors import UserError

FORMAT = 1
SPLITS = ("train", "held_out")
_DTYPES = {"shard": np.int32, "start": np.uint32, "count": np.uint16, "document": np.int32, "first_window": np.int64}
_PAIR_DTYPES = {"first_end": np.int64, "ends": np.uint16}


@dataclass(frozen=True)
class WindowIndex:
    """An opened index; its arrays, as the module's docstring states them, are mapped, not read."""

    path: Path
    sequence_length: int
    next_sentence: bool
    split: str
    shard: np.ndarray
    start: np.ndarray
    count: np.ndarray
    document: np.ndarray
    first_window: np.ndarray
    first_end: np.ndarray | None = None
    ends: np.ndarray | None = None

    @property
    def windows(self) -> int:
        """Number of windows."""
        return len(self.start)


def open_index(
    store: Store,
    sequence_length: int,
    next_sentence: bool,
    split: str = "train",
    directory: str | Path | None = None,
    build: bool = True,
) -> WindowIndex:
    """Open the window index of a store, and build it first if need be.

    Args:
        store: the token store.
        sequence_length: tokens per row, [CLS] and [SEP] included.
        next_sentence: windows leave room for [CLS] A [SEP] B [SEP], else for [CLS] A [SEP].
        split: "train" or "held_out".
        directory: where indexes are kept; None: in `index/` of the store.
        build: whether a missing index is built; one process a host builds, the others wait for it and open.

    Raises:
        UserError: the directory cannot be written, the split holds nothing (or one document, with next_sentence), or
            the index is missing or damaged.
    """
    if split not in SPLITS or not 4 <= sequence_length <= 1 << 16:
        raise ValueError(
            f"open_index: split = {split!r}, sequence_length = {sequence_length}: "
            f"expected one of {SPLITS} and 4 to {1 << 16}"
        )
    settings = {
        "store": store.hash,
        "format": FORMAT,
        "sequence_length": sequence_length,
        "next_sentence": next_sentence,
        "split": split,
    }
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
    path = (Path(directory) if directory is not None else store.path / "index") / name
    if not path.is_dir():
        if not build:
            raise UserError(
                f"{path} is missing: the process that builds the row index has failed, or has another file "
                "system; run again, or name a directory that a host's processes share with --index_dir"
            )
        _build(store, sequence_length, next_sentence, split, path)
    arrays = {}
    for array in _DTYPES | _PAIR_DTYPES if next_sentence else _DTYPES:
        try:
            # A plain view: np.memmap makes each indexing several times slower.
            arrays[array] = np.asarray(np.load(path / f"{array}.npy", mmap_mode="r", allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise UserError(
                f"{path / array}.npy is missing or damaged ({error}); remove {path} and run again: it is made anew"
            ) from error
    return WindowIndex(path, sequence_length, next_sentence, split, **arrays)


def capacity(sequence_length: int, next_sentence: bool) -> int:
    """Ordinary tokens that fit into a row beside [CLS] and [SEP]."""
    return sequence_length - (3 if next_sentence else 2)


def _build(store: Store, sequence_length: int, next_sentence: bool, split: str, path: Path) -> None:
    """Write an index under a temporary name, sync, rename."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        temporary.mkdir(parents=True)
        _write(store, capacity(sequence_length, next_sentence), next_sentence, split, temporary)
        try:
            os.rename(temporary, path)
        except OSError:
            if not path.is_dir():  # else another host was faster: its index is the same
                raise
    except OSError as error:
        raise UserError(
            f"cannot write the row index to {path.parent}: {error.strerror or error}; "
            "name a directory that can be written, local to each host, with --index_dir"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(store: Store, limit: int, next_sentence: bool, split: str, directory: Path) -> None:
    names = _DTYPES | _PAIR_DTYPES if next_sentence else _DTYPES
    files = {name: _GrowingArray(directory / f"{name}.npy", dtype) for name, dtype in names.items()}
    documents = windows = ends = 0
    used_documents = 0
    for number, shard in enumerate(store.shards):
        start, end, first, last, document = shard_windows(shard, limit, split == "held_out")
        files["shard"].append(np.full(len(start), number))
        files["start"].append(start)
        files["count"].append(end - start)
        files["document"].append(document + documents)
        per_document = np.bincount(document, minlength=len(shard.documents) - 1)
        files["first_window"].append(windows + np.cumsum(per_document) - per_document)
        if next_sentence:
            sentence_ends, per_window = _sentence_ends(shard, start, end, first, last)
            files["ends"].append(sentence_ends)
            files["first_end"].append(ends + np.cumsum(per_window) - per_window)
            ends += len(sentence_ends)
        windows += len(start)
        documents += len(per_document)
        used_documents += np.count_nonzero(per_document)
    files["first_window"].append(np.array([windows]))
    if next_sentence:
        files["first_end"].append(np.array([ends]))
    for file in files.values():
        file.close()
    _refuse_empty(store, windows, used_documents, next_sentence, split)


def _refuse_empty(store: Store, windows: int, documents: int, next_sentence: bool, split: str) -> None:
    if not windows and split == "held_out":
        raise UserError(f"{store.path} has no held-out sections; prepare the data with a larger --held_out")
    if not windows:
        raise UserError(
            f"{store.path} has nothing to train on: every section is held out; "
            "prepare the data with a smaller --held_out"
        )
    if next_sentence and documents < 2:
        what = "held-out " if split == "held_out" else ""
        raise UserError(
            f"{store.path} has one {what}document; sentence pairs need at least two, since a wrong second "
            "segment comes from another document; prepare more, or train without pairs: "
            "objective.next_sentence = false"
        )


def shard_windows(shard: Shard, limit: int, held_out: bool) -> tuple[np.ndarray, ...]:
    """Cut a shard's sections into windows of whole sentences, greedily, all sections in lockstep.

    Args:
        shard: the shard's arrays.
        limit: tokens in a window, at most; a longer sentence is cut into pieces of this length, from its start.
        held_out: whether the held-out sections are cut, or the others.

    Returns:
        start, end: int64 [windows], tokens in the shard.
        first, last: int64 [windows], the sentences that hold a window's first and last token.
        document: int64 [windows], in the shard.
    """
    sentences, sections, documents = (
        np.asarray(array, np.int64) for array in (shard.sentences, shard.sections, shard.documents)
    )
    pieces = -(-np.diff(sentences) // limit)  # per sentence
    first_piece = np.concatenate(([0], np.cumsum(pieces)))
    sentence = np.repeat(np.arange(len(pieces)), pieces)  # per piece
    bounds = sentences[sentence] + limit * (np.arange(len(sentence)) - first_piece[sentence])
    bounds = np.append(bounds, sentences[-1:])
    # Where a window that begins at a piece would end, were there no sections.
    reach = np.searchsorted(bounds, bounds[:-1] + limit, side="right") - 1
    section_piece = first_piece[sections]

    chosen = np.flatnonzero(np.asarray(shard.held_out) == held_out)
    here, stop = section_piece[chosen], section_piece[chosen + 1]
    begins = np.zeros(len(sentence), bool)
    while (inside := here < stop).any():
        here, stop = here[inside], stop[inside]
        begins[here] = True
        here = reach[here]

    piece = np.flatnonzero(begins)
    section = np.searchsorted(section_piece, piece, side="right") - 1
    end_piece = np.minimum(reach[piece], section_piece[section + 1])
    document = np.searchsorted(documents, section, side="right") - 1
    return bounds[piece], bounds[end_piece], sentence[piece], sentence[end_piece - 1], document


def _sentence_ends(
    shard: Shard, start: np.ndarray, end: np.ndarray, first: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the windows' sentences relative to the window's start, one after another, and their number per window."""
    per_window = last - first + 1
    offset = np.cumsum(per_window) - per_window
    number = np.arange(per_window.sum()) + np.repeat(first - offset, per_window)
    ends = np.minimum(np.asarray(shard.sentences, np.int64)[number + 1], np.repeat(end, per_window))
    return ends - np.repeat(start, per_window), per_window


class _GrowingArray:
    """A one-dimensional .npy file written part by part, so that memory does not grow with the corpus."""

    def __init__(self, path: Path, dtype: type) -> None:
        self._dtype = np.dtype(dtype)
        self._length = 0
        self._file = open(path, "wb")  # noqa: SIM115 (closed by close, or with the failed build)
        self._header_bytes = self._write_header()

    def append(self, part: np.ndarray) -> None:
        part.astype(self._dtype).tofile(self._file)
        self._length += len(part)

    def close(self) -> None:
        # NumPy pads the header so that the length can grow to 21 digits in place.
        self._file.seek(0)
        if self._write_header() != self._header_bytes:
            raise RuntimeError("the header of a .npy file grew: this NumPy does not pad it")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _write_header(self) -> int:
        np.lib.format.write_array_header_1_0(
            self._file,
            {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self._length,)},
        )
        return self._file.tell()
