"""What all kinds of labelled data share: their rows, each a pure function of (seed, position), and a run's dataset.

With packing, several items share a row, and each attends only to itself. Their lengths are packed once (packing.py);
items of equal length change places every epoch (packing.py).
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_horovod.batches.layout import RowLayout, SpecialIds, lay_out, special_ids
from bert_horovod.batches.order import stream_seed
from bert_horovod.batches.packing import PackedItems
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.recipe.sections import Recipe

Arrays = dict[str, np.ndarray]


class PackedRows:
    """The rows of a split, endless, in random access; see batches.source.Source. Each kind has a subclass.

    An item, such as a text or a window, is [CLS] A [SEP] or [CLS] A [SEP] B [SEP], or with two [SEP] between A and B.
    `ids` are those of the tokens of all texts, int32 [tokens]; `starts` and `counts` the places in them, and the
    tokens, of each item's A, or A and B, int64 [items, 1 or 2]. No item is longer than sequence_length, L.
    """

    slot: ClassVar[str]  # the items' name, as the task counts them
    stream: ClassVar[int]  # of the recipe's seed, for held-out rows; phase i trains on stream + 1 + i. No two are equal

    def __init__(
        self,
        ids: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
        special: SpecialIds,
        sequence_length: int,
        seed: int,
        packing: bool,
    ) -> None:
        items, parts = counts.shape
        none = np.zeros((items, 2 - parts), np.int64)
        self.lengths = counts.sum(axis=1) + special_count(parts, special)  # positions of each item
        self._order = PackedItems(self.lengths, sequence_length, seed, packing)
        self.count = self._order.count
        self.slots = {self.slot: self._order.slots}
        self.length = self.positions = sequence_length  # `positions`: of all that one position of `assemble` makes
        self._ids, self._special = ids, special
        self._starts, self._counts = (np.concatenate((each, none), axis=1) for each in (starts, counts))

    def members(self, positions: np.ndarray) -> np.ndarray:
        """The numbers of the items that rows hold: int64 [R, S] for positions int64 [R]; -1: none."""
        return self._order.members(positions)

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Each item's row in the first epoch, and the place of its [CLS] in that row: int64 [items] each."""
        members = self.members(np.arange(self.count))
        real = members >= 0
        lengths = np.where(real, self.lengths[members], 0)
        row, place = np.zeros((2, len(self.lengths)), np.int64)
        row[members[real]] = np.nonzero(real)[0]
        place[members[real]] = (np.cumsum(lengths, axis=1) - lengths)[real]
        return row, place

    def by_item(self, outputs: np.ndarray) -> np.ndarray:
        """Sort outputs of all rows, [count, S, ...], into the order of the items, [items, ...]."""
        members = self.members(np.arange(self.count))
        ordered = np.empty((len(self.lengths), *outputs.shape[2:]), outputs.dtype)
        ordered[members[members >= 0]] = outputs[members >= 0]
        return ordered

    def sequences(self, members: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The sequences of rows: starts and counts, int64 [rows, sequences, 2], and lengths, [rows, sequences].

        `members`: numbers of items, int64 [R, S], any number where there is none; there the length is 0.
        """
        return self._starts[members], self._counts[members], np.where(real, self.lengths[members], 0)

    def arrays(self, members: np.ndarray, real: np.ndarray, layout: RowLayout, source: np.ndarray) -> Arrays:
        """The labels and weights of rows: 0 where there is no item; `members` and `real` as in `sequences`.

        `source`: places in `ids` of the rows' tokens, int64 [R, L]; 0 at special tokens and padding.
        """
        raise NotImplementedError

    def assemble(self, positions: np.ndarray) -> Arrays:
        """Make the rows at these positions; a position of -1 makes a row of padding with weight zero.

        With R = len(positions), L = sequence_length, S items per row, at most, beside what `arrays` makes:

            input_ids       int32   [R, L]  [PAD] where there is nothing
            token_type_ids  int32   [R, L]  1: B with its [SEP], else 0; all 0 where the tokenizer has no types
            position_ids    int32   [R, L]  place in the item, from 0; 0 at padding
            sequence_ids    int32   [R, L]  1..S: which item of the row, attending to itself only; 0: padding
        """
        members = self.members(positions)
        real = members >= 0
        members = np.maximum(members, 0)
        starts, counts, lengths = self.sequences(members, real)
        first = counts[..., 0]
        separators, typed = self._special.pair
        layout = lay_out(first, lengths, self.length, separators)
        second = starts[..., 1] - first - separators
        begin = np.where(layout.is_second, layout.spread(second), layout.spread(starts[..., 0]))
        source = np.where(layout.is_text, begin + layout.place - 1, 0)
        ids = layout.ids(self._special)
        ids[layout.is_text] = self._ids[source[layout.is_text]]
        return layout.inputs(ids, typed) | self.arrays(members, real, layout, source)


def special_count(parts: int, special: SpecialIds) -> int:
    """Special tokens of an item of one text or two."""
    return 2 if parts == 1 else 2 + special.pair.separators


@dataclass(frozen=True)
class LabelledDataset:
    """Labelled data of a kind as the dataset of a run; see batches.source.Dataset.

    Raises UserError if the vocabulary lacks a special token.
    """

    path: Path  # where the texts are from
    vocabulary: list[str]
    tokenizer_settings: TokenizerSettings
    recipe: Recipe  # it gives sequence lengths, the seed and whether items share rows
    splits: dict[str, Any]  # "train", "held_out", and others by any name: arrays, those of token ids first
    kind: Any  # the subclass of PackedRows, called with arrays, special ids, length, seed, packing and `options`
    options: dict[str, Any] = field(default_factory=dict)
    described: tuple = ()  # what else tells these data from others, for the hash
    text_key: str = ""

    def __post_init__(self) -> None:
        special_ids(self.vocabulary, self.tokenizer_settings)

    @cached_property
    def hash(self) -> str:
        splits = {name: hash_of(arrays) for name, arrays in self.splits.items()}
        described = [self.vocabulary, self.tokenizer_settings.hashed(), *self.described, splits]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()

    @property
    def tokens(self) -> int:
        return sum(len(arrays[0]) for arrays in self.splits.values())

    def make_files(self, phase: int, world: World) -> None:
        pass

    def open(self, phase: int, split: str, build: bool = True) -> PackedRows:
        return self.rows(phase, self.splits[split], training=split == "train")

    def rows(self, phase: int, arrays: Any, training: bool = False) -> PackedRows:
        """A split's arrays as rows of a phase's length."""
        stream = self.kind.stream + (1 + phase if training else 0)
        return self.kind(
            arrays,
            special_ids(self.vocabulary, self.tokenizer_settings),
            self.recipe.phase[phase].sequence_length,
            stream_seed(self.recipe.data.seed, stream),
            self.recipe.data.packing,
            **self.options,
        )


def hash_of(arrays: Iterable[np.ndarray], begun: bytes = b"") -> str:
    """SHA-256 of some bytes and all arrays, in hexadecimal."""
    digest = hashlib.sha256(begun)
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
