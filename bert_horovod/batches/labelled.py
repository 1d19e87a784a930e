"""Labelled examples in memory as rows: a text or a pair of texts each, every row a pure function of (seed, position).

Position p = epoch * count + i stands for row i of that epoch; a bijection over the examples, keyed by seed and epoch,
says which example that is. So each example is in each epoch once, and any rank can make any row.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.order import keyed_hash, permute, stream_seed
from bert_horovod.batches.special_tokens import SpecialIds, special_ids
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.recipe.sections import Recipe

# Streams of the recipe's seed, apart from those of batches/rows.py; phase i trains on the second + i.
_HELD_OUT_STREAM, _PHASE_STREAM = 200, 201


class LabelledTexts(NamedTuple):
    """Examples as text."""

    texts: tuple[list[str], ...]  # the first texts; for pairs also the second texts, as many
    labels: list[int]


class LabelledTokens(NamedTuple):
    """Examples as token ids; "sides" are 1, or 2 for pairs."""

    ids: np.ndarray  # int32 [tokens], of all texts one after another
    starts: np.ndarray  # int64 [examples, sides]: places in `ids`
    counts: np.ndarray  # int64 [examples, sides]: tokens
    labels: np.ndarray  # int32 [examples]


def tokenised(examples: LabelledTexts, tokenizer: Tokenizer) -> LabelledTokens:
    """Tokenise all texts; no special tokens are added."""
    ids, counts = zip(*(tokenizer(side) for side in examples.texts), strict=True)
    ends = np.cumsum(np.concatenate(counts)).reshape(len(counts), -1)
    counts = np.stack(counts)
    return LabelledTokens(np.concatenate(ids), (ends - counts).T, counts.T, np.array(examples.labels, np.int32))


def truncated(counts: np.ndarray, room: int) -> np.ndarray:
    """The tokens that stay of each text, int64 [examples, sides]; texts are cut at their ends.

    A pair loses tokens from the longer text, from the second where both are as long, one by one (Google's
    run_classifier.py); this is the closed form.

    Args:
        counts: tokens of each text, int64 [examples, sides].
        room: tokens of an example, at most.
    """
    if counts.shape[1] == 1:
        return np.minimum(counts, room)
    first, second = counts.T
    kept = (
        np.minimum(first, np.maximum(room - second, room - room // 2)),
        np.minimum(second, np.maximum(room - first, room // 2)),
    )
    return np.stack(kept, axis=1)


class LabelledRows:
    """The rows of a split, endless, in random access; see batches.source.Source.

    Args:
        examples: the split's.
        special: the vocabulary's special ids.
        sequence_length: positions per row, L.
        seed: orders the rows.
    """

    def __init__(self, examples: LabelledTokens, special: SpecialIds, sequence_length: int, seed: int) -> None:
        self.count = len(examples.labels)
        self.slots = {"examples": 1}
        sides = examples.counts.shape[1]
        kept = truncated(examples.counts, sequence_length - 1 - sides)
        missing = np.zeros((self.count, 2 - sides), np.int64)
        self._ids, self.labels = np.append(examples.ids, np.int32(special.pad)), examples.labels
        self._starts = np.concatenate((examples.starts, missing), axis=1)
        self._kept = np.concatenate((kept, missing), axis=1)
        self._pairs = sides == 2
        self._special = special
        self._length = sequence_length
        self._seed = seed

    def examples(self, positions: np.ndarray) -> np.ndarray:
        """The numbers of the examples at these positions, int64 [rows]; -1 for a position of -1."""
        positions = np.asarray(positions, np.int64)
        epoch, row = np.divmod(np.maximum(positions, 0), self.count)
        example = permute(row, self.count, keyed_hash(self._seed, index=epoch.astype(np.uint64)))
        return np.where(positions >= 0, example, -1)

    def assemble(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Make the rows at these positions; a position of -1 makes a row of padding with weight zero.

        A row is [CLS] A [SEP] or [CLS] A [SEP] B [SEP], then [PAD]. With R = len(positions), L = sequence_length:

            input_ids       int32   [R, L]
            token_type_ids  int32   [R, L]  1: second text with its [SEP], else 0
            position_ids    int32   [R, L]  place in the row; 0 at padding
            sequence_ids    int32   [R, L]  1; 0 at padding
            labels          int32   [R]     0 where there is no example
            weights         float32 [R]     1: an example, 0: none
        """
        number = self.examples(positions)
        real = number >= 0
        number = np.where(real, number, 0)
        first, second = self._kept[number].T[..., None]  # (rows, 1) each
        first_start, second_start = self._starts[number].T[..., None]
        place = np.arange(self._length)[None]
        length = first + 2 + (second + 1) * self._pairs
        present = (place < length) & real[:, None]
        is_second = present & (place > first + 1)
        is_text = (place > 0) & (place != first + 1) & (place < length - self._pairs) & present
        source = np.where(is_second, second_start + place - first - 2, first_start + place - 1)
        ids = self._ids[np.where(is_text, source, -1)]
        ids[present & (place == 0)] = self._special.cls
        ids[present & ((place == first + 1) | (place == length - 1))] = self._special.sep
        return {
            "input_ids": ids,
            "token_type_ids": is_second.astype(np.int32),
            "position_ids": np.where(present, place, 0).astype(np.int32),
            "sequence_ids": present.astype(np.int32),
            "labels": np.where(real, self.labels[number], 0).astype(np.int32),
            "weights": real.astype(np.float32),
        }


@dataclass(frozen=True)
class LabelledDataset:
    """Labelled examples as what a run reads; see batches.source.Dataset.

    Args:
        path: where the texts are from.
        vocabulary, lowercase: the tokenizer's.
        recipe: the run's; it gives sequence lengths and the seed.
        train, held_out: the examples, at least one each.

    Raises:
        UserError: the vocabulary lacks a special token.
    """

    path: Path
    vocabulary: list[str]
    lowercase: bool
    recipe: Recipe
    train: LabelledTexts
    held_out: LabelledTexts

    def __post_init__(self) -> None:
        special_ids(self.vocabulary)

    @cached_property
    def hash(self) -> str:
        content = [self.vocabulary, self.lowercase, self.train, self.held_out]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def tokens(self) -> int:
        return sum(len(examples.ids) for examples in self._tokenised.values())

    def open(self, phase: int, split: str, build: bool = True) -> LabelledRows:
        stream = _PHASE_STREAM + phase if split == "train" else _HELD_OUT_STREAM
        return LabelledRows(
            self._tokenised[split],
            special_ids(self.vocabulary),
            self.recipe.phase[phase].sequence_length,
            stream_seed(self.recipe.data.seed, stream),
        )

    @cached_property
    def _tokenised(self) -> dict[str, LabelledTokens]:
        """Made when first needed: the tokenizer is TensorFlow's, which must know its devices first."""
        tokenizer = Tokenizer(self.vocabulary, self.lowercase)
        return {"train": tokenised(self.train, tokenizer), "held_out": tokenised(self.held_out, tokenizer)}
