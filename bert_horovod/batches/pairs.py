"""Sentence pairs: whose second segment follows which first one, each used once an epoch.

Next sentence: a wrong pair has the second segment of a window of another document, and that window has this one's in
return. Both are equally long, so that no length changes and none tells anything. Sentence order: a wrong pair has its
own segments, swapped.
"""

from collections.abc import Callable

import numpy as np

from bert_horovod.batches.index import Classes
from bert_horovod.batches.order import below, permute

# What a hash is drawn for.
_SHIFT, _CHOICE, _ROUNDING = range(100, 103)


class PairExchange:
    """Pairs up windows whose second segments are equally long (a class), anew every epoch.

    The windows of a class lie document by document. Turned so that those of the document with the most come last, they
    are cut into a first part of `half` and a second part, at least as large and holding all of that document where it
    has half of the class or more. Window i of the first part is paired with i + shift of the second, modulo its size.
    Only a document that lies in both parts could meet itself; its windows are at most `largest_run` in a row, and the
    shifts that are drawn keep that many apart. Of these couples a share exchanges its second segments: such that half
    of all pairs are wrong ones, if there are enough couples.

    Args:
        classes: those of the index.
        words: uint64 words of a stream of the run's seed, made of (stream, int64 index).
    """

    def __init__(self, classes: Classes, words: Callable[[int, np.ndarray], np.ndarray]) -> None:
        self._words = words
        self._size = classes.windows.copy()
        self._size[0] = 0  # single segments
        self._turn = classes.run_end.copy()
        self._half = np.minimum(self._size // 2, self._size - classes.largest_run)
        self._half[0] = 0
        # Where the largest document is all of the second part, no document lies in both.
        rest = self._size - self._half
        self._apart = np.where(classes.largest_run == rest, 0, classes.largest_run)
        self._class_start = np.cumsum(classes.windows) - classes.windows
        couples = max(1, int(self._half.sum()))
        share = min(1.0, self._size.sum() / (4 * couples))
        self._wrong = np.concatenate(([0.0], np.cumsum(self._half) * share))

    def partners(self, epoch: np.ndarray, window: np.ndarray, second: np.ndarray) -> np.ndarray:
        """The windows whose second segments follow these windows' first ones: their own where a pair is right.

        Args:
            epoch: int64 [n].
            window: int64 [n], numbers of windows in the index.
            second: int64 [n], tokens of their second segments.

        Returns:
            int64 [n].
        """
        partners = window.copy()
        some = np.flatnonzero(self._half[second])
        epoch, second = epoch[some], second[some]
        size, half, apart = self._size[second], self._half[second], self._apart[second]
        rest = size - half
        drawn = epoch * len(self._size) + second
        shift = rest - half + apart + below(self._words(_SHIFT, drawn), rest - apart + 1)
        place = (window[some] - self._class_start[second] - self._turn[second]) % size
        couple = np.where(place < half, place, (place - half - shift) % rest)
        partner = np.where(place < half, half + (place + shift) % rest, couple)
        coupled = couple < half
        order = permute(np.where(coupled, couple, 0), half, self._words(_CHOICE, drawn))
        # Rounded so that all classes together come out right, and each in the mean over epochs.
        draw = (self._words(_ROUNDING, epoch) >> np.uint64(11)) / 2.0**53
        wrong_couples = np.floor(self._wrong[second + 1] + draw) - np.floor(self._wrong[second] + draw)
        exchanged = coupled & (order < wrong_couples)
        other = self._class_start[second] + (partner + self._turn[second]) % size
        partners[some[exchanged]] = other[exchanged]
        return partners
