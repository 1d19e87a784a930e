"""Rows: a token store's windows as masked, packed arrays, each row a pure function of (store, seed, position).

Positions number the rows of all epochs, one after another. packing.py chooses the windows that a row holds. Every
other choice is a hash of (seed, stream, position), where the stream names the kind of choice. So any rank can make any
row, in any order, and make it again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.layout import RowLayout, lay_out
from bert_horovod.batches.order import keyed_hash, stream_seed
from bert_horovod.batches.packing import PackedOrder
from bert_horovod.batches.text.cutting import positions_of
from bert_horovod.batches.text.index import RowIndex, WindowsAt, open_index
from bert_horovod.batches.text.mask_rates import MaskRate, held_out_rate, mask_rate, masked_count
from bert_horovod.batches.text.masks import Circle, Circles, Masker, Unmasked
from bert_horovod.batches.text.pairs import PairExchange
from bert_horovod.batches.words import TokenRoles, token_roles
from bert_horovod.corpus.store import Store
from bert_horovod.corpus.tokens import TokenReader
from bert_horovod.errors import DamagedData
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import Objective

_SHARD_BITS = 40  # below the number of a shard: more than the tokens of any
_SWAP = 2  # a stream of keyed_hash, other than those of packing.py
# Streams of the recipe's seed; phase i trains on _PHASE_STREAM + i. Phase 1 thus has the number of the held-out stream,
# but not its rows, because the splits have no text in common; other numbers would change the rows of present runs.
_PHASE_STREAM, _HELD_OUT_STREAM = 102, 103


@dataclass(frozen=True)
class _Sequences:
    """The sequences of some rows, one after another; int64 [sequences] each. Tokens are numbered in their shard."""

    row: np.ndarray  # in the batch
    slot: np.ndarray  # in the row
    shard: np.ndarray
    start: np.ndarray  # first token of the first segment
    count: np.ndarray  # tokens of the first segment
    second_shard: np.ndarray
    second_start: np.ndarray
    second_count: np.ndarray  # 0: no second segment
    wrong: np.ndarray  # bool: the second segment does not continue the first


class InRun(NamedTuple):
    """What rows of one store among several take from the run: see mixture.py."""

    positions: Callable[[np.ndarray], np.ndarray]  # of the store's positions; -1 remains -1
    stair_slots: np.ndarray  # int64 [stairs]: masked positions of a row, at most
    sequences: int  # in a row, at most


class Rows:
    """The rows of one index: endless, in random access.

    `objective.pair` must be that of the index; `rate` is the fraction of tokens that is masked, with the objective's
    `masks`; `seed` orders rows and draws pairs and masks; `in_run`: None if the run has rows of no other store.
    """

    def __init__(
        self,
        store: Store,
        index: RowIndex,
        roles: TokenRoles,
        objective: Objective,
        rate: MaskRate,
        seed: int,
        in_run: InRun | None = None,
    ) -> None:
        if index.pair != objective.pair:
            raise ValueError("Rows: the index was made for another pair")
        self.count = index.rows  # rows per epoch
        in_run = in_run or InRun(lambda positions: positions, stair_slots(index, rate), index.sequences)
        self.sequences = in_run.sequences  # S, the most in a row
        sequence_length = index.sequence_length
        self._in_run, self._stair_slots = in_run.positions, in_run.stair_slots
        self.masked_slots = int(self._stair_slots.max())  # the most that a row needs
        self.slots = {"masked": self.masked_slots, "sequences": self.sequences}
        self._index, self._special = index, roles.special
        self._vocabulary_size = len(store.vocabulary)
        self._length = sequence_length
        self._pair = objective.pair
        self._seed = seed
        self._order = PackedOrder(index.templates, sequence_length, seed)
        length_count = np.asarray(index.classes.sequences)
        self._length_start = np.cumsum(length_count) - length_count
        self._exchange = PairExchange(index.classes, self._hash)
        self._rate = rate
        self._masker = Masker(roles, objective.ngram, rate, seed, sequence_length, self.sequences)
        self._circles = (
            Circles(rate, self.count, sequence_length, self._in_run) if objective.masks == "disjoint" else None
        )
        self._reader = TokenReader(store.path, store.manifest, len(store.vocabulary))

    def windows(self, positions: np.ndarray) -> np.ndarray:
        """The numbers, in the index, of the windows that rows hold: int64 [R, S] for positions int64 [R]; -1: none.

        A position of -1 has no windows. A wrong next-sentence pair counts as the window of its first segment; in
        sentence order both segments are of the window.
        """
        present, found = self._windows(positions)
        windows = np.full(present.shape, -1, np.int64)
        windows[present] = found.number
        return windows

    def _windows(self, positions: np.ndarray) -> tuple[np.ndarray, WindowsAt]:
        """Which slots of rows hold a sequence, bool [R, S], and the windows of those slots, one after another."""
        lengths, numbers = self._order.sequences(positions)
        present = numbers >= 0
        return present, self._index.of_sequences(self._length_start[lengths[present]] + numbers[present])

    def assemble(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Make the rows at these positions; a position of -1 makes a row of padding with weight zero.

        With R = len(positions), L = sequence_length, S sequences per row, at most, and M masked positions, as many as
        any row on the same stair of the mask rate needs:

            input_ids            int32   [R, L]  masks applied, [PAD] where there is nothing
            token_type_ids       int32   [R, L]  1: second segment with its [SEP], else 0
            position_ids         int32   [R, L]  place in the sequence, from 0; 0 at padding
            sequence_ids         int32   [R, L]  1..S: which sequence of the row, attending to itself only; 0: padding
            masked_positions     int32   [R, M]  places in the row, ascending; 0 where unused
            masked_ids           int32   [R, M]  the ids that were there; 0 where unused
            masked_weights       float32 [R, M]  1 used, 0 unused
            sequence_starts      int32   [R, S]  places of [CLS]; 0 where there is no sequence
            next_sentence_labels int32   [R, S]  0: B continues A; 1: B is from another document, or, in sentence
                                                 order, A and B are swapped; 0 where there is no pair
            sequence_weights     float32 [R, S]  1: counts for the pair loss, 0: no sequence or a single segment;
                                                 without pairs 1 for each sequence
        """
        positions = np.asarray(positions, np.int64)
        shape = (len(positions), self.sequences)
        sequences = self._sequences(positions)
        first, tokens, lengths = (np.zeros(shape, np.int64) for _ in range(3))
        first[sequences.row, sequences.slot] = sequences.count
        tokens[sequences.row, sequences.slot] = sequences.count + sequences.second_count
        lengths[sequences.row, sequences.slot] = positions_of(sequences.count, sequences.second_count)
        layout = lay_out(first, lengths, self._length)
        ids = layout.ids(self._special)
        starts = layout.starts
        target = sequences.row * self._length + starts[sequences.row, sequences.slot] + 1
        self._copy_tokens(ids.reshape(-1), sequences, target)
        if ids.max(initial=0) >= self._vocabulary_size:
            raise DamagedData(
                f"the token store holds the id {ids.max()}, outside of its vocabulary of {self._vocabulary_size}: "
                "it is damaged; see where with: bert-horovod verify"
            )

        run_positions = self._in_run(positions)
        real = run_positions[positions >= 0]
        slots = int(self._stair_slots[self._rate.stair(real)].max(initial=self._stair_slots.min()))
        circle = None
        if self._circles is not None:
            numbers = self._token_numbers(sequences, layout, first)
            circle = Circle(numbers, self._circles.begins(positions, tokens))
        unmasked = Unmasked(ids, positions, run_positions, layout.sequence_ids, layout.is_text, tokens)
        masked = self._masker.apply(unmasked, slots, circle)
        labels, weights = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        labels[sequences.row, sequences.slot] = sequences.wrong
        weights[sequences.row, sequences.slot] = (sequences.second_count > 0) | (self._pair == "none")
        return {
            **layout.inputs(ids),
            "masked_positions": masked.positions,
            "masked_ids": masked.ids,
            "masked_weights": masked.weights,
            "sequence_starts": starts.astype(np.int32),
            "next_sentence_labels": labels,
            "sequence_weights": weights,
        }

    @staticmethod
    def _token_numbers(sequences: _Sequences, layout: RowLayout, first: np.ndarray) -> np.ndarray:
        """For each ordinary token its shard and its place there, in one number: int64 [R, L]."""
        begin, second_begin = np.zeros((2, *first.shape), np.int64)
        shard = sequences.shard << _SHARD_BITS
        begin[sequences.row, sequences.slot] = shard + sequences.start
        second_begin[sequences.row, sequences.slot] = shard + sequences.second_start
        # A segment's first token stands behind [CLS], or behind [CLS], the first segment and [SEP].
        at_start = np.where(layout.is_second, layout.spread(second_begin - first - 2), layout.spread(begin - 1))
        return at_start + layout.place

    def _hash(self, stream: int, index: np.ndarray) -> np.ndarray:
        return keyed_hash(self._seed, stream, self._length, index=index.astype(np.uint64))

    def _sequences(self, positions: np.ndarray) -> _Sequences:
        present, windows = self._windows(positions)
        row, slot = np.nonzero(present)
        epoch = positions[row] // self.count
        found = _Sequences(
            row=row,
            slot=slot,
            shard=windows.shard,
            start=windows.start,
            count=windows.first,
            second_shard=windows.shard,
            second_start=windows.start + windows.first,
            second_count=windows.second,
            wrong=np.zeros(len(row), bool),
        )
        if self._pair == "next_sentence":
            partner = self._exchange.partners(epoch, windows.number, windows.second)
            wrong = partner != windows.number
            others = self._index.of_windows(partner[wrong])
            found.wrong[wrong] = True
            second_shard, second_start = windows.shard.copy(), found.second_start
            second_shard[wrong], second_start[wrong] = others.shard, others.start + others.first
            return replace(found, second_shard=second_shard)
        if self._pair == "sentence_order":
            words = self._hash(_SWAP, epoch * self._index.windows + windows.number)
            wrong = (words >> np.uint64(63)).astype(bool) & (windows.second > 0)
            return replace(
                found,
                start=np.where(wrong, found.second_start, found.start),
                count=np.where(wrong, found.second_count, found.count),
                second_start=np.where(wrong, found.start, found.second_start),
                second_count=np.where(wrong, found.count, found.second_count),
                wrong=wrong,
            )
        return found

    def _copy_tokens(self, flat: np.ndarray, found: _Sequences, target: np.ndarray) -> None:
        """Copy each sequence's segments: the first to place `target` in `flat`, the second behind it and its [SEP].

        Segments that lie together, in either order, are read together.
        """
        is_before = found.second_start + found.second_count == found.start
        together = (found.second_shard == found.shard) & (is_before | (found.second_start == found.start + found.count))
        is_before &= together
        apart = np.flatnonzero(~together)
        none, behind = np.zeros(len(apart), np.int64), target + found.count + 1
        shard = np.concatenate((found.shard, found.second_shard[apart]))
        begin = np.concatenate((np.where(is_before, found.second_start, found.start), found.second_start[apart]))
        first, second = found.count, np.where(together, found.second_count, 0)
        count = np.concatenate((first + second, found.second_count[apart]))
        size, dtype = self._reader.dtype.itemsize, self._reader.dtype
        # Of each run: its first segment's place, number of tokens and place in the run, in bytes; then its second's.
        copies = (
            np.concatenate((target, behind[apart])),
            np.concatenate((first, found.second_count[apart])),
            np.concatenate((np.where(is_before, size * second, 0), none)),
            np.concatenate((behind, none)),
            np.concatenate((second, none)),
            np.concatenate((np.where(is_before, 0, size * first), none)),
        )
        numbers = zip(*(numbers.tolist() for numbers in copies), strict=True)
        runs = self._reader.pages(shard, begin, count)
        for (data, offset), (place, tokens, at, other_place, other_tokens, other_at) in zip(runs, numbers, strict=True):
            flat[place : place + tokens] = np.frombuffer(data, dtype, tokens, offset + at)
            if other_tokens:
                flat[other_place : other_place + other_tokens] = np.frombuffer(
                    data, dtype, other_tokens, offset + other_at
                )


