"""Masked tokens: chooses the places of a row that are predicted, and the tokens that the model sees there instead.

Masks that do not repeat: over epochs each token of a sequence is predicted once before any is predicted twice. The
tokens of a sequence stand in a circle, in an order that is drawn once for the phase. An epoch masks as many as
masked_count says, beginning where the epoch before it ended. With a rate that falls, each earlier epoch counts as if
all its rows had its largest rate, so that no token is masked twice in one turn.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.order import keyed_hash
from bert_horovod.batches.text.mask_rates import MaskRate, masked_count
from bert_horovod.batches.words import TokenRoles, WordBoundaries, choose_spans, draw_lengths, find_words

# Streams of keyed_hash: one for each kind of draw.
_MASK, _REPLACE, _SPAN, _CIRCLE = range(200, 204)
_LOW_32 = np.uint64((1 << 32) - 1)
_SHIFT_32 = np.uint64(32)
_LAST = np.uint64((1 << 64) - 1)


class Unmasked(NamedTuple):
    """Rows as they are before masking."""

    ids: np.ndarray  # int32 [R, L]
    positions: np.ndarray  # int64 [R], the rows' numbers, counted over all epochs
    run_positions: np.ndarray  # int64 [R], where the run has them; other than `positions` in a mixture of stores
    sequence_ids: np.ndarray  # int [R, L], 1 to S; 0: padding
    maskable: np.ndarray  # bool [R, L]: ordinary tokens
    tokens: np.ndarray  # int64 [R, S]: ordinary tokens per sequence; 0: none


class Masked(NamedTuple):
    """The tokens to predict, [rows, slots] each."""

    positions: np.ndarray  # int32: places in the row, ascending; 0 where unused
    ids: np.ndarray  # int32: the original ids; 0 where unused
    weights: np.ndarray  # float32: 1 used, 0 unused


class Circle(NamedTuple):
    """What disjoint masks depend on in place of the row's position: see Circles."""

    tokens: np.ndarray  # int64 [R, L]: a number for each ordinary token of the store, the same in every epoch
    begins: np.ndarray  # int64 [R, S]: the rank of the first masked token in the order of the sequence's circle


