"""Labelled examples in memory as rows, each row a pure function of (seed, position).

An example is a text or a pair of texts. With packing, several examples share a row, and each attends only to itself.
Their lengths are packed once (packing.py); examples of equal length change places every epoch (packed_order.py).
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.layout import lay_out
from bert_horovod.batches.order import stream_seed
from bert_horovod.batches.packed_order import PackedItems
from bert_horovod.batches.special_tokens import SpecialIds, require_pairs, special_ids
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.recipe.sections import Recipe

# Streams of the recipe's seed, other ones than in batches/text/rows.py; phase i trains on _PHASE_STREAM + i.
_OTHER_STREAM, _PHASE_STREAM = 200, 201


class LabelSets(list[list[int]]):
    """The numbers of each example's labels, in ascending order; `classes`: how many labels there are.

    >>> LabelSets([[0, 2], []], 3).multi_hot().tolist()
    [[1, 0, 1], [0, 0, 0]]
    """

    def __init__(self, numbers: list[list[int]], classes: int) -> None:
        super().__init__(numbers)
        self.classes = classes

    def multi_hot(self) -> np.ndarray:
        """1 or 0, whether an example has a label: uint8 [examples, labels]."""
        array = np.zeros((len(self), self.classes), np.uint8)
        for row, numbers in zip(array, self, strict=True):
            row[numbers] = 1
        return array


class LabelledTexts(NamedTuple):
    """Examples as text."""

    texts: tuple[list[str], ...]  # the first texts; for pairs also the second texts, as many
    labels: list[int] | list[float] | LabelSets  # numbers of the labels, real numbers to predict, or any labels of each

    def label_array(self) -> np.ndarray:
        """The labels: int32 or float64 [examples], or uint8 [examples, labels] of 1 and 0."""
        if isinstance(self.labels, LabelSets):
            return self.labels.multi_hot()
        labels = np.array(self.labels)
        return labels.astype(np.float64 if labels.dtype.kind == "f" else np.int32)


class LabelledTokens(NamedTuple):
    """Examples as token ids; "sides" are 1, or 2 for pairs."""

    ids: np.ndarray  # int32 [tokens], of all texts one after another
    starts: np.ndarray  # int64 [examples, sides]: places in `ids`
    counts: np.ndarray  # int64 [examples, sides]: tokens
    labels: np.ndarray  # int32 or float64 [examples], or uint8 [examples, labels]: see LabelledTexts.label_array

    def hash(self) -> str:
        """SHA-256 of all arrays, in hexadecimal."""
        digest = hashlib.sha256()
        for array in self:
            digest.update(f"{array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def tokenised(examples: LabelledTexts, tokenizer: Tokenizer) -> LabelledTokens:
    """Tokenise all texts; no special tokens are added. Raises UserError for pairs as require_pairs."""
    if len(examples.texts) > 1:
        require_pairs(tokenizer.settings, "the checkpoint")
    ids, counts = zip(*(tokenizer(side) for side in examples.texts), strict=True)
    ends = np.cumsum(np.concatenate(counts)).reshape(len(counts), -1)
    counts = np.stack(counts)
    return LabelledTokens(np.concatenate(ids), (ends - counts).T, counts.T, examples.label_array())


def truncated(counts: np.ndarray, room: int) -> np.ndarray:
    """How many tokens each text keeps, int64 [examples, sides]; texts are cut at their ends.

    Google's run_classifier.py removes a pair's tokens one by one from the longer text, or from the second if both are
    equally long; this is the closed form.

    Args:
        counts: tokens of each text, int64 [examples, sides].
        room: tokens of an example, at most.
    """
    if counts.shape[1] == 1:
        return np.minimum(counts, room)
    first, second = counts.T
    kept_counts = (
        np.minimum(first, np.maximum(room - second, room - room // 2)),
        np.minimum(second, np.maximum(room - first, room // 2)),
    )
    return np.stack(kept_counts, axis=1)


class LabelledRows:
    """The rows of a split, endless, in random access; see batches.source.Source.

    Args:
        examples: the split's examples, at least one.
        special: the vocabulary's special ids.
        sequence_length: positions per row, L; longer examples are cut.
        seed: orders the rows.
        packing: whether several examples share a row.
    """

    def __init__(
        self, examples: LabelledTokens, special: SpecialIds, sequence_length: int, seed: int, packing: bool = True
    ) -> None:
        sides = examples.counts.shape[1]
        kept_counts = truncated(examples.counts, sequence_length - 1 - sides)
        lengths = kept_counts.sum(axis=1) + 1 + sides
        self._order = PackedItems(lengths, sequence_length, seed, packing)
        self.count = self._order.count
        self.slots = {"examples": self._order.slots}
        missing = np.zeros((len(kept_counts), 2 - sides), np.int64)
        self._ids, self.labels = np.append(examples.ids, np.int32(special.pad)), examples.labels
        self._starts = np.concatenate((examples.starts, missing), axis=1)
        self._kept = np.concatenate((kept_counts, missing), axis=1)
        classes = self.labels.dtype == np.int32
        self._label_name = "labels" if classes else "targets"
        self._label_dtype = np.dtype(np.int32 if classes else np.float32)
        self._special = special
        self._length = sequence_length

    def examples(self, positions: np.ndarray) -> np.ndarray:
        """The numbers of the examples that rows hold: int64 [R, S] for positions int64 [R]; -1: none."""
        return self._order.members(positions)

    def by_example(self, outputs: np.ndarray) -> np.ndarray:
        """Sort outputs of all rows, [count, S, ...], into the order of the examples, [examples, ...]."""
        number = self.examples(np.arange(self.count))
        ordered = np.empty((len(self.labels), *outputs.shape[2:]), outputs.dtype)
        ordered[number[number >= 0]] = outputs[number >= 0]
        return ordered

    def _labels_at(self, number: np.ndarray, real: np.ndarray) -> np.ndarray:
        """The labels of examples, 0 where `real` is false: [R, S, ...] for [R, S] both."""
        return np.where(real.reshape(*real.shape, *[1] * (self.labels.ndim - 1)), self.labels[number], 0)

    def assemble(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Make the rows at these positions; a position of -1 makes a row of padding with weight zero.

        An example is [CLS] A [SEP] or [CLS] A [SEP] B [SEP]. With R = len(positions), L = sequence_length, S examples
        per row, at most:

            input_ids       int32   [R, L]  [PAD] where there is nothing
            token_type_ids  int32   [R, L]  1: second text with its [SEP], else 0
            position_ids    int32   [R, L]  place in the example, from 0; 0 at padding
            sequence_ids    int32   [R, L]  1..S: which example of the row, attending to itself only; 0: padding
            cls_positions   int32   [R, S]  places of [CLS]; 0 where there is no example
            labels          int32   [R, S]  0 where there is no example; for real numbers instead: targets, float32;
                                            for any number of labels: targets, 1 or 0, float32 [R, S, labels]
            weights         float32 [R, S]  1: an example, 0: none
        """
        lengths, _ = self._order.sequences(positions)
        number = self.examples(positions)
        real = number >= 0
        number = np.maximum(number, 0)
        first = self._kept[number, 0]
        layout = lay_out(first, lengths, self._length)
        first_start, second_start = (layout.spread(start) for start in np.moveaxis(self._starts[number], -1, 0))
        source = np.where(
            layout.is_second, second_start + layout.place - layout.spread(first) - 2, first_start + layout.place - 1
        )
        ids = np.where(layout.is_text, self._ids[np.where(layout.is_text, source, -1)], layout.ids(self._special))
        return {
            **layout.inputs(ids),
            "cls_positions": layout.starts.astype(np.int32),
            self._label_name: self._labels_at(number, real).astype(self._label_dtype),
            "weights": real.astype(np.float32),
        }