def stair_slots(index: RowIndex, rate: MaskRate) -> np.ndarray:
    """Masked positions that a row of the index needs at most, on each stair of the rate: int64 [stairs]."""
    lengths = index.templates.lengths
    tokens = index.classes.tokens[lengths]
    return np.array([np.where(lengths > 0, masked_count(tokens, most), 0).sum(axis=1).max() for most in rate.stairs])


def open_phase_index(
    store: Store, recipe: Recipe, phase: int, split: str, index_dir: Path | None = None, build: bool = True
) -> RowIndex:
    """The index of a phase's rows; arguments and errors as in open_index."""
    length, pair = recipe.phase[phase].sequence_length, recipe.objective.pair
    return open_index(store, length, pair, recipe.data.packing, split, index_dir, build)


def phase_seed(recipe: Recipe, phase: int) -> int:
    """The seed of a phase's rows for training."""
    return stream_seed(recipe.data.seed, _PHASE_STREAM + phase)


def open_rows(
    store: Store,
    recipe: Recipe,
    phase: int,
    split: str,
    index_dir: Path | None = None,
    build: bool = True,
    phases_before: int = 0,
) -> Rows:
    """The rows that a run of this recipe reads in a phase. Get a run's rows only here, so that all code has the same.

    A mixture has its rows for training in mixture.py. Other arguments and errors are those of Rows, open_index and
    token_roles.
    """
    roles = token_roles(store, recipe.objective)
    if split == "held_out":
        return open_held_out_rows(store, roles, recipe, phase, index_dir, build)
    index = open_phase_index(store, recipe, phase, split, index_dir, build)
    seed, rate = phase_seed(recipe, phases_before + phase), mask_rate(recipe, recipe.phase[phase])
    return Rows(store, index, roles, recipe.objective, rate, seed)


def open_held_out_rows(
    store: Store, roles: TokenRoles, recipe: Recipe, phase: int, index_dir: Path | None, build: bool
) -> Rows:
    """The held-out rows of a store, alone or in a mixture: ordered and masked alike in all phases of all recipes."""
    index = open_phase_index(store, recipe, phase, "held_out", index_dir, build)
    objective, seed = replace(recipe.objective, masks="drawn"), stream_seed(recipe.data.seed, _HELD_OUT_STREAM)
    return Rows(store, index, roles, objective, held_out_rate(objective), seed)
