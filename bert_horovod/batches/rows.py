"""Rows: a token store's windows as masked, padded arrays, each row a pure function of (store, seed, epoch, row).

Position p = epoch * count + i stands for row i of that epoch. Every random choice is a hash of (seed, what for,
position), so any rank can make any row, in any order, and make it again.
"""

from dataclasses import dataclass

import numpy as np

from bert_horovod.batches.index import WindowIndex, capacity
from bert_horovod.batches.order import keyed_hash, permute
from bert_horovod.config import Objective
from bert_horovod.corpus.store import Store
from bert_horovod.errors import UserError

# What a hash is drawn for.
_ORDER, _SPLIT, _LABEL, _OTHER, _MASK, _REPLACE = range(6)
_LOW_32 = np.uint64((1 << 32) - 1)
_SHIFT_32 = np.uint64(32)


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens that have a meaning of their own."""

    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int


def special_ids(vocabulary: list[str]) -> SpecialIds:
    """Ids of [PAD], [UNK], [CLS], [SEP] and [MASK]; raises UserError if one is missing."""
    ids = {token: number for number, token in enumerate(vocabulary)}
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    missing = [name for name in names if name not in ids]
    if missing:
        raise UserError(
            f"the vocabulary has no {', '.join(missing)}; expected all of {', '.join(names)}: "
            "prepare the data with a BERT vocabulary"
        )
    return SpecialIds(*(ids[name] for name in names))


def ordinary_ids(vocabulary: list[str], special: SpecialIds) -> np.ndarray:
    """Ids that text is made of, int32, ascending: not special, not [unused...]; raises UserError if there is none."""
    reserved = {special.pad, special.unknown, special.cls, special.sep, special.mask}
    ordinary = [
        number
        for number, token in enumerate(vocabulary)
        if number not in reserved and not (token.startswith("[unused") and token.endswith("]"))
    ]
    if not ordinary:
        raise UserError("the vocabulary has no ordinary tokens; prepare the data with a BERT vocabulary")
    return np.array(ordinary, np.int32)


def masked_count(tokens: np.ndarray | int, fraction: float) -> np.ndarray:
    """Masked positions of sequences with that many ordinary tokens: round(fraction * tokens), at least 1; int64."""
    return np.maximum(1, np.rint(fraction * np.asarray(tokens))).astype(np.int64)


@dataclass(frozen=True)
class _Segments:
    """Token runs, one per row: shard number, first token in it, tokens; int64 [rows] each."""

    shard: np.ndarray
    start: np.ndarray
    count: np.ndarray


class Rows:
    """The rows of one index: endless, in random access.

    Args:
        store: the token store.
        index: its window index.
        special: the vocabulary's special ids.
        sequence_length: positions per row, L; that of the index.
        objective: the recipe's; next_sentence must be that of the index.
        seed: orders rows and draws pairs and masks.
    """

    def __init__(
        self,
        store: Store,
        index: WindowIndex,
        special: SpecialIds,
        sequence_length: int,
        objective: Objective,
        seed: int,
    ) -> None:
        if (index.sequence_length, index.next_sentence) != (sequence_length, objective.next_sentence):
            raise ValueError("Rows: the index was made for another sequence_length or next_sentence")
        self.count = index.windows  # rows per epoch
        ordinary_tokens = capacity(sequence_length, objective.next_sentence)
        self.masked_slots = int(masked_count(ordinary_tokens, objective.masked_fraction))
        self._index = index
        self._special = special
        self._length = sequence_length
        self._objective = objective
        self._seed = seed
        self._ordinary = ordinary_ids(store.vocabulary, special)
        # Plain views: np.memmap makes each indexing several times slower.
        self._tokens = [np.asarray(shard.tokens) for shard in store.shards]

    def windows(self, positions: np.ndarray) -> np.ndarray:
        """The index's windows that rows begin with: int64 [R] for positions int64 [R], none negative."""
        epoch, row = np.divmod(positions, self.count)
        return permute(row, self.count, self._hash(_ORDER, index=epoch))

    def assemble(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Make the rows at these positions; a position of -1 makes a row of padding with weight zero.

        With R = len(positions), L = sequence_length, M = masked_slots, S = 1 sequence per row:

            input_ids            int32   [R, L]  masks applied, [PAD] where there is nothing
            token_type_ids       int32   [R, L]  1: second segment with its [SEP], else 0
            position_ids         int32   [R, L]  place in the sequence, from 0; 0 at padding
            sequence_ids         int32   [R, L]  1..S: which sequence of the row, attending to itself only; 0: padding
            masked_positions     int32   [R, M]  places in the row, ascending; 0 where unused
            masked_ids           int32   [R, M]  the ids that were there; 0 where unused
            masked_weights       float32 [R, M]  1 used, 0 unused
            sequence_starts      int32   [R, S]  places of [CLS]
            next_sentence_labels int32   [R, S]  0: B continues A, 1: B is from another document; 0 without pairs
            sequence_weights     float32 [R, S]  1 real, 0 none
        """
        positions = np.asarray(positions, np.int64)
        real = positions >= 0
        counter = np.where(real, positions, 0)
        window = self.windows(counter)
        if self._objective.next_sentence:
            first, second, labels = self._pairs(counter, window)
            second_count = np.where(real, second.count, 0)
        else:
            first, second, labels = self._window(window), None, np.zeros(len(window), bool)
            second_count = np.zeros(len(window), np.int64)
        first_count = np.where(real, first.count, 0)

        columns = np.arange(self._length)
        specials = 3 if second else 2
        total = np.where(real, first_count + second_count + specials, 0)[:, None]
        separator = (first_count + 1)[:, None]
        present = columns < total
        is_separator = (columns == separator) | (columns == total - 1)
        ids = np.full((len(positions), self._length), self._special.pad, np.int32)
        ids[is_separator & present] = self._special.sep
        ids[real, 0] = self._special.cls
        self._copy_tokens(ids, first, first_count, np.ones_like(first_count))
        if second:
            self._copy_tokens(ids, second, second_count, first_count + 2)

        maskable = present & ~is_separator & (columns > 0)
        masked, original, used = self._mask(ids, counter, maskable, first_count + second_count)
        return {
            "input_ids": ids,
            "token_type_ids": (present & (columns > separator)).astype(np.int32),
            "position_ids": np.where(present, columns, 0).astype(np.int32),
            "sequence_ids": present.astype(np.int32),
            "masked_positions": masked,
            "masked_ids": original,
            "masked_weights": used.astype(np.float32),
            "sequence_starts": np.zeros((len(positions), 1), np.int32),
            "next_sentence_labels": (labels & real).astype(np.int32)[:, None],
            "sequence_weights": real.astype(np.float32)[:, None],
        }

    def _hash(self, stream: int, index: np.ndarray) -> np.ndarray:
        return keyed_hash(self._seed, stream, self._length, index=index.astype(np.uint64))

    def _window(self, window: np.ndarray) -> _Segments:
        index = self._index
        return _Segments(*(array[window].astype(np.int64) for array in (index.shard, index.start, index.count)))

    def _pairs(self, counter: np.ndarray, window: np.ndarray) -> tuple[_Segments, _Segments, np.ndarray]:
        """First segments, second segments and labels (true: B is from another document).

        A window of one token has no continuation: it is the first segment of a wrong pair.
        """
        whole = self._window(window)
        split = self._own_split(counter, window, whole.count)
        first = _Segments(whole.shard, whole.start, split)
        wrong = (self._hash(_LABEL, counter) >> np.uint64(63)).astype(bool) | (whole.count == 1)
        other = self._other_document(counter, window)
        tail = self._window(other)
        room = capacity(self._length, True) - split
        # Windows are filled as far as sentences go, but for a document's last: fill wrong pairs likewise.
        last = window + 1 == self._index.first_window[self._index.document[window] + 1]
        right = np.maximum(1, whole.count - split)
        other_split = self._fitting_split(other, tail.count, np.where(last, right, room), room, right)
        shard, start, begin, count = (
            np.where(wrong, theirs, ours)
            for theirs, ours in (
                (tail.shard, whole.shard),
                (tail.start, whole.start),
                (other_split, split),
                (tail.count, whole.count),
            )
        )
        return first, _Segments(shard, start + begin, count - begin), wrong

    def _own_split(self, counter: np.ndarray, window: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Tokens of A, int64 [rows]: up to a random sentence end, or random token where the window is one sentence."""
        word = self._hash(_SPLIT, counter)
        first_end = self._index.first_end[window]
        inner = self._index.first_end[window + 1] - first_end - 1
        at_sentence = self._index.ends[first_end + _below(word, np.maximum(inner, 1))].astype(np.int64)
        at_token = 1 + _below(word, np.maximum(count - 1, 1))
        return np.where(inner > 0, at_sentence, at_token)

    def _other_document(self, counter: np.ndarray, window: np.ndarray) -> np.ndarray:
        """A window of another document, uniform over all of them, int64 [rows]: the draw steps over this document."""
        index = self._index
        document = index.document[window]
        low, high = index.first_window[document], index.first_window[document + 1]
        draw = _below(self._hash(_OTHER, counter), self.count - (high - low))
        return draw + np.where(draw >= low, high - low, 0)

    def _fitting_split(
        self, window: np.ndarray, count: np.ndarray, wanted: np.ndarray, room: np.ndarray, otherwise: np.ndarray
    ) -> np.ndarray:
        """Where the B of a wrong pair begins in its window, int64 [rows]; it ends where the window ends.

        That is at the sentence end that makes B's length closest to `wanted`, and at most `room`. Wrong pairs then are
        about as long as right ones and end as they do, at a sentence end: were another window's own B cut to fit,
        length alone would tell most of them apart. Where no sentence end fits, B is the last `otherwise` tokens.
        """
        first_end = self._index.first_end[window]
        inner = self._index.first_end[window + 1] - first_end - 1
        slots = np.arange(max(1, int(inner.max(initial=0))))
        usable = slots < inner[:, None]
        ends = self._index.ends[first_end[:, None] + np.where(usable, slots, 0)].astype(np.int64)
        length = count[:, None] - ends
        distance = np.where(usable & (length <= room[:, None]), np.abs(length - wanted[:, None]), self._length)
        best = np.argmin(distance, axis=1)[:, None]
        at_sentence = np.take_along_axis(ends, best, axis=1)[:, 0]
        found = np.take_along_axis(distance, best, axis=1)[:, 0] < self._length
        return np.where(found, at_sentence, np.maximum(0, count - otherwise))

    def _copy_tokens(self, ids: np.ndarray, segments: _Segments, count: np.ndarray, column: np.ndarray) -> None:
        """Copy the first `count` tokens of each row's segment into `ids` from `column` on; one gather per shard."""
        order = np.argsort(segments.shard, kind="stable")
        count = count[order]
        offset = np.concatenate(([0], np.cumsum(count)))
        within = np.arange(offset[-1]) - np.repeat(offset[:-1], count)
        source = np.repeat(segments.start[order], count) + within
        target = np.repeat(order * self._length + column[order], count) + within
        shards, first_row = np.unique(segments.shard[order], return_index=True)
        bounds = offset[np.append(first_row, len(order))]
        flat = ids.reshape(-1)
        for shard, low, high in zip(shards, bounds[:-1], bounds[1:], strict=True):
            flat[target[low:high]] = self._tokens[shard][source[low:high]]

    def _mask(
        self, ids: np.ndarray, counter: np.ndarray, maskable: np.ndarray, tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mask `ids` in place; returns positions, original ids (int32) and use (bool), each [rows, masked_slots].

        80 % become [MASK], 10 % a random ordinary token, 10 % stay as they are.
        """
        base = (counter * self._length)[:, None]
        column_bits = np.uint64((1 << 16) - 1)
        # Uniform without replacement: the places with the smallest hashes. Each hash carries its place in its low bits.
        columns = np.arange(self._length, dtype=np.uint64)
        keys = self._hash(_MASK, base + np.arange(self._length)) & ~column_bits | columns
        keys[~maskable] = np.uint64((1 << 64) - 1)
        keys.sort(axis=1)
        slots = np.arange(self.masked_slots)
        used = (slots < masked_count(tokens, self._objective.masked_fraction)[:, None]) & maskable.any(axis=1)[:, None]
        places = (keys[:, : self.masked_slots] & column_bits).astype(np.int64)
        places = np.sort(np.where(used, places, self._length), axis=1)
        places = np.where(used, places, 0)

        original = np.take_along_axis(ids, places, axis=1)
        word = self._hash(_REPLACE, base + places)
        tenth = (word >> _SHIFT_32) * np.uint64(10) >> _SHIFT_32
        random_ids = self._ordinary[((word & _LOW_32) * np.uint64(len(self._ordinary)) >> _SHIFT_32).astype(np.int64)]
        replaced = np.where(tenth < 8, self._special.mask, np.where(tenth == 8, random_ids, original))
        # Unused slots write back what is at place 0, which is never masked.
        np.put_along_axis(ids, places, np.where(used, replaced, original).astype(np.int32), axis=1)
        return places.astype(np.int32), np.where(used, original, 0), used


def _below(words: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Random whole numbers in [0, bound), int64, of random words uint64; a bias of bound / 2^64 remains."""
    return (words % bound.astype(np.uint64)).astype(np.int64)
