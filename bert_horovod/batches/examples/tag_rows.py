"""Tagged sentences as token ids, and as rows of windows.

A sentence that is longer than a row is read in windows of whole words, each beginning half a row after the one before.
Each word belongs to one window: where it has the most context on its shorter side.
"""

import bisect
import itertools
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.examples.base import Arrays, PackedRows
from bert_horovod.batches.layout import RowLayout, SpecialIds
from bert_horovod.corpus.reading.tokenizer import Tokenizer

SPECIAL_TOKENS = 2  # [CLS] words [SEP]


class TaggedTokens(NamedTuple):
    """Sentences as token ids."""

    ids: np.ndarray  # int32 [pieces], of all words one after another
    word_starts: np.ndarray  # int64 [words + 1]: places in `ids`; a word may have no piece
    sentence_starts: np.ndarray  # int64 [sentences + 1]: places among the words
    labels: np.ndarray  # int32 [words]: numbers of the labels


class TagWindows(NamedTuple):
    """Windows in the order of their words; int64 [windows] each, numbers of words among those of all sentences."""

    begin: np.ndarray  # first word
    end: np.ndarray  # one past the last word
    own_begin: np.ndarray  # first word that belongs to this window
    own_end: np.ndarray  # one past the last one that does


def tokenised_words(
    sentences: list[list[str]], labels: list[list[int]], tokenizer: Tokenizer, blanks: bool = True
) -> TaggedTokens:
    """Tokenise each word by itself; no special tokens are added. An empty list of labels stands for zeros.

    Where a word after a space has other pieces, as in byte-level BPE, all but a sentence's first have one before them
    with `blanks`, as in text; transformers' is_split_into_words puts none.
    """
    spaces = ["", tokenizer.joint if blanks else ""]
    ids, counts = tokenizer([spaces[place > 0] + word for words in sentences for place, word in enumerate(words)])
    numbers = [
        number for words, of_words in zip(sentences, labels, strict=True) for number in of_words or [0] * len(words)
    ]
    return TaggedTokens(ids, _starts(counts), _starts([len(words) for words in sentences]), np.array(numbers, np.int32))


def fitted(tokens: TaggedTokens, sequence_length: int) -> TaggedTokens:
    """The tokens with words cut to the pieces that a row has room for: only a word without an end needs it."""
    room = sequence_length - SPECIAL_TOKENS
    counts = np.diff(tokens.word_starts)
    if counts.max(initial=0) <= room:
        return tokens
    place = np.arange(len(tokens.ids)) - np.repeat(tokens.word_starts[:-1], counts)
    return tokens._replace(ids=tokens.ids[place < room], word_starts=_starts(np.minimum(counts, room)))


def cut_words(tokens: TaggedTokens, sequence_length: int) -> TagWindows:
    """Cut windows: every word with a piece belongs to one. A sentence without pieces has no window."""
    room = sequence_length - SPECIAL_TOKENS
    first, end = tokens.sentence_starts[:-1], tokens.sentence_starts[1:]
    pieces = tokens.word_starts[end] - tokens.word_starts[first]
    whole = (pieces > 0) & (pieces <= room)
    short = np.stack([first, end, first, end], 1)[whole]
    places = tokens.word_starts.tolist() if (pieces > room).any() else []
    long = [
        window
        for sentence in np.flatnonzero(pieces > room).tolist()
        for window in _cut(places, int(first[sentence]), int(end[sentence]), room)
    ]
    windows = np.concatenate((short, np.array(long, np.int64).reshape(-1, 4)))
    return TagWindows(*windows[np.argsort(windows[:, 0], kind="stable")].T)


def _cut(places: list[int], first: int, last: int, room: int) -> list[tuple[int, int, int, int]]:
    """The windows of a sentence: words from `first` to before `last`; `places`: where each word's pieces begin."""
    spans, begin, end = [], first, first
    while end < last:
        end = bisect.bisect_right(places, places[begin] + room, begin + 1, last + 1) - 1
        spans.append((begin, end))
        begin = bisect.bisect_left(places, places[begin] + (room + 1) // 2, begin + 1, end)
    # Where two windows share words, the first word that is behind the middle of their overlap belongs to the second.
    bounds = [first]
    for (_, end), (begin, _) in itertools.pairwise(spans):
        middle = places[begin] + places[end]
        bounds.append(next((word for word in range(begin, end) if places[word] + places[word + 1] > middle), end))
    bounds.append(last)
    return [(*span, *own) for span, own in zip(spans, itertools.pairwise(bounds), strict=True)]


def _starts(counts: np.ndarray | list[int]) -> np.ndarray:
    """Where each begins, and at the end their sum, int64 [n + 1]."""
    return np.append(0, np.cumsum(counts)).astype(np.int64)


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

    def arrays(self, members: np.ndarray, real: np.ndarray, layout: RowLayout, source: np.ndarray) -> Arrays:
        word = self._word[source]
        begin, end = (layout.spread(own[members]) for own in (self.windows.own_begin, self.windows.own_end))
        counted = layout.is_text & self._is_first[source] & (begin <= word) & (word < end)
        return {
            "labels": np.where(counted, self.tokens.labels[word], 0).astype(np.int32),
            "weights": counted.astype(np.float32),
        }
