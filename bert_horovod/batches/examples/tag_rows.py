"""Tagged sentences as rows of windows."""

from typing import NamedTuple

import numpy as np

from bert_horovod.batches.examples.base import Arrays, PackedRows
from bert_horovod.batches.examples.tag_windows import TaggedTokens, cut_words, fitted
from bert_horovod.batches.layout import Layout
from bert_horovod.batches.special_tokens import SpecialIds


class WordPlaces(NamedTuple):
    """Where the first pieces of words are among all rows of an epoch; int64 [words that have a piece] each."""

    word: np.ndarray  # number among the words of all sentences, ascending
    row: np.ndarray
    position: np.ndarray


class TagRows(PackedRows):
    """Windows of sentences as rows; see PackedRows. At least one word of the sentences has a piece.

    The arrays are:

        labels          int32   [R, L]  at a word's first piece the number of its label, else 0
        weights         float32 [R, L]  1: the first piece of a word that belongs to the window; else 0
    """

    slot, stream = "sentences", 400

    def __init__(
        self, tokens: TaggedTokens, special: SpecialIds, sequence_length: int, seed: int = 0, packing: bool = True
    ) -> None:
        tokens = fitted(tokens, sequence_length)
        self.tokens, self.windows = tokens, cut_words(tokens, sequence_length)
        starts, ends = (tokens.word_starts[words][:, None] for words in (self.windows.begin, self.windows.end))
        super().__init__(tokens.ids, starts, ends - starts, special, sequence_length, seed, packing)
        counts = np.diff(tokens.word_starts)
        self._word = np.repeat(np.arange(len(counts)), counts)  # of each piece
        self._is_first = np.arange(len(tokens.ids)) == tokens.word_starts[self._word]

    def word_places(self) -> WordPlaces:
        """Where the words' outputs are in the first epoch's rows, each word in the window that it belongs to."""
        row, start = self.places()
        windows = self.windows
        own_counts = windows.own_end - windows.own_begin
        window = np.repeat(np.arange(len(own_counts)), own_counts)
        word = np.arange(len(window)) + np.repeat(windows.own_begin - np.cumsum(own_counts) + own_counts, own_counts)
        position = start[window] + 1 + self.tokens.word_starts[word] - self._starts[window, 0]
        present = np.diff(self.tokens.word_starts)[word] > 0
        return WordPlaces(word[present], row[window[present]], position[present])

    def arrays(self, members: np.ndarray, real: np.ndarray, layout: Layout, source: np.ndarray) -> Arrays:
        word = self._word[source]
        begin, end = (layout.spread(own[members]) for own in (self.windows.own_begin, self.windows.own_end))
        counted = layout.is_text & self._is_first[source] & (begin <= word) & (word < end)
        return {
            "labels": np.where(counted, self.tokens.labels[word], 0).astype(np.int32),
            "weights": counted.astype(np.float32),
        }
