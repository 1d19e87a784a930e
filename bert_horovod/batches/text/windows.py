"""Windows: a shard's sections, cut at sentence ends; each window becomes one sequence.

Sections are cut greedily: as many whole sentences as fit. A sentence that is longer than a window is cut into pieces
first. Greedy windows leave holes of half a sentence at the ends of their rows, and a long document has no window that
is short enough to fill them. So for packing a share of the windows is drawn short: one sentence of at most
`SHORT_TOKENS`.

With pairs, a window of two or more sentences is split into two segments at one of its inner sentence ends, always the
same one. For next-sentence prediction, the length of the second segment is chosen: of all lengths that it could have,
the one that comes first in a fixed random order of lengths. Most windows then share a few lengths, so that second
segments of equal length can change places in a small corpus too. For sentence order, where the two segments of a window
change places, such a length would reveal which segment was second. There a window is split at the inner sentence end
nearest to its middle. A window of one sentence stays a single segment.
"""

import functools
from dataclasses import dataclass

import numpy as np

from bert_horovod.batches.order import keyed_hash, permute
from bert_horovod.corpus.shard import Shard

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

    Args:
        shard: the shard's arrays.
        limit: tokens in a window, at most; a longer sentence is cut into pieces of this length, from its start.
        token_base: tokens of the store before this shard; this plus a window's start is the index of its draw.
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
        """Cut.

        Args:
            chosen: bool [sections], which sections are cut.
            pair: the recipe's objective.pair: how windows are split into two segments, if at all.
            short_share: probability that a window is drawn short if more of its section is left than fits a window;
                of all sections, or float64 [sections].
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