class Masker:
    """Draws masks, a pure function of (seed, row's position, place).

    `longest_span` is of words, `seed` is that of the run's phase, `sequences` the most sequences in a row, S.
    """

    def __init__(
        self, roles: TokenRoles, longest_span: int, rate: MaskRate, seed: int, sequence_length: int, sequences: int
    ) -> None:
        special, self._ordinary, self._words, self._priority = roles
        self._mask_id = special.mask
        self._longest_span = longest_span
        self._rate = rate
        self._seed = seed
        self._length = sequence_length
        self._column_bits = max(1, (sequence_length - 1).bit_length())
        self._sequence_bits = sequences.bit_length()

    def apply(self, rows: Unmasked, slots: int, circle: Circle | None = None) -> Masked:
        """Mask the rows' ids in place: 80 % of the places become [MASK], 10 % a random ordinary token, 10 % stay.

        `slots`: masked positions of a row, at least as many as any of these rows needs. `circle`: for disjoint masks;
        None: they are drawn anew in each epoch.
        """
        ids, positions, run_positions, _, _, tokens = rows
        budgets = np.where(tokens > 0, masked_count(tokens, self._rate.at(run_positions)[:, None]), 0)
        if self._longest_span == 1:
            places = self._places(rows, budgets, circle)
        else:
            places = self._span_places(rows, budgets[tokens > 0])
        row, column = np.divmod(places, self._length)
        slot = np.arange(len(places)) - np.searchsorted(places, row * self._length)
        original = ids.reshape(-1)[places]
        words = self._hash(_REPLACE, positions[row] * self._length + column)
        tenth = (words >> _SHIFT_32) * np.uint64(10) >> _SHIFT_32
        drawn = (words & _LOW_32) * np.uint64(len(self._ordinary)) >> _SHIFT_32
        shown = np.where(tenth == 8, self._ordinary[drawn.astype(np.int64)], original)
        ids.reshape(-1)[places] = np.where(tenth < 8, self._mask_id, shown)
        masked = Masked(*(np.zeros((len(ids), slots), kind) for kind in (np.int32, np.int32, np.float32)))
        for array, content in zip(masked, (column, original, 1), strict=True):
            array[row, slot] = content
        return masked

    def _hash(self, stream: int, index: np.ndarray) -> np.ndarray:
        return keyed_hash(self._seed, stream, self._length, index=index.astype(np.uint64))

    def _places(self, rows: Unmasked, budgets: np.ndarray, circle: Circle | None) -> np.ndarray:
        """Masked places in the flat batch, ascending: in each sequence the places with the smallest hashes.

        With a circle they are those from its begin on.

        A sort key holds, from the high bits to the low: sequence in the row, hash, first column of the word, column.
        """
        ids, positions, _, sequence_ids, maskable, tokens = rows
        columns = np.broadcast_to(np.arange(self._length), ids.shape)
        words = columns if self._words is None else self._word_starts(self._words, ids, maskable)
        at = (positions * self._length)[:, None] + words
        hashes = self._hash(_MASK, at) if circle is None else self._hash(_CIRCLE, circle.tokens)
        hashes = self._in_order(hashes, ids, maskable)
        low = np.uint64(2 * self._column_bits)
        keys = hashes >> np.uint64(self._sequence_bits) >> low << low
        keys |= sequence_ids.astype(np.uint64) << np.uint64(64 - self._sequence_bits)
        keys |= words.astype(np.uint64) << np.uint64(self._column_bits) | columns.astype(np.uint64)
        keys[~maskable] = _LAST
        keys.sort(axis=1)  # (R, L)
        # A sorted row has its sequences in the order of their numbers, then the places that cannot be masked.
        behind = self._length - tokens.sum(axis=1, keepdims=True)
        counts = np.concatenate((tokens, behind), axis=1)  # (R, S + 1)
        none = np.zeros_like(behind)
        budgets = np.concatenate((budgets, none), axis=1).ravel()  # (R * (S + 1),)
        starts = np.cumsum(counts) - counts.ravel()  # (R * (S + 1),), in the flat batch
        owner = np.repeat(np.arange(counts.size), counts.ravel())  # (R * L,): index in starts and budgets
        rank = np.arange(keys.size) - starts[owner]
        if circle is not None:
            begins = np.concatenate((circle.begins, none), axis=1).ravel()
            rank = (rank - begins[owner]) % counts.ravel()[owner]
        chosen = rank < budgets[owner]
        if self._words is not None:
            chosen = self._whole_words(keys.ravel() >> np.uint64(self._column_bits), owner, budgets, chosen)
        column = (keys.ravel()[chosen] & np.uint64((1 << self._column_bits) - 1)).astype(np.int64)
        return np.sort(np.flatnonzero(chosen) // self._length * self._length + column)

    def _span_places(self, rows: Unmasked, budgets: np.ndarray) -> np.ndarray:
        """Masked places in the flat batch, ascending: spans of words or tokens per sequence; see words.py."""
        ids, positions, _, sequence_ids, maskable, _ = rows
        begins = maskable
        if self._words is not None:
            begins = maskable & (self._word_starts(self._words, ids, maskable) == np.arange(self._length))
        words = find_words(begins, maskable, sequence_ids)
        row, column = np.divmod(words.start, self._length)
        at = positions[row] * self._length + column
        lengths = draw_lengths(words.left, self._longest_span, self._hash(_SPAN, at) / 2.0**64)
        order = self._in_order(self._hash(_MASK, at), ids, maskable, words.start)
        return choose_spans(words, lengths, order, budgets)

    def _in_order(
        self, hashes: np.ndarray, ids: np.ndarray, maskable: np.ndarray, places: np.ndarray | slice = slice(None)
    ) -> np.ndarray:
        """The hashes by which some places, or words, are tried: with a list the highest bit is 0 for words of it."""
        if self._priority is None:
            return hashes
        starts = self._word_starts(self._priority.boundaries, ids, maskable)
        listed = self._priority.places(ids, starts, maskable)
        others = ~(listed if isinstance(places, slice) else listed.ravel()[places])
        return hashes >> np.uint64(1) | others.astype(np.uint64) << np.uint64(63)

    def _word_starts(self, boundaries: WordBoundaries, ids: np.ndarray, maskable: np.ndarray) -> np.ndarray:
        """The column where each place's word begins, int64 [R, L]; a segment's first piece always begins a word."""
        continues = boundaries.continues(ids) & maskable
        continues[:, 1:] &= maskable[:, :-1]
        return np.maximum.accumulate(np.where(continues, 0, np.arange(self._length)), axis=1)

    def _whole_words(self, words: np.ndarray, owner: np.ndarray, budgets: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Choose the masked places of the sorted batch, bool: words in their order, without words that do not fit.

        If no word of a sequence fits into its budget, its first tokens in this order are masked (`first`); they are of
        one word.
        """
        begins = np.append(True, (words[1:] != words[:-1]) | (owner[1:] != owner[:-1]))
        word = np.cumsum(begins) - 1
        size = np.bincount(word)
        owner_of_word = owner[begins]
        first_word = np.searchsorted(owner_of_word, owner_of_word)  # of the same sequence
        chosen = np.zeros(len(size), bool)
        budget_left = budgets.copy()
        candidate = size <= budget_left[owner_of_word]
        while candidate.any():
            total = np.concatenate(([0], np.cumsum(np.where(candidate, size, 0))))
            take = candidate & (total[1:] - total[first_word] <= budget_left[owner_of_word])
            chosen |= take
            budget_left -= np.bincount(owner_of_word[take], size[take], len(budget_left)).astype(np.int64)
            candidate &= ~take & (size <= budget_left[owner_of_word])
        return np.where((budget_left < budgets)[owner], chosen[word], first)


_AT_ONCE = 4096  # epochs that are summed in one array


class Circles:
    """Where epochs of so many rows begin in the circles of sequences, a pure function of the epoch.

    `in_run`: gives the run's positions of the rows' positions, as the rate counts them.
    """

    def __init__(self, rate: MaskRate, rows: int, length: int, in_run: Callable[[np.ndarray], np.ndarray]) -> None:
        self._rate, self._rows, self._length, self._in_run = rate, rows, length, in_run
        self._before = lru_cache(maxsize=16)(self._masked_before)

    def begins(self, positions: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The rank of the first token that is masked, int64 [R, S]; `tokens`: ordinary ones, int64 [R, S]."""
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
            ends = self._rate.at(self._in_run(np.stack((epochs * self._rows, (epochs + 1) * self._rows - 1))))
            total += masked_count(tokens, ends.max(axis=0)[:, None]).sum(axis=0)
        return total
