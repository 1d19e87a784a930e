"""Cuts shards into the windows of both splits, and finds the share of windows to draw short.

A shard is cut part by part, because memory then holds one part, and because a part of today was a shard of its own when
the order of rows was fixed: equal runs of a class are told apart by part.
"""

import bisect
import functools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.packing import fill, pack
from bert_horovod.batches.text.windows import Cutter
from bert_horovod.corpus.statistics import kept_sections
from bert_horovod.corpus.store import Store

SPLITS = ("train", "held_out")
# Possible shares of windows drawn short (see windows.py). The smallest that fills enough of the rows is taken, because
# short windows cost context.
_SHORT_SHARES = tuple(step / 50 for step in range(41))
_ENOUGH_FILL = 0.98  # share of positions that hold a sequence
_SAMPLED_PARTS = 8


class Classes(NamedTuple):
    """Counts for each number of tokens or positions, int64 [L + 1] each."""

    windows: np.ndarray  # windows with so many tokens in the second segment: a class
    largest_run: np.ndarray  # the most windows of the class that are of one document
    run_end: np.ndarray  # where that document's windows end, counted from the first of the class
    sequences: np.ndarray  # sequences with so many positions, [CLS] and [SEP] included
    tokens: np.ndarray  # the most tokens of a sequence with so many positions


@dataclass(frozen=True)
class SplitOfShard:
    """A shard's windows of one split, sorted by the tokens of their second segment and then as in the text."""

    start: np.ndarray  # uint32 [windows]: first token in the shard
    first: np.ndarray  # uint16 [windows]: tokens of the first segment
    by_length: np.ndarray  # uint32 [windows]: windows, sorted by the positions of their sequences
    cells: np.ndarray  # int64 [cells, 2]: positions * (L + 1) + tokens of the second segment, ascending; how many
    classes: Classes
    documents: int  # that have a window


