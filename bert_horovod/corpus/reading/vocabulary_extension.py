"""Extends a WordPiece vocabulary by the pieces that save most tokens on a corpus, for a model that has learned it.

Ids of old tokens stay, because the model has an embedding for each. New pieces take the places of [unused...] tokens
first, whose embeddings were never trained, then places behind all others.
"""

import heapq
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from itertools import accumulate
from typing import NamedTuple

from bert_horovod.corpus.reading.tokenizer_settings import token_ids
from bert_horovod.corpus.reading.vocabulary import MAXIMUM_TOKEN_BYTES

_MOST_WORDS = 1 << 18  # words, the most frequent of those with several pieces, from which candidates are made
_LEAST_SAVED = 2  # tokens; a piece that saves fewer is not added


class Extension(NamedTuple):
    """An extended vocabulary, and what it saves on the corpus that it was made for."""

    vocabulary: list[str]
    saved: dict[str, int]  # tokens that each new piece saves, given those before it, in the order of choice
    in_unused: int  # new pieces in places of [unused...] tokens
    words: int  # of the corpus, and of punctuation marks, as many as occur
    tokens_before: int
    tokens_after: int


def unused_places(vocabulary: list[str]) -> list[int]:
    """The ids of [unused...] tokens, ascending."""
    ids = token_ids(vocabulary)
    return [
        number
        for number, token in enumerate(vocabulary)
        if token.startswith("[unused") and token.endswith("]") and ids[token] == number
    ]


def word_pieces(word: str, vocabulary: Collection[str], longest: int, continues: bool = False) -> list[str] | None:
    """Cut a word into WordPiece's pieces, the longest that fits first; None: the word is [UNK].

    `continues`: whether the word's first piece continues a word too, as of the text behind "##".

    >>> word_pieces("unaffable", {"un", "##aff", "##able", "##a"}, 6)
    ['un', '##aff', '##able']
    """
    pieces, begin = [], 0
    while begin < len(word):
        mark = "##" if begin or continues else ""
        for end in range(min(len(word), begin + longest), begin, -1):
            if (piece := mark + word[begin:end]) in vocabulary:
                break
        else:
            return None
        pieces.append(piece)
        begin = end
    return pieces


def extend_vocabulary(vocabulary: list[str], counts: Counter[str], count: int) -> Extension:
    """Add up to `count` pieces, one after another: each time the one that saves most tokens given those before it.

    A candidate is a run of neighbouring pieces of a word, joined. What it saves is counted with WordPiece's own rule,
    the longest match first, over all words that it changes. The same arguments give the same vocabulary.
    """
    saved = dict(_chosen(vocabulary, counts, count))
    places = unused_places(vocabulary)
    extended = list(vocabulary)
    for piece, place in zip(saved, places, strict=False):
        extended[place] = piece
    extended += list(saved)[len(places) :]
    return Extension(
        extended,
        saved,
        min(len(saved), len(places)),
        counts.total(),
        _tokens(vocabulary, counts),
        _tokens(extended, counts),
    )


def longest_piece(vocabulary: Collection[str]) -> int:
    """Characters of the longest token."""
    return max(map(len, vocabulary))


def _tokens(vocabulary: list[str], counts: Counter[str]) -> int:
    """The tokens of a corpus; an [UNK] is one."""
    ids = token_ids(vocabulary)
    longest = longest_piece(ids)
    return sum(count * len(word_pieces(word, ids, longest) or " ") for word, count in counts.items())


