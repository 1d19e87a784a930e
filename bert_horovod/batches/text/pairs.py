"""Sentence pairs: chooses the second segment that follows each first segment; each segment is used once an epoch.

Next sentence: for wrong pairs, two windows of different documents exchange their second segments. Both segments are
equally long, so no window changes its length, and lengths do not reveal the label. Sentence order: a wrong pair has the
two segments of its window, swapped.
"""

from collections.abc import Callable

import numpy as np

from bert_horovod.batches.order import below, permute
from bert_horovod.batches.text.cutting import Classes

# Streams of keyed_hash: one for each kind of draw.
_SHIFT, _CHOICE, _ROUNDING = range(100, 103)


class PairExchange:
    """Pairs up windows whose second segments are equally long (a class), anew every epoch.

    The windows of a class lie document by document. They are rotated so that the document with the most windows comes
    last, and cut into a first part of `half` windows and a second part. The second part is at least as large, and holds
    all of the largest document if that has half of the class or more. Window i of the first part and window i + shift
    of the second part, modulo its size, are a couple. Only a document that lies in both parts could be in both windows
    of a couple. It has at most `largest_run` windows, one after another, and the drawn shifts keep the windows of a
    couple at least that far apart. A share of the couples exchange their second segments, so that half of all pairs are
    wrong if there are enough couples. `words` makes random uint64 words of the run's seed from (stream, int64 index).
    """

    def __init__(self, classes: Classes, words: Callable[[int, np.ndarray], np.ndarray]) -> None:
        self._words = words
        self._size = classes.windows.copy()
        self._size[0] = 0  # single segments
        self._turn = classes.run_end.copy()
        self._half = np.minimum(self._size // 2, self._size - classes.largest_run)
        self._half[0] = 0
        # If the largest document is all of the second part, no document lies in both parts.
        second_half = self._size - self._half
        self._apart = np.where(classes.largest_run == second_half, 0, classes.largest_run)
        self._class_start = np.cumsum(classes.windows) - classes.windows
        couples = max(1, int(self._half.sum()))
        share = min(1.0, self._size.sum() / (4 * couples))
        self._wrong = np.concatenate(([0.0], np.cumsum(self._half) * share))

    def partners(self, epoch: np.ndarray, window: np.ndarray, second: np.ndarray) -> np.ndarray:
        """For each window, int64 [n], the one whose second segment follows its first one: itself if the pair is right.

        `second`: tokens of the windows' second segments.
        """
        partners = window.copy()
        some = np.flatnonzero(self._half[second])
        epoch, second = epoch[some], second[some]
        size, half, apart = self._size[second], self._half[second], self._apart[second]
        second_half = size - half
        drawn = epoch * len(self._size) + second
        shift = second_half - half + apart + below(self._words(_SHIFT, drawn), second_half - apart + 1)
        place = (window[some] - self._class_start[second] - self._turn[second]) % size
        couple = np.where(place < half, place, (place - half - shift) % second_half)
        partner = np.where(place < half, half + (place + shift) % second_half, couple)
        coupled = couple < half
        order = permute(np.where(coupled, couple, 0), half, self._words(_CHOICE, drawn))
        # Rounded so that the number of wrong couples is right over all classes, and in each class on average over
        # epochs.
        draw = (self._words(_ROUNDING, epoch) >> np.uint64(11)) / 2.0**53
        wrong_couples = np.floor(self._wrong[second + 1] + draw) - np.floor(self._wrong[second] + draw)
        exchanged = coupled & (order < wrong_couples)
        partner_window = self._class_start[second] + (partner + self._turn[second]) % size
        partners[some[exchanged]] = partner_window[exchanged]
        return partners
