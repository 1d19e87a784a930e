"""Masks that do not repeat: over epochs each token of a sequence is predicted once before any is predicted twice.

The tokens of a sequence stand in a circle, in an order that is drawn once for the phase. An epoch masks as many as
masked_count says, beginning where the epoch before it ended. With a rate that falls, each earlier epoch counts as if
all its rows had its largest rate, so that no token is masked twice in one turn.
"""

from functools import lru_cache

import numpy as np

from bert_horovod.batches.text.mask_rates import MaskRate, masked_count

_AT_ONCE = 4096  # epochs that are summed in one array


class Circles:
    """Where epochs begin in the circles of sequences, a pure function of the epoch.

    Args:
        rate: the phase's.
        rows: of an epoch.
        length: positions per row.
    """

    def __init__(self, rate: MaskRate, rows: int, length: int) -> None:
        self._rate, self._rows, self._length = rate, rows, length
        self._before = lru_cache(maxsize=16)(self._masked_before)

    def begins(self, positions: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The rank of the first token that is masked, int64 [R, S].

        Args:
            positions: int64 [R], the rows', at least 0 where they have sequences.
            tokens: int64 [R, S], ordinary tokens of sequences; 0: none.
        """
        epochs, epoch = np.unique(np.maximum(positions, 0) // self._rows, return_inverse=True)
        before = np.stack([self._before(number) for number in epochs.tolist()])  # [epochs, L + 1]
        return before[epoch[:, None], tokens] % np.maximum(tokens, 1)

    def _masked_before(self, epoch: int) -> np.ndarray:
        """The tokens that epochs before this one count for, by the sequence's tokens: int64 [L + 1]."""
        tokens = np.arange(self._length + 1)
        if self._rate.first == self._rate.last:
            return epoch * masked_count(tokens, self._rate.first)
        total = np.zeros_like(tokens)
        for begin in range(0, epoch, _AT_ONCE):
            epochs = np.arange(begin, min(begin + _AT_ONCE, epoch), dtype=np.int64)
            ends = self._rate.at(np.stack((epochs * self._rows, (epochs + 1) * self._rows - 1)))
            total += masked_count(tokens, ends.max(axis=0)[:, None]).sum(axis=0)
        return total
