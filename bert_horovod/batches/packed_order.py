"""Chooses the sequences that share a row, in random access: sequences of equal length change places every epoch.

Position p = epoch * rows + i stands for row i of that epoch. A first bijection maps i to a place in the table of
templates. The place tells the lengths that the row holds, and the row's number among the rows of its template. From
these, each sequence of the row gets a number among all sequences of its length. A second bijection maps this number to
the sequence. Both bijections are keyed by (seed, epoch), so each sequence is in each epoch once, and any rank can make
any row.
"""

import numpy as np

from bert_horovod.batches.order import keyed_hash, permute
from bert_horovod.batches.packing import Templates, templates_of

_ROWS, _SEQUENCES = range(2)  # streams of keyed_hash: one for each bijection


class PackedOrder:
    """The order of the rows of some templates.

    Args:
        templates: the lengths that rows hold.
        sequence_length: positions per row, L.
        seed: keys the bijections.
    """

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
    """The order of the rows of items in memory.

    Args:
        lengths: positions of each item, int64 [items].
        sequence_length: positions per row, L.
        seed: keys the bijections.
        packing: whether several items share a row.
    """

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
