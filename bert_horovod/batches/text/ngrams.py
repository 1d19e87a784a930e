"""Spans of words for masking, as ALBERT draws them (Lan et al. 2020, arXiv 1909.11942, and its published code).

In each sequence, words are tried in random order until the budget is used:

    n ~ p(n) proportional to 1/n, for n up to the longest span, and up to the words that the segment has left
    span = the word and the n - 1 behind it
    while the span is longer than what is left of the budget and n > 1: n = n - 1
    the span is masked, unless it is still too long or one of its words is masked already

Two things differ from the published code: n is drawn by seed, and no span goes over the end of a segment.
"""

from typing import NamedTuple

import numpy as np


class Words(NamedTuple):
    """The words of a batch in the order of its text: W words in Q sequences."""

    start: np.ndarray  # int64 [W]: first token, in the flat batch; a word's tokens lie one after another
    size: np.ndarray  # int64 [W]: its tokens
    left: np.ndarray  # int64 [W]: words from this one to its segment's end, itself included
    first: np.ndarray  # int64 [Q + 1]: the first word of each sequence, and W


def find_words(begins: np.ndarray, maskable: np.ndarray, sequence_ids: np.ndarray) -> Words:
    """Find the words of rows.

    Args:
        begins: bool [R, L]: places where a word begins.
        maskable: bool [R, L]: ordinary tokens; all other tokens separate segments.
        sequence_ids: int [R, L], 1 to S <= L; 0: padding.
    """
    length = begins.shape[1]
    start = np.flatnonzero(begins)
    tokens = np.cumsum(maskable)  # (R * L,): ordinary tokens up to each place, itself included
    before = tokens[start] - 1
    size = np.diff(before, append=tokens[-1])
    # Two words are in one segment if the second begins where the first ends.
    goes_on = start[1:] == start[:-1] + size[:-1]
    segment_ends = np.append(np.flatnonzero(~goes_on), len(start) - 1)
    words = np.arange(len(start))
    left = segment_ends[np.searchsorted(segment_ends, words)] - words + 1
    row = start // length
    sequence = row * (length + 1) + sequence_ids.ravel()[start]
    first = np.flatnonzero(np.append(True, sequence[1:] != sequence[:-1]))
    return Words(start, size, left, np.append(first, len(start)))


def draw_lengths(left: np.ndarray, longest: int, draws: np.ndarray) -> np.ndarray:
    """Draw how many words the span that begins at each word has, int64 [W].

    Args:
        left: see Words.
        longest: words of a span, at most.
        draws: float64 [W], uniform in [0, 1).

    >>> draws = np.array([0.0, 0.5, 0.6, 0.9])  # with at most 3 words p(n) is 6/11, 3/11, 2/11
    >>> draw_lengths(np.array([5, 5, 5, 1]), longest=3, draws=draws).tolist()
    [1, 1, 2, 1]
    """
    odds = np.cumsum(1 / np.arange(1, longest + 1))  # of spans of at most 1, 2, ... words; not normalised
    scaled = draws * odds[np.minimum(left, longest) - 1]
    return np.searchsorted(odds, scaled, side="right") + 1


def choose_spans(words: Words, lengths: np.ndarray, hashes: np.ndarray, budgets: np.ndarray) -> np.ndarray:
    """Choose the masked places in the flat batch, ascending; int64.

    Each sequence tries its words in the order of their hashes. If no word fits into its budget, the first tokens of the
    first word that it tries are masked.

    Args:
        words: the batch's.
        lengths: int64 [W], words of the span that begins at each.
        hashes: uint64 [W].
        budgets: int64 [Q], the most tokens to mask in each sequence.
    """
    first, end = words.first[:-1], words.first[1:]
    order = np.lexsort((hashes, np.repeat(np.arange(len(budgets)), end - first)))
    masked = np.zeros(len(order), bool)
    tokens = np.concatenate(([0], np.cumsum(words.size)))
    at, budget = _first_spans(words, lengths, order, tokens, budgets, masked)
    behind = np.arange(int(lengths.max(initial=1)))
    tries = np.flatnonzero((budget > 0) & (at < end))
    while len(tries):  # each pass tries one word of each sequence
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
    """Mask the first spans of each sequence, as many as fit into its budget together, in a few vectorised rounds.

    In each round a span is masked if it is the first of the undecided spans for each of its words; then the spans that
    share a word with it are decided: they are dropped. The result is the same as if spans were tried one by one.

    Args:
        words, lengths, budgets: see choose_spans.
        order: int64 [W], words as their sequences try them.
        tokens: int64 [W + 1], tokens of the batch before each word.
        masked: bool [W], is changed.

    Returns:
        at: int64 [Q], the places in `order` of the next words to try.
        budget: int64 [Q], tokens of the budgets that are left.
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