@dataclass(frozen=True)
class LabelledDataset:
    """Labelled examples as the dataset of a run; see batches.source.Dataset.

    Args:
        path: where the texts are from.
        vocabulary, tokenizer_settings: the tokenizer's.
        recipe: the run's; it gives sequence lengths, the seed and whether examples share rows.
        splits: the examples, at least one each: "train", "held_out", and others by any name.

    Raises:
        UserError: the vocabulary lacks a special token.
    """

    path: Path
    vocabulary: list[str]
    tokenizer_settings: TokenizerSettings
    recipe: Recipe
    splits: dict[str, LabelledTokens]

    def __post_init__(self) -> None:
        special_ids(self.vocabulary, self.tokenizer_settings)

    @cached_property
    def hash(self) -> str:
        splits = {name: examples.hash() for name, examples in self.splits.items()}
        described = [self.vocabulary, self.tokenizer_settings.hashed(), splits]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()

    @property
    def tokens(self) -> int:
        return sum(len(examples.ids) for examples in self.splits.values())

    def make_files(self, phase: int, world: World) -> None:
        pass

    def open(self, phase: int, split: str, build: bool = True) -> LabelledRows:
        return self.rows(phase, self.splits[split], training=split == "train")

    def rows(self, phase: int, examples: LabelledTokens, training: bool = False) -> LabelledRows:
        """Examples as rows of a phase's length."""
        return LabelledRows(
            examples,
            special_ids(self.vocabulary, self.tokenizer_settings),
            self.recipe.phase[phase].sequence_length,
            self.seed(phase, training),
            self.recipe.data.packing,
        )

    def seed(self, phase: int, training: bool) -> int:
        """The seed of the order of rows."""
        return stream_seed(self.recipe.data.seed, _PHASE_STREAM + phase if training else _OTHER_STREAM)
