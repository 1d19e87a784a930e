"""Cuts shards into the windows of both splits, and finds the share of windows to draw short.

A shard is cut part by part, because memory then holds one part, and because a part of today was a shard of its own when
the order of rows was fixed: equal runs of a class are told apart by part.

Windows: a shard's sections, cut at sentence ends; each window becomes one sequence. Sections are cut greedily: as many
whole sentences as fit. A sentence that is longer than a window is cut into pieces first. Greedy windows leave holes of
half a sentence at the ends of their rows, and a long document has no window that is short enough to fill them. So for
packing a share of the windows is drawn short: one sentence of at most `SHORT_TOKENS`.

With pairs, a window of two or more sentences is split into two segments at one of its inner sentence ends, always the
same one. For next-sentence prediction, the length of the second segment is chosen: of all lengths that it could have,
the one that comes first in a fixed random order of lengths. Most windows then share a few lengths, so that second
segments of equal length can change places in a small corpus too. For sentence order, where the two segments of a window
change places, such a length would reveal which segment was second. There a window is split at the inner sentence end
nearest to its middle. A window of one sentence stays a single segment.
"""

import bisect
import functools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.order import keyed_hash, permute
from bert_horovod.batches.packing import fill, pack
from bert_horovod.corpus.shard import Shard
from bert_horovod.corpus.statistics import kept_sections
from bert_horovod.corpus.store import Store

SHORT_TOKENS = 64  # longer windows fit few holes: holes are as long as sentences, whatever the sequence length
_KEY = 0  # windows do not depend on a run's seed
_SHORT_STREAM, _SPLIT_STREAM = range(2)


@dataclass(frozen=True)
class Windows:
    """Windows in the order of their text; int64 [windows] each."""

    start: np.ndarray  # first token in the shard
    first: np.ndarray  # tokens of the first segment, at least 1
    second: np.ndarray  # tokens of the second segment; 0: there is none
    section: np.ndarray  # in the shard
    document: np.ndarray  # in the shard


class Cutter:
    """Cuts a shard's sections into windows, all sections in lockstep, as often as asked for.

    A sentence longer than `limit`, the most tokens of a window, is cut into pieces of this length, from its start.
    `token_base`: tokens of the store before this shard; this plus a window's start is the index of its draw.
    """

    def __init__(self, shard: Shard, limit: int, token_base: int = 0) -> None:
        sentences, sections, self._documents = (
            np.asarray(array, np.int64) for array in (shard.sentences, shard.sections, shard.documents)
        )
        self._limit = limit
        pieces = -(-np.diff(sentences) // limit)  # per sentence
        first_piece = np.concatenate(([0], np.cumsum(pieces)))
        sentence = np.repeat(np.arange(len(pieces)), pieces)  # per piece
        bounds = sentences[sentence] + limit * (np.arange(len(sentence)) - first_piece[sentence])
        bounds = self._bounds = np.append(bounds, sentences[-1:])
        self._section_piece = first_piece[sections]
        self._section = np.repeat(np.arange(len(sections) - 1), np.diff(self._section_piece))  # per piece
        stop = self._section_piece[1:][self._section]  # per piece: the end of its section
        # Per piece: the end of a window that begins there.
        self._reach = np.minimum(np.searchsorted(bounds, bounds[:-1] + limit, side="right") - 1, stop)
        may_be_short = np.diff(bounds) <= min(SHORT_TOKENS, limit // 2)
        may_be_short &= bounds[stop] - bounds[:-1] > limit
        self._may_be_short, self._token_base = np.flatnonzero(may_be_short), token_base

    @functools.cached_property
    def _draw(self) -> np.ndarray:
        """Random words for the pieces that may be a short window: uint64."""
        index = (self._token_base + self._bounds[self._may_be_short]).astype(np.uint64)
        return keyed_hash(_KEY, _SHORT_STREAM, index=index)

    def windows(self, chosen: np.ndarray, pair: str, short_share: np.ndarray | float) -> Windows:
        """Cut the chosen sections, bool [sections]; the recipe's `pair` says how windows are split into two segments.

        `short_share`: probability that a window is drawn short if more of its section is left than fits a window, of
        all sections, or float64 [sections].
        """
        bounds = self._bounds
        piece, end = self._cut(chosen, short_share)
        count = bounds[end] - bounds[piece]
        if pair == "none":
            second = np.zeros_like(count)
        elif pair == "sentence_order":
            second = bounds[end] - bounds[_nearest_to_middle(bounds, piece, end)]
        else:
            second = _common_second_tokens(bounds, piece, end, self._limit)
        section = self._section[piece]
        document = np.searchsorted(self._documents, section, side="right") - 1
        return Windows(bounds[piece], count - second, second, section, document)

    def positions(self, chosen: np.ndarray, pair: str, short_share: float) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the sequences that `windows` would give, and their sections: int64 [windows] each."""
        piece, end = self._cut(chosen, short_share)
        has_two = (end - piece > 1) & (pair != "none")
        return self._bounds[end] - self._bounds[piece] + 2 + has_two, self._section[piece]

    def _cut(self, chosen: np.ndarray, short_share: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
        """The first piece of each window, and one past its last."""
        reach = self._reach
        if np.any(short_share):
            below = np.asarray(np.asarray(short_share) * 2.0**64, np.uint64)
            if below.ndim:
                below = below[self._section[self._may_be_short]]
            reach = reach.copy()
            short = self._may_be_short[self._draw < below]
            reach[short] = short + 1
        window_begin, end = self._section_piece[:-1][chosen], self._section_piece[1:][chosen]
        begins = np.zeros(len(reach), bool)
        while len(window_begin):
            begins[window_begin] = True
            window_begin = reach[window_begin]
            inside = window_begin < end
            window_begin, end = window_begin[inside], end[inside]
        piece = np.flatnonzero(begins)
        return piece, reach[piece]


def _nearest_to_middle(bounds: np.ndarray, piece: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The inner sentence end nearest to each window's middle, as its place in `bounds`; `end` where there is none."""
    middle = (bounds[piece] + bounds[end]) / 2
    lowest = piece + 1
    after = np.clip(np.searchsorted(bounds, middle), lowest, np.maximum(end - 1, lowest))
    before = np.maximum(after - 1, lowest)
    return np.where(middle - bounds[before] <= bounds[after] - middle, before, after)


def _common_second_tokens(bounds: np.ndarray, piece: np.ndarray, end: np.ndarray, limit: int) -> np.ndarray:
    """Tokens of the windows' second segments, int64 [windows]; 0 where a window has no inner sentence end."""
    second = np.zeros(len(piece), np.int64)
    inner = end - piece - 1
    several = np.flatnonzero(inner)
    if not len(several):
        return second
    count = inner[several]
    offset = np.cumsum(count) - count
    place = np.arange(count.sum()) + np.repeat(piece[several] + 1 - offset, count)
    length = bounds[np.repeat(end[several], count)] - bounds[place]
    rank = permute(np.arange(limit), limit, keyed_hash(_KEY, _SPLIT_STREAM, index=np.zeros(1, np.uint64)))
    second[several] = np.argsort(rank)[np.minimum.reduceat(rank[length], offset)]
    return second


SPLITS = ("train", "held_out")
# Possible shares of windows drawn short (see above). The smallest that fills enough of the rows is taken, because
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
    """Cut a shard once, for both splits."""
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
