"""Elements sorted by class over all shards, while each shard keeps its own together: numbers and places.

An element's number is its rank if all are sorted by class, those of a class by shard and then as in the shard: a stable
counting sort. Its place is where it lies if each shard's elements, sorted by class, lie after those of the shard
before. Sums of the counts by shard and class turn one into the other, so that nothing is sorted over shards.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Found(NamedTuple):
    """Elements; int64 [n] each."""

    to: np.ndarray  # the place of a number, or the number of a place
    shard: np.ndarray
    of_class: np.ndarray


@dataclass(frozen=True)
class RunningCounts:
    """How many elements lie before each cell (a class of a shard), in both orders; the last entry is their number.

    The arrays may be memory-mapped: what is asked for is read.
    """

    by_class: np.ndarray  # int64 [classes * shards + 1], cell = class * shards + shard
    by_shard: np.ndarray  # int64 [shards * classes + 1], cell = shard * classes + class
    shards: int

    @classmethod
    def of(cls, counts: np.ndarray) -> "RunningCounts":
        """Sum up counts, int64 [shards, classes]."""
        by_class, by_shard = (np.concatenate(([0], np.cumsum(cells))) for cells in (counts.T.ravel(), counts.ravel()))
        return cls(by_class, by_shard, len(counts))

    @property
    def classes(self) -> int:
        return (len(self.by_class) - 1) // self.shards

    def places(self, numbers: np.ndarray) -> Found:
        """Find elements by number: int64 [n]."""
        cell = np.searchsorted(self.by_class, numbers, side="right") - 1
        of_class, shard = np.divmod(cell, self.shards)
        return Found(self.by_shard[shard * self.classes + of_class] + numbers - self.by_class[cell], shard, of_class)

    def numbers(self, places: np.ndarray) -> Found:
        """Find elements by place: int64 [n]."""
        cell = np.searchsorted(self.by_shard, places, side="right") - 1
        shard, of_class = np.divmod(cell, self.classes)
        return Found(self.by_class[of_class * self.shards + shard] + places - self.by_shard[cell], shard, of_class)

    def first(self, shard: int) -> int:
        """The place of a shard's first element."""
        return int(self.by_shard[shard * self.classes])
