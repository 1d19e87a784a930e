"""Spans of words for masking, as ALBERT draws them (Lan et al. 2020, arXiv 1909.11942, and its published code).

Of each sequence, words in random order, until the budget is used:

    n ~ p(n) proportional to 1/n, for n up to the longest span, and up to the words that the segment has left
    span = the word and the n - 1 behind it
    while the span is longer than what is left of the budget and n > 1: n = n - 1
    the span is masked, unless it is still too long or one of its words is masked already

Two things differ from the published code: n is drawn by seed, and no span goes on from one segment into the next.
"""

from typing import NamedTuple

import numpy as np


class Words(NamedTuple):
    """The words of a batch in the order of its text; W of them, in Q sequences."""

    start: np.ndarray  # int64 [W]: first token, in the flat batch; a word's tokens lie one after another
    size: np.ndarray  # int64 [W]: its tokens
    left: np.ndarray  # int64 [W]: words from this one to its segment's end, itself included
    first: np.ndarray  # int64 [Q + 1]: the first word of each sequence, and W


def find_words(begins: np.ndarray, maskable: np.ndarray, sequence_ids: np.ndarray) -> Words:
    """The words of rows.

    Args:
        begins: bool [R, L]: places where a word begins.
        maskable: bool [R, L]: ordinary tokens; what lies between two runs of them divides segments.
        sequence_ids: int [R, L], 1 to S <= L; 0: padding.
    """
    length = begins.shape[1]
    start = np.flatnonzero(begins)
    tokens = np.cumsum(maskable)  # up to and with each place
    before = tokens[start] - 1
    size = np.diff(before, append=tokens[-1])
    # Two words are of one segment where nothing lies between them.
    goes_on = start[1:] == start[:-1] + size[:-1]
    segment_ends = np.append(np.flatnonzero(~goes_on), len(start) - 1)
    words = np.arange(len(start))
    left = segment_ends[np.searchsorted(segment_ends, words)] - words + 1
    row = start // length
    sequence = row * (length + 1) + sequence_ids.ravel()[start]
    first = np.flatnonzero(np.append(True, sequence[1:] != sequence[:-1]))
    return Words(start, size, left, np.append(first, len(start)))


def draw_lengths(left: np.ndarray, longest: int, draws: np.ndarray) -> np.ndarray:
    """Words of the span that begins at each word, int64 [W].

    Args:
        left: see Words.
        longest: words of a span, at most.
        draws: float64 [W], uniform in [0, 1).
    """
    odds = np.cumsum(1 / np.arange(1, longest + 1))  # of a span of at most 1, 2, ... words; not normalised
    scaled = draws * odds[np.minimum(left, longest) - 1]
    return np.searchsorted(odds, scaled, side="right") + 1


def choose_spans(words: Words, lengths: np.ndarray, hashes: np.ndarray, budgets: np.ndarray) -> np.ndarray:
    """Places that are masked, in the flat batch, ascending; int64.

    Each sequence tries its words in the order of their hashes. A sequence of which no word fits masks the first tokens
    of the first word that it tries.

    Args:
        words: those of the batch.
        lengths: int64 [W], words of the span that begins at each.
        hashes: uint64 [W].
        budgets: int64 [Q], tokens that are masked, at most.
    """
    first, end = words.first[:-1], words.first[1:]
    order = np.lexsort((hashes, np.repeat(np.arange(len(budgets)), end - first)))
    masked = np.zeros(len(order), bool)
    tokens = np.concatenate(([0], np.cumsum(words.size)))
    at, budget = _first_spans(words, lengths, order, tokens, budgets, masked)
    behind = np.arange(int(lengths.max(initial=1)))
    tries = np.flatnonzero((budget > 0) & (at < end))
    while len(tries):  # a word of each sequence at once
        word, left = order[at[tries]], budget[tries]
        span = word[:, None] + np.minimum(behind, lengths[word, None] - 1)
        sizes = tokens[span + 1] - tokens[word, None]
        fitting = np.minimum((sizes <= left[:, None]).sum(axis=1), lengths[word])
        inside = behind < fitting[:, None]
        free = (fitting > 0) & ~(masked[span] & inside).any(axis=1)
        masked[span[inside & free[:, None]]] = True
        budget[tries] = left - np.where(free, tokens[word + fitting] - tokens[word], 0)
        at[tries] += 1
        tries = tries[(budget[tries] > 0) & (at[tries] < end[tries])]
    size = np.where(masked, words.size, 0)
    none = budget == budgets
    size[order[first[none]]] = budgets[none]
    some = np.flatnonzero(size)
    size = size[some]
    return np.repeat(words.start[some] - (np.cumsum(size) - size), size) + np.arange(size.sum())


def _first_spans(
    words: Words, lengths: np.ndarray, order: np.ndarray, tokens: np.ndarray, budgets: np.ndarray, masked: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mask the spans with which each sequence begins, as many as fit into its budget together, all at once.

    A span is masked where it is the first of the undecided ones for each of its words; then it decides those that
    share a word with it. So in a few rounds the result is that of trying them one by one.

    Args:
        words, lengths, budgets: see choose_spans.
        order: int64 [W], words as their sequences try them.
        tokens: int64 [W + 1], tokens of the batch before each word.
        masked: bool [W], is changed.

    Returns:
        at: int64 [Q], the places in `order` of the next words to try.
        budget: int64 [Q], what is left.
    """
    first = words.first[:-1]
    total = np.cumsum(tokens[order + lengths[order]] - tokens[order])
    before = np.append(0, total)[first]
    at = np.searchsorted(total, before + budgets, side="right")
    count = at - first
    sequence = np.repeat(np.arange(len(first)), count)
    tried = np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count)
    word, spent = order[tried], np.zeros(len(first), np.int64)
    behind = np.arange(int(lengths.max(initial=1)))
    span = word[:, None] + np.minimum(behind, lengths[word, None] - 1)
    while len(word):
        earliest = np.full(len(order), len(order))
        np.minimum.at(earliest, span.ravel(), np.repeat(tried, len(behind)))
        wins = (earliest[span] == tried[:, None]).all(axis=1)
        masked[span[wins]] = True
        size = tokens[span[wins, -1] + 1] - tokens[word[wins]]
        spent += np.bincount(sequence[wins], size, len(first)).astype(np.int64)
        undecided = ~masked[span].any(axis=1)
        word, span, tried, sequence = (array[undecided] for array in (word, span, tried, sequence))
    return at, budgets - spent
