"""Which sequences share a row: templates of lengths, whose sequences change places every epoch, in random access.

Position p = epoch * rows + i stands for row i of that epoch. A bijection over the epoch's rows gives a place in the
table of templates: what lengths the row holds, and which of the template's rows it is. So each of its sequences has a
number among all of its length, and a bijection over these says which sequence of that length it is. Both bijections are
keyed by (seed, epoch), so each sequence is in each epoch once, and any rank can make any row.
"""

import numpy as np

from bert_horovod.batches.order import keyed_hash, permute
from bert_horovod.batches.packing import Templates

_ROWS, _SEQUENCES = range(2)  # what a hash is drawn for


class PackedOrder:
    """The order of the rows of some templates.

    Args:
        templates: what rows hold.
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
        """What rows hold, for positions int64 [R].

        Returns:
            lengths: int64 [R, S], positions of each sequence; 0: none, as in a position of -1.
            numbers: int64 [R, S], which sequence of that length it is, from 0; -1: none.
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


def _first_numbers(lengths: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Per template and slot, the number of its first row's sequence among all sequences of that length; as `lengths`.

    Each slot of a template takes as many numbers as the template has rows.
    """
    flat = lengths.ravel()
    taken = np.where(flat > 0, np.repeat(rows, lengths.shape[1]), 0)
    order = np.argsort(flat, kind="stable")
    before = np.cumsum(taken[order]) - taken[order]
    ordered = flat[order]
    numbers = np.empty(len(flat), np.int64)
    numbers[order] = before - before[np.searchsorted(ordered, ordered)]
    return numbers.reshape(lengths.shape)
