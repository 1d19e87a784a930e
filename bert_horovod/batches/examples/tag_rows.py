"""Tagged sentences as rows: packed windows, each row a pure function of (seed, position).

With packing, several windows share a row, and each attends only to itself. Their lengths are packed once (packing.py);
windows of equal length change places every epoch (packed_order.py).
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.examples.tag_windows import SPECIAL_TOKENS, TaggedTokens, cut_words, fitted
from bert_horovod.batches.layout import lay_out
from bert_horovod.batches.order import stream_seed
from bert_horovod.batches.packed_order import PackedItems
from bert_horovod.batches.special_tokens import SpecialIds, special_ids
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.recipe.sections import Recipe

# Streams of the recipe's seed, others than in text/rows.py, labelled.py and span_rows.py; phase i trains on
# _PHASE_STREAM + i.
_OTHER_STREAM, _PHASE_STREAM = 400, 401


class WordPlaces(NamedTuple):
    """Where the first pieces of words are among all rows of an epoch; int64 [words that have a piece] each."""

    word: np.ndarray  # number among the words of all sentences, ascending
    row: np.ndarray
    position: np.ndarray


class TagRows:
    """The rows of a split, endless, in random access; see batches.source.Source.

    Args:
        tokens: the sentences; at least one word has a piece.
        special: the vocabulary's special ids.
        sequence_length: positions per row, L.
        seed: orders the rows.
        packing: whether several windows share a row.
    """

    def __init__(
        self, tokens: TaggedTokens, special: SpecialIds, sequence_length: int, seed: int = 0, packing: bool = True
    ) -> None:
        tokens = fitted(tokens, sequence_length)
        self.tokens, self.windows = tokens, cut_words(tokens, sequence_length)
        self._first = tokens.word_starts[self.windows.begin]
        self._counts = tokens.word_starts[self.windows.end] - self._first
        self._order = PackedItems(self._counts + SPECIAL_TOKENS, sequence_length, seed, packing)
        self.count = self._order.count
        self.slots = {"sentences": self._order.slots}
        counts = np.diff(tokens.word_starts)
        self._word = np.repeat(np.arange(len(counts)), counts)  # of each piece
        self._is_first = np.arange(len(tokens.ids)) == tokens.word_starts[self._word]
        self._special, self._length = special, sequence_length

    def examples(self, positions: np.ndarray) -> np.ndarray:
        """The numbers of the windows that rows hold: int64 [R, S] for positions int64 [R]; -1: none."""
        return self._order.members(positions)

    def places(self) -> WordPlaces:
        """Where the words' outputs are in the first epoch's rows, each word in the window that it belongs to."""
        members = self.examples(np.arange(self.count))
        lengths = np.where(members >= 0, self._counts[members] + SPECIAL_TOKENS, 0)
        starts = np.cumsum(lengths, axis=1) - lengths
        row, start = np.zeros((2, len(self._counts)), np.int64)
        row[members[members >= 0]] = np.nonzero(members >= 0)[0]
        start[members[members >= 0]] = starts[members >= 0]
        windows = self.windows
        own_counts = windows.own_end - windows.own_begin
        window = np.repeat(np.arange(len(own_counts)), own_counts)
        word = np.arange(len(window)) + np.repeat(windows.own_begin - np.cumsum(own_counts) + own_counts, own_counts)
        position = start[window] + 1 + self.tokens.word_starts[word] - self._first[window]
        present = np.diff(self.tokens.word_starts)[word] > 0
        return WordPlaces(word[present], row[window[present]], position[present])

    def assemble(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Make the rows at these positions; a position of -1 makes a row of padding with weight zero.

        A window is [CLS] words [SEP]. With R = len(positions), L = sequence_length, S windows per row, at most:

            input_ids       int32   [R, L]  [PAD] where there is nothing
            token_type_ids  int32   [R, L]  0
            position_ids    int32   [R, L]  place in the window, from 0; 0 at padding
            sequence_ids    int32   [R, L]  1..S: which window of the row, attending to itself only; 0: padding
            labels          int32   [R, L]  at a word's first piece the number of its label, else 0
            weights         float32 [R, L]  1: the first piece of a word that belongs to the window; else 0
        """
        members = self.examples(positions)
        real = members >= 0
        counts = np.where(real, self._counts[members], 0)
        layout = lay_out(counts, np.where(real, counts + SPECIAL_TOKENS, 0), self._length)
        ids = layout.ids(self._special)
        piece = np.where(layout.is_text, layout.spread(np.where(real, self._first[members], 0)) + layout.place - 1, 0)
        ids[layout.is_text] = self.tokens.ids[piece[layout.is_text]]
        word = self._word[piece]
        begin, end = (
            layout.spread(np.where(real, own[members], 0)) for own in (self.windows.own_begin, self.windows.own_end)
        )
        counted = layout.is_text & self._is_first[piece] & (begin <= word) & (word < end)
        return {
            **layout.inputs(ids),
            "labels": np.where(counted, self.tokens.labels[word], 0).astype(np.int32),
            "weights": counted.astype(np.float32),
        }


@dataclass(frozen=True)
class TagDataset:
    """Tagged sentences as the dataset of a run; see batches.source.Dataset.

    Args:
        path: where the texts are from.
        vocabulary, tokenizer_settings: the tokenizer's.
        recipe: the run's; it gives sequence lengths, the seed and whether windows share rows.
        labels: names in the order of their numbers.
        splits: the sentences: "train", "held_out", and others by any name.

    Raises:
        UserError: the vocabulary lacks a special token.
    """

    path: Path
    vocabulary: list[str]
    tokenizer_settings: TokenizerSettings
    recipe: Recipe
    labels: tuple[str, ...]
    splits: dict[str, TaggedTokens]

    def __post_init__(self) -> None:
        special_ids(self.vocabulary, self.tokenizer_settings)

    @cached_property
    def hash(self) -> str:
        splits = {name: sentences.hash() for name, sentences in self.splits.items()}
        described = [self.vocabulary, self.tokenizer_settings.hashed(), self.labels, splits]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()

    @property
    def tokens(self) -> int:
        return sum(len(sentences.ids) for sentences in self.splits.values())

    def make_files(self, phase: int, world: World) -> None:
        pass

    def open(self, phase: int, split: str, build: bool = True) -> TagRows:
        return self.rows(phase, self.splits[split], training=split == "train")

    def rows(self, phase: int, sentences: TaggedTokens, training: bool = False) -> TagRows:
        """Sentences as rows of a phase's length."""
        return TagRows(
            sentences,
            special_ids(self.vocabulary, self.tokenizer_settings),
            self.recipe.phase[phase].sequence_length,
            stream_seed(self.recipe.data.seed, _PHASE_STREAM + phase if training else _OTHER_STREAM),
            self.recipe.data.packing,
        )