def positions_of(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Positions of sequences with so many tokens in their segments: [CLS], a [SEP] for each segment, the tokens."""
    return first + second + 2 + (second > 0)


def token_limit(sequence_length: int, pair: str) -> int:
    """The most tokens of a window."""
    return sequence_length - (2 if pair == "none" else 3)


def cut_shard(
    store: Store, number: int, sequence_length: int, pair: str, shares: tuple[float, float]
) -> tuple[SplitOfShard, SplitOfShard]:
    """Cut a shard once, for both splits.

    Args:
        store: the token store.
        number: the shard's.
        sequence_length: positions per row, L.
        pair: the recipe's objective.pair.
        shares: of windows drawn short, by split.
    """
    shard = store.shards[number]
    kept = kept_sections(shard, store.repeated(number))
    found: list[list[np.ndarray]] = [[np.zeros(0, np.int64)] for _ in range(6)]
    tokens = sections = documents = 0
    for i, of_part in enumerate(shard.split()):
        cutter = Cutter(of_part, token_limit(sequence_length, pair), int(store.first_tokens[number]) + tokens)
        held_out = np.asarray(of_part.held_out)
        chosen = kept[sections : sections + len(held_out)]
        windows = cutter.windows(chosen, pair, np.where(held_out, shares[1], shares[0]))
        split = held_out[windows.section].astype(np.int64)
        document = windows.document + documents
        values = (windows.start + tokens, windows.first, windows.second, document, split, np.full(len(split), i))
        for column, more in zip(found, values, strict=True):
            column.append(more)
        tokens, sections = tokens + len(of_part.tokens), sections + len(held_out)
        documents += len(of_part.documents) - 1
    start, first, second, document, split, number_of_part = map(np.concatenate, found)
    columns = (start, first, second, document, number_of_part)
    splits = [_sorted(sequence_length, *(column[np.flatnonzero(split == i)] for column in columns)) for i in range(2)]
    return splits[0], splits[1]


def _sorted(
    length: int, start: np.ndarray, first: np.ndarray, second: np.ndarray, document: np.ndarray, part: np.ndarray
) -> SplitOfShard:
    documents = int(np.count_nonzero(np.diff(document, prepend=-1)))
    order = np.argsort(second.astype(np.uint16), kind="stable")
    start, first, second, document, part = (column[order] for column in (start, first, second, document, part))
    positions = positions_of(first, second)
    by_length = np.argsort(positions.astype(np.uint16), kind="stable")
    keys = (positions * (length + 1) + second)[by_length]
    begins = np.flatnonzero(np.diff(keys, prepend=-1))
    cells = np.stack([keys[begins], np.diff(begins, append=len(keys))], axis=1)
    windows = np.bincount(second, minlength=length + 1)
    tokens = np.zeros(length + 1, np.int64)
    np.maximum.at(tokens, positions, first + second)
    classes = Classes(
        windows,
        *_largest_runs(second, document, part, np.cumsum(windows) - windows),
        np.bincount(positions, minlength=length + 1),
        tokens,
    )
    return SplitOfShard(
        start.astype(np.uint32), first.astype(np.uint16), by_length.astype(np.uint32), cells, classes, documents
    )


def _largest_runs(
    second: np.ndarray, document: np.ndarray, part: np.ndarray, class_start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """largest_run and run_end of each class, for windows sorted by class; of equal runs the last of the first part."""
    changes = np.flatnonzero((np.diff(second) != 0) | (np.diff(document) != 0)) + 1
    ends = np.append(changes, len(second))[: len(second)]
    number, run, part = second[ends - 1], np.diff(ends, prepend=0), part[ends - 1]
    largest, run_end, first_part = (np.zeros(len(class_start), np.int64) for _ in range(3))
    np.maximum.at(largest, number, run)
    best = np.flatnonzero(run == largest[number])
    first = best[np.diff(number[best], prepend=-1) != 0]
    first_part[number[first]] = part[first]
    best = best[part[best] == first_part[number[best]]]
    last = best[np.diff(number[best], append=-1) != 0]
    run_end[number[last]] = ends[last] - class_start[number[last]]
    return largest, run_end


def merged(of_shards: Iterable[Classes], length: int) -> Classes:
    """The classes of all shards, in order."""
    sums = Classes(*np.zeros((len(Classes._fields), length + 1), np.int64))
    for of_shard in of_shards:
        larger = of_shard.largest_run > sums.largest_run
        sums.run_end[larger] = (sums.windows + of_shard.run_end)[larger]
        sums.largest_run[larger] = of_shard.largest_run[larger]
        np.maximum(sums.tokens, of_shard.tokens, out=sums.tokens)
        sums.windows[:] += of_shard.windows
        sums.sequences[:] += of_shard.sequences
    return sums


def short_shares(store: Store, sequence_length: int, pair: str, threads: int = 1) -> tuple[float, float]:
    """The shares of windows to draw short, by split, from a sample of parts from all over the store."""
    parts = np.cumsum([entry.get("parts", 1) for entry in store.manifest["shards"]])
    sample = sorted({int(parts[-1]) * i // _SAMPLED_PARTS for i in range(_SAMPLED_PARTS)})

    def open_part(part: int) -> tuple[Cutter, np.ndarray, np.ndarray]:
        number = int(np.searchsorted(parts, part, side="right"))
        shard = store.shards[number]
        among, kept = shard.split(), kept_sections(shard, store.repeated(number))
        place = part - int(parts[number]) + len(among)
        before = among[:place]
        sections = sum(len(other.held_out) for other in before)
        tokens = int(store.first_tokens[number]) + sum(len(other.tokens) for other in before)
        held_out = np.array(among[place].held_out)
        cutter = Cutter(among[place], token_limit(sequence_length, pair), tokens)
        return cutter, kept[sections : sections + len(held_out)], held_out

    with ThreadPoolExecutor(threads) as pool:
        sampled = list(pool.map(open_part, sample))

        @functools.cache
        def histograms(share: float) -> np.ndarray:
            def count(of_part: tuple[Cutter, np.ndarray, np.ndarray]) -> np.ndarray:
                cutter, chosen, held_out = of_part
                positions, section = cutter.positions(chosen, pair, share)
                flat = held_out[section] * (sequence_length + 1) + positions
                return np.bincount(flat, minlength=2 * (sequence_length + 1)).reshape(2, -1)

            return sum(pool.map(count, sampled), np.zeros((2, sequence_length + 1), np.int64))

        def enough(split: int, share: float) -> bool:
            templates = pack(histograms(share)[split], sequence_length)
            return fill(templates, sequence_length) >= _ENOUGH_FILL

        # A binary search, because the fill rises with the share.
        places = (bisect.bisect_left(_SHORT_SHARES, True, key=functools.partial(enough, split)) for split in range(2))
        train, held_out = (_SHORT_SHARES[min(place, len(_SHORT_SHARES) - 1)] for place in places)
    return train, held_out
