"""The order of a mixture's rows: which store a position takes its row from, and which row of that store; no state.

A period of PERIOD rows is laid once, by earliest deadline among the stores whose next row is due (Tijdeman 1980): up to
any place a store is less than one row away from its share. Then a keyed hash permutes the places within each run of
RUN rows, so that rows of different stores do not alternate in a pattern; up to a multiple of RUN nothing changes. So
between two multiples of RUN a store is less than two rows away from its share.

A store whose share is small has its first row late in the period. So each phase begins at another place of it, or a run
of many short phases would read less of such a store than its share, or nothing.
"""

import functools
import heapq
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from bert_horovod.batches.order import keyed_hash

PERIOD, RUN = 1 << 16, 64
_WITHIN_RUN = 300  # a stream of keyed_hash, other than those of rows
_GOLDEN = 633  # runs from one phase's begin to the next one's: those of few phases already lie evenly in the period


def shares_of(weights: Mapping[str, Fraction | float]) -> dict[str, Fraction]:
    """Weights divided by their sum, by name in order; exact, so equal on all hosts."""
    exact = {name: Fraction(weights[name]) for name in sorted(weights)}
    total = sum(exact.values())
    return {name: weight / total for name, weight in exact.items()}


def size_shares(tokens: Mapping[str, int], power: float) -> dict[str, Fraction]:
    """Shares of tokens to a power, as data.mixture_temperature says; by name."""
    if power == 1:
        return shares_of(tokens)
    # A millionth of the largest at least; rounded, because powers may differ in their last bits between hosts.
    most = max(tokens.values())
    return shares_of({name: Fraction(max(1, round((n / most) ** power * 10**6)), 10**6) for name, n in tokens.items()})


def rows_of_period(shares: Mapping[str, Fraction], mean_tokens: Mapping[str, Fraction]) -> dict[str, int]:
    """The rows of a period that each store has, by name; they sum to PERIOD.

    `shares` are of tokens. Rows are rounded by largest remainder; a store with a share has at least one.
    """
    exact = {name: PERIOD * share for name, share in shares_of({n: shares[n] / mean_tokens[n] for n in shares}).items()}
    rows = {name: max(int(number), number > 0) for name, number in exact.items()}
    by_remainder = sorted(rows, key=lambda name: (rows[name] - exact[name], name))
    missing = PERIOD - sum(rows.values())
    while missing:
        step = 1 if missing > 0 else -1
        for name in by_remainder[::step]:
            if missing and rows[name] > (step < 0):
                rows[name] += step
                missing -= step
    return rows


class Order:
    """The order of a mixture's rows: endless, in random access.

    `rows`: of a period, by store, whose numbers are those of their sorted names; `seed` keys the permutation; `phase`:
    its number, from 0.
    """

    def __init__(self, rows: Mapping[str, int], seed: int, phase: int = 0) -> None:
        self.rows = np.array([rows[name] for name in sorted(rows)], np.int64)  # [stores]
        stores = np.roll(_laid(tuple(self.rows.tolist())), -_GOLDEN * RUN * phase)
        words = keyed_hash(seed, _WITHIN_RUN, index=np.arange(PERIOD, dtype=np.uint64)).reshape(-1, RUN)
        within = np.argsort(words, axis=1, kind="stable")
        self._stores = np.take_along_axis(stores.reshape(-1, RUN), within, axis=1).ravel()  # int16 [PERIOD]
        by_store = np.argsort(self._stores, kind="stable")
        self._places = np.split(by_store, np.cumsum(self.rows)[:-1])  # of each store, ascending
        self._counts = np.empty(PERIOD, np.int32)
        for places in self._places:
            self._counts[places] = np.arange(len(places))

    def at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the stores, and the positions there: int64 [rows] each, for int64 [rows], none below 0."""
        period, place = np.divmod(positions, PERIOD)
        stores = self._stores[place].astype(np.int64)
        return stores, self.rows[stores] * period + self._counts[place]

    def read(self, rows: int) -> np.ndarray:
        """How many of the run's first rows are of each store: int64 [stores]."""
        periods, rest = divmod(rows, PERIOD)
        return self.rows * periods + [int(np.searchsorted(places, rest)) for places in self._places]

    def of_run(self, store: int, positions: np.ndarray) -> np.ndarray:
        """The run's positions of a store's; the inverse of `at`, for a store that has rows; -1 remains -1."""
        period, count = np.divmod(positions, self.rows[store])
        return np.where(positions < 0, -1, PERIOD * period + self._places[store][count])


@functools.lru_cache(1)  # phases of a run mostly have the same shares
def _laid(rows: tuple[int, ...]) -> np.ndarray:
    """The store of each place of a period, before the permutation: int16 [PERIOD]."""
    # Row k of n is due from place k * PERIOD // n on, and must stand before place (k + 1) * PERIOD / n.
    due: list[list[tuple[int, int]]] = [[] for _ in range(PERIOD)]
    for store, n in enumerate(rows):
        for k in range(n):
            due[k * PERIOD // n].append((-(-(k + 1) * PERIOD // n), store))
    ready: list[tuple[int, int]] = []
    laid = np.empty(PERIOD, np.int16)
    for place, rows_due in enumerate(due):
        for row in rows_due:
            heapq.heappush(ready, row)
        laid[place] = heapq.heappop(ready)[1]
    return laid
