"""Packing: chooses the lengths of sequences that share a row.

Lengths are packed, not sequences: best-fit decreasing (Johnson 1973) over the histogram, all rows of equal content
at once. The result is a short table of templates, such as 128 = 90 + 38, each with the number of rows made from it.
"""

import bisect
from dataclasses import dataclass

import numpy as np

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

    Args:
        histogram: int64 [sequence_length + 1]: sequences of each length.
        sequence_length: positions per row.
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
