"""Packing: chooses the lengths of sequences that share a row, and then the sequences.

Lengths are packed, not sequences: best-fit decreasing (Johnson 1973) over the histogram, all rows of equal content
at once. The result is a short table of templates, such as 128 = 90 + 38, each with the number of rows made from it.

Then the sequences are chosen, in random access: sequences of equal length change places every epoch. Position
p = epoch * rows + i stands for row i of that epoch. A first bijection maps i to a place in the table of templates. The
place tells the lengths that the row holds, and the row's number among the rows of its template. From these, each
sequence of the row gets a number among all sequences of its length. A second bijection maps this number to the
sequence. Both bijections are keyed by (seed, epoch), so each sequence is in each epoch once, and any rank can make any
row.
"""

import bisect
from dataclasses import dataclass

import numpy as np

from bert_horovod.batches.order import keyed_hash, permute

_MOST_SEQUENCES = 64
_LEAST_POSITIONS = 8


@dataclass(frozen=True)
class Templates:
    """The lengths of sequences that rows hold."""

    rows: np.ndarray  # int64 [templates]: rows of an epoch made from each template
    lengths: np.ndarray  # uint16 [templates, sequences]: positions of each sequence, descending; 0: none


def most_sequences(sequence_length: int) -> int:
    """Sequences in a row, at most.

    Every row has as many slots as the fullest template has sequences. With a slot for each 8 positions, the pair head,
    a product of hidden x hidden for each slot, costs far less than one layer. With more slots than that, or more than
    64, rows would hold snippets of three or four words each.
    """
    return max(1, min(_MOST_SEQUENCES, sequence_length // _LEAST_POSITIONS))


def single(histogram: np.ndarray) -> Templates:
    """Templates of one sequence each, for a histogram as `pack` takes it."""
    lengths = np.flatnonzero(histogram)
    return Templates(histogram[lengths], lengths.astype(np.uint16)[:, None])


def pack(histogram: np.ndarray, sequence_length: int) -> Templates:
    """Best-fit decreasing: each sequence, the longest first, goes into the row where it leaves the smallest hole.

    `histogram`: sequences of each length, int64 [sequence_length + 1].
    """
    rows = _OpenRows(sequence_length, most_sequences(sequence_length))
    for length in np.flatnonzero(histogram)[::-1].tolist():
        sequences_left = int(histogram[length])
        while sequences_left:
            sequences_left -= rows.place(length, sequences_left)
    content = rows.all()
    width = max((len(lengths) for lengths in content), default=1)
    table = np.zeros((len(content), width), np.uint16)
    for row, lengths in zip(table, content, strict=True):
        row[: len(lengths)] = lengths
    return Templates(np.array(list(content.values()), np.int64), table)


def fill(templates: Templates, sequence_length: int) -> float:
    """Positions that hold a sequence, as a share of all positions."""
    return float(templates.rows @ templates.lengths.sum(axis=1)) / (sequence_length * max(1, templates.rows.sum()))


class _OpenRows:
    """Rows that are being packed, grouped by the space that is left in them and then by content."""

    def __init__(self, sequence_length: int, most: int) -> None:
        self._most = most
        self._length = sequence_length
        self._spaces: list[int] = []  # the keys of `_open`, ascending
        self._open: dict[int, dict[tuple[int, ...], int]] = {}
        self._closed: dict[tuple[int, ...], int] = {}

    def place(self, length: int, count: int) -> int:
        """Put up to `count` sequences into the rows where they fit best, all of one content; returns how many."""
        at = bisect.bisect_left(self._spaces, length)
        content: tuple[int, ...]
        if at == len(self._spaces):  # no open row has room
            space, content, rows = self._length, (), count
        else:
            space = self._spaces[at]
            content, rows = self._open[space].popitem()
            if not self._open[space]:
                del self._open[space], self._spaces[at]
        per_row = min(space // length, self._most - len(content), count)
        used = min(rows, count // per_row)
        if content:
            self._put(space, content, rows - used)
        self._put(space - per_row * length, content + (length,) * per_row, used)
        return used * per_row

    def all(self) -> dict[tuple[int, ...], int]:
        """Rows by content, open ones included."""
        rows = dict(self._closed)
        for contents in self._open.values():
            rows |= contents
        return rows

    def _put(self, space: int, content: tuple[int, ...], rows: int) -> None:
        if not rows:
            return
        if len(content) == self._most:
            target = self._closed
        else:
            if space not in self._open:
                bisect.insort(self._spaces, space)
            target = self._open.setdefault(space, {})
        target[content] = target.get(content, 0) + rows


def templates_of(lengths: np.ndarray, sequence_length: int, packing: bool) -> Templates:
    """The templates of an epoch's rows, for items with so many positions, int64 [items]; one in a row if not packed."""
    histogram = np.bincount(lengths, minlength=sequence_length + 1)
    return pack(histogram, sequence_length) if packing else single(histogram)


_ROWS, _SEQUENCES = range(2)  # streams of keyed_hash: one for each bijection


class PackedOrder:
    """The order of the rows of some templates; `seed` keys the bijections."""

    def __init__(self, templates: Templates, sequence_length: int, seed: int) -> None:
        self.count = int(templates.rows.sum())  # rows of an epoch
        self.slots = templates.lengths.shape[1]  # S, the most sequences in a row
        self._seed, self._length = seed, sequence_length
        self._rows = templates.rows
        self._row_end = np.cumsum(templates.rows)
        self._lengths = templates.lengths.astype(np.int64)
        self._first_number = _first_numbers(self._lengths, templates.rows)
        slots = np.repeat(templates.rows, self.slots)  # sequences of an epoch in each slot of each template
        self._of_length = np.bincount(self._lengths.ravel(), slots, sequence_length + 1).astype(np.int64)

    def sequences(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sequences of rows, for positions int64 [R].

        Returns:
            lengths: int64 [R, S], positions of each sequence; 0: none. A position of -1 has none.
            numbers: int64 [R, S], the sequence's number among all of that length, from 0; -1: none.
        """
        positions = np.asarray(positions, np.int64)
        epoch, row = np.divmod(np.maximum(positions, 0), self.count)
        place = permute(row, self.count, self._hash(_ROWS, epoch))
        template = np.searchsorted(self._row_end, place, side="right")
        place -= self._row_end[template] - self._rows[template]
        lengths = np.where((positions >= 0)[:, None], self._lengths[template], 0)
        present = lengths > 0
        length = lengths[present]
        number = (self._first_number[template] + place[:, None])[present]
        epoch = np.broadcast_to(epoch[:, None], lengths.shape)[present]
        key = self._hash(_SEQUENCES, epoch * (self._length + 1) + length)
        numbers = np.full(lengths.shape, -1, np.int64)
        numbers[present] = permute(number, self._of_length[length], key)
        return lengths, numbers

    def _hash(self, stream: int, index: np.ndarray) -> np.ndarray:
        return keyed_hash(self._seed, stream, self._length, index=index.astype(np.uint64))


class PackedItems(PackedOrder):
    """The order of the rows of items in memory; `lengths`: positions of each item, int64 [items]."""

    def __init__(self, lengths: np.ndarray, sequence_length: int, seed: int, packing: bool) -> None:
        super().__init__(templates_of(lengths, sequence_length, packing), sequence_length, seed)
        self._by_length = np.argsort(lengths, kind="stable")
        self._length_start = np.searchsorted(lengths[self._by_length], np.arange(sequence_length + 1))

    def members(self, positions: np.ndarray) -> np.ndarray:
        """The numbers of the items that rows hold: int64 [R, S] for positions int64 [R]; -1: none."""
        lengths, numbers = self.sequences(positions)
        return np.where(numbers >= 0, self._by_length[self._length_start[lengths] + np.maximum(numbers, 0)], -1)


def _first_numbers(lengths: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """For each slot of each template, the number of its first row's sequence among all sequences of that length.

    Each slot of a template takes as many numbers as the template has rows. The result has the shape of `lengths`.
    """
    flat = lengths.ravel()
    taken = np.where(flat > 0, np.repeat(rows, lengths.shape[1]), 0)
    order = np.argsort(flat, kind="stable")
    before = np.cumsum(taken[order]) - taken[order]
    ordered = flat[order]
    numbers = np.empty(len(flat), np.int64)
    numbers[order] = before - before[np.searchsorted(ordered, ordered)]
    return numbers.reshape(lengths.shape)