def _chosen(vocabulary: list[str], counts: Counter[str], count: int) -> Iterator[tuple[str, int]]:
    """Yield the new pieces with the tokens that they save.

    Estimates of savings stand in a heap. The savings of the piece with the highest one are then counted: it is chosen
    if they are no less than the next estimate.
    """
    corpus = _Corpus(vocabulary, counts)
    heap = [(-saving, len(piece), piece) for piece, saving in corpus.savings.items()]
    heapq.heapify(heap)
    while heap and count:
        estimate, length, piece = heapq.heappop(heap)
        if (saving := corpus.savings.get(piece, 0)) != -estimate:
            if saving > 0:
                heapq.heappush(heap, (-saving, length, piece))
            continue
        changed = corpus.recut(piece)
        counted = corpus.saved_by(changed)
        if counted < _LEAST_SAVED:
            del corpus.savings[piece]
        elif heap and counted < -heap[0][0]:
            corpus.savings[piece] = counted
            heapq.heappush(heap, (-counted, length, piece))
        else:
            for grown in corpus.add(piece, changed):
                heapq.heappush(heap, (-corpus.savings[grown], len(grown), grown))
            count -= 1
            yield piece, counted


class _Corpus:
    """The words of several pieces, and estimates of what candidates save."""

    def __init__(self, vocabulary: list[str], counts: Counter[str]) -> None:
        self._vocabulary = set(token_ids(vocabulary))
        self._longest = longest_piece(self._vocabulary)
        self._words: list[str] = []
        self._counts: list[int] = []
        self._pieces: list[list[str]] = []
        for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            pieces = word_pieces(word, self._vocabulary, self._longest)
            if pieces is not None and len(pieces) > 1:
                self._words.append(word)
                self._counts.append(count)
                self._pieces.append(pieces)
                if len(self._words) == _MOST_WORDS:
                    break
        self._text = "\n" + "\n".join(self._words) + "\n"  # a line end before each word
        self._begins = list(accumulate((len(word) + 1 for word in self._words), initial=0))  # places of these line ends
        self.savings: defaultdict[str, int] = defaultdict(int)
        for number, pieces in enumerate(self._pieces):
            self._count(pieces, self._counts[number])

    def recut(self, piece: str) -> dict[int, list[str]]:
        """The pieces of words, by their numbers, that another piece in the vocabulary would change."""
        changed, longest = {}, max(self._longest, len(piece))
        self._vocabulary.add(piece)
        for number in self._with(piece):
            pieces = word_pieces(self._words[number], self._vocabulary, longest)
            if pieces is not None and pieces != self._pieces[number]:
                changed[number] = pieces
        self._vocabulary.remove(piece)
        return changed

    def saved_by(self, changed: dict[int, list[str]]) -> int:
        """The tokens that a change of `recut` saves."""
        return sum(self._counts[word] * (len(self._pieces[word]) - len(pieces)) for word, pieces in changed.items())

    def add(self, piece: str, changed: dict[int, list[str]]) -> set[str]:
        """Add a piece to the vocabulary; returns the candidates whose estimates rise."""
        self._vocabulary.add(piece)
        self._longest = max(self._longest, len(piece))
        self.savings.pop(piece, None)
        risen: set[str] = set()
        for number, pieces in changed.items():
            self._count(self._pieces[number], -self._counts[number])
            self._pieces[number] = pieces
            risen |= self._count(pieces, self._counts[number])
        return {candidate for candidate in risen if self.savings.get(candidate, 0) > 0}

    def _count(self, pieces: list[str], count: int) -> set[str]:
        """Add a word's candidates to the estimates, or with a negative count take them off; returns the candidates."""
        candidates = set()
        for first in range(len(pieces) - 1):
            joined = pieces[first]
            for last in range(first + 1, len(pieces)):
                joined += pieces[last].removeprefix("##")
                if joined not in self._vocabulary and len(joined.encode()) <= MAXIMUM_TOKEN_BYTES:
                    self.savings[joined] += count * (last - first)
                    candidates.add(joined)
        return candidates

    def _with(self, piece: str) -> Iterator[int]:
        """The numbers of the words that hold a piece's text: at their beginning, or for a ## piece behind it."""
        continues = piece.startswith("##")
        text = piece.removeprefix("##") if continues else f"\n{piece}"
        at = self._text.find(text)
        while at >= 0:
            if continues and self._text[at - 1] == "\n":
                at = self._text.find(text, at + 1)
                continue
            word = bisect_right(self._begins, at) - 1
            yield word
            at = self._text.find(text, self._begins[word + 1])
