"""Text to token ids: those of the tokenizers library, which transformers uses too, at several times its speed.

Sentences are cut into pieces (pre_tokens.py) whose ids are kept, because words come again and again. Sentences that no
rule covers go to the library. No special tokens are added, and the text of one, such as "[MASK]", is plain text.
"""

import unicodedata
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import tokenizers

from bert_horovod.corpus.reading.pre_tokens import SplitRule, rule_of
from bert_horovod.corpus.reading.tokenizer_settings import (
    NO_ID,
    TokenizerSettings,
    cutting,
    library_tokenizer,
    token_ids,
)

_CHARACTERS_AT_ONCE = 1 << 17  # calls cost time too, and the arrays fit into the cache of one core
# A rule that gives other ids for these is not used.
_SAMPLE = ["It's 3 o'clock (or 12:30), isn't it? They'll say: \"so\".", " A b c", "rock'n'roll e-mail a.b 'tis x1", ""]


class Tokenizer:
    """Ids of sentences; the vocabulary must hold the unknown token, if there is one."""

    def __init__(self, vocabulary: list[str], settings: TokenizerSettings):
        self.vocabulary = vocabulary
        self.settings = settings
        self.unknown_id = token_ids(vocabulary).get(settings.special_tokens.unknown, NO_ID)
        self.joint = settings.joint
        self._library = library_tokenizer(vocabulary, settings)
        self._model = self._library.model
        self._lowercase = settings.lowercase
        self._kept = KeptIds(self._encode)
        self._rule = rule_of(self._library)
        if self._rule is not None:
            with cutting(settings):
                same = map(np.array_equal, self._by_rule(self._rule, _SAMPLE), self._by_library(_SAMPLE))
                self._rule = self._rule if all(same) else None

    def __call__(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenize sentences; many at once are faster.

        Returns:
            ids: int32 [tokens], of all sentences one after another.
            lengths: int64 [sentences], tokens per sentence; may be zero.
        """
        ids, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for some in _groups(sentences):
            with cutting(self.settings):
                more = self._by_library(some) if self._rule is None else self._by_rule(self._rule, some)
            ids.append(more[0])
            lengths.append(more[1])
        return np.concatenate(ids), np.concatenate(lengths)

    def _by_library(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        encodings = self._library.encode_batch_fast(sentences, add_special_tokens=False)
        rows = [np.array(encoding.ids, np.int32) for encoding in encodings]
        return np.concatenate(rows), np.array([len(row) for row in rows], np.int64)

    def _by_rule(self, rule: SplitRule, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        odd = set()
        if rule.excludes("".join(sentences)):
            odd = {number for number, sentence in enumerate(sentences) if rule.excludes(sentence)}
        texts = sentences
        if odd or rule.begins_with_space:
            texts = [
                "" if number in odd else f" {sentence}" if rule.begins_with_space and sentence[:1] != " " else sentence
                for number, sentence in enumerate(sentences)
            ]
        text = "\n".join(texts) + "\n"
        encoded = text.encode()
        if self._lowercase:
            encoded = encoded.lower()  # of ASCII letters
        places = self._kept.places(encoded, rule.begins(encoded, text.isascii()))
        ids, ends = self._kept.ids(places)
        is_end = places == SEPARATOR
        ends = ends[is_end]
        lengths = np.diff(ends, prepend=0)
        odd.update(np.cumsum(is_end)[places == ODD].tolist())
        if not odd:
            return ids, lengths
        numbers = sorted(odd)
        of_sentences = np.split(ids, ends[:-1])
        others, lengths[numbers] = self._by_library([sentences[number] for number in numbers])
        for number, other in zip(numbers, np.split(others, np.cumsum(lengths[numbers])[:-1]), strict=True):
            of_sentences[number] = other
        return np.concatenate(of_sentences), lengths

    def _encode(self, pieces: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ids of pieces; see EncodePieces."""
        rule, tokenize = self._rule, self._model.tokenize
        assert rule is not None
        ids: list[int] = []
        ends, odd = np.zeros(len(pieces), np.int64), np.zeros(len(pieces), bool)
        for number, piece in enumerate(pieces):
            pre_tokens = rule.pre_tokens(piece.decode())
            odd[number] = pre_tokens is None
            for pre_token in pre_tokens or ():
                ids += [token.id for token in tokenize(pre_token)]
            ends[number] = len(ids)
        return np.array(ids, np.int32), np.diff(ends, prepend=0), odd


def _groups(sentences: list[str]) -> Iterator[list[str]]:
    """Cut sentences into groups of about equal numbers."""
    groups = sum(map(len, sentences)) // _CHARACTERS_AT_ONCE + 1
    size = -(-len(sentences) // groups) or 1
    for begin in range(0, len(sentences), size):
        yield sentences[begin : begin + size]


# A place is a number: 256 times where a piece's ids begin, and how many there are. These are of the byte between
# sentences, and of pieces whose sentence the library is to take whole.
SEPARATOR, ODD = 0, 256
_MOST_IDS = 255
_KEY_BYTES = 16
_SLOT_BITS = 17
_KEPT_PIECES = 1 << 18  # about 45 MB
_KEPT_IDS = 1 << 20
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit of a key is lost; of the golden ratio
_MIX_AGAIN = np.uint64(0xC2B2AE3D27D4EB4F)
_HALF, _SLOT_SHIFT = np.uint64(32), np.uint64(64 - _SLOT_BITS)
# Masks for the first and the second 8 bytes of a key, by the piece's length: uint64 [18]; none for longer pieces.
_LOW_MASK = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(_KEY_BYTES + 1)] + [0], np.uint64)
_HIGH_MASK = np.array([(1 << 8 * max(size - 8, 0)) - 1 for size in range(_KEY_BYTES + 1)] + [0], np.uint64)

# New pieces to (ids int32 of all of them, number of ids of each piece, whether each is odd).
EncodePieces = Callable[[list[bytes]], tuple[np.ndarray, np.ndarray, np.ndarray]]


class KeptIds:
    """The ids of pieces, in bounded memory; new pieces are encoded, all others are looked up.

    Python's dictionary knows the place of each piece's ids. In front of it NumPy looks up the pieces of at most 16
    bytes, nearly all, in a hash table whose keys are the pieces themselves.
    """

    def __init__(self, encode: EncodePieces):
        self._encode = encode
        self._clear()

    def _clear(self) -> None:
        self._places = {b"\n": SEPARATOR}
        self._ids, self._used = np.zeros(1 << 10, np.int32), 2
        # Rows of a key's two halves and its place. A row and its neighbour, whose number differs in the last bit, are
        # where a key may be.
        self._slots = np.zeros((1 << _SLOT_BITS, 3), np.uint64)

    def places(self, text: bytes, begins: np.ndarray) -> np.ndarray:
        """The places of the pieces of a text, UTF-8 without NUL: int64 [pieces], as `begins`, which rises from 0."""
        if len(self._places) > _KEPT_PIECES or self._used > _KEPT_IDS:
            self._clear()
        sizes = np.empty_like(begins)
        np.subtract(begins[1:], begins[:-1], out=sizes[:-1])
        sizes[-1] = len(text) - begins[-1]
        short = np.minimum(sizes, _KEY_BYTES + 1)
        # The 8 bytes from each byte on; a copy, because NumPy is slow to take what is not aligned.
        words = np.ndarray(len(text) + 9, "<u8", text + bytes(_KEY_BYTES), 0, (1,)).copy()
        low, high = words.take(begins), words[8:].take(begins)
        low &= _LOW_MASK.take(short)
        high &= _HIGH_MASK.take(short)
        mixed = low * _MIX
        mixed ^= mixed >> _HALF
        mixed += high
        mixed *= _MIX_AGAIN
        mixed >>= _SLOT_SHIFT
        numbers = mixed.view(np.int64)
        places, differs = self._look(numbers, low, high)
        missed = np.flatnonzero(differs)
        if len(missed):
            low, high, numbers = low[missed], high[missed], numbers[missed]
            places[missed], differs = self._look(numbers ^ 1, low, high)
            again = np.flatnonzero(differs)
            if len(again):
                missed = missed[again]
                ends = begins[missed] + sizes[missed]
                pieces = [text[begin:end] for begin, end in zip(begins[missed].tolist(), ends.tolist(), strict=True)]
                places[missed] = found = self._find(pieces)
                self._put(numbers[again], low[again], high[again], found)
        return places

    def ids(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids of pieces, one after another: int32 [ids], and where each piece's end: int64 [pieces]."""
        counts, sources = places & 255, places >> 8
        ends = np.cumsum(counts)
        targets = ends - counts
        ids = np.empty(ends[-1] + 1, np.int32)
        # A piece without ids has the target of the next one, which is written later.
        ids[targets] = self._ids.take(sources)
        number = 1
        while len(more := np.flatnonzero(counts > number)):
            counts, sources, targets = counts.take(more), sources.take(more), targets.take(more)
            ids[targets + number] = self._ids.take(sources + number)
            number += 1
        return ids[:-1], ends

    def _look(self, numbers: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The places in these slots, int64, and whether each slot has another key or the piece has none."""
        slots = self._slots.take(numbers, 0)
        differs = slots[:, 0] != low
        differs |= slots[:, 1] != high
        differs |= low == 0
        return slots[:, 2].astype(np.int64), differs

    def _find(self, pieces: list[bytes]) -> np.ndarray:
        """The places of pieces: int64 [pieces]; new ones are encoded."""
        known = self._places
        new = [piece for piece in dict.fromkeys(pieces) if piece not in known]
        if new:
            ids, counts, odd = self._encode(new)
            places = self._used + np.cumsum(counts) - counts << 8 | counts
            places[odd | (counts > _MOST_IDS)] = ODD
            known.update(zip(new, places.tolist(), strict=True))
            if self._used + len(ids) > len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros(max(len(self._ids), len(ids)), np.int32)])
            self._ids[self._used : self._used + len(ids)] = ids
            self._used += len(ids)
        return np.fromiter(map(known.__getitem__, pieces), np.int64, len(pieces))

    def _put(self, numbers: np.ndarray, low: np.ndarray, high: np.ndarray, places: np.ndarray) -> None:
        """Put keys into their slots: the first one if it is free, else the second."""
        rows = np.stack([low, high, places.view(np.uint64)], 1)[low != 0]
        numbers = numbers[low != 0]
        numbers ^= self._slots[numbers, 0] != 0
        self._slots[numbers] = rows


_TEXTS_AT_ONCE = 256


class LocatedTokens(NamedTuple):
    """Tokens of several texts, one text after another."""

    ids: np.ndarray  # int32 [tokens]
    begins: np.ndarray  # int32 [tokens]: the token's first character (Unicode code point) in its text
    ends: np.ndarray  # int32 [tokens]: one past the token's last character
    counts: np.ndarray  # int64 [texts]: tokens of each text


class LocatingTokenizer:
    """Ids of texts, with their places, so that the answer of a model can be cut out of the original text.

    The ids are those of Tokenizer, which is faster; the tokenizers library keeps the places through lower-casing,
    stripped accents and Unicode's normal forms.
    """

    def __init__(self, vocabulary: list[str], settings: TokenizerSettings) -> None:
        self._tokenizer, self._settings = library_tokenizer(vocabulary, settings), settings

    def __call__(self, texts: list[str]) -> LocatedTokens:
        """Tokenise texts, best many at once."""
        ids: list[np.ndarray] = [np.zeros(0, np.int32)]
        places: list[np.ndarray] = [np.zeros((0, 2), np.int32)]
        counts: list[int] = []
        for encoding, text in self._encodings(texts):
            ids.append(np.array(encoding.ids, np.int32))
            places.append(np.array(encoding.offsets, np.int32).reshape(-1, 2))
            counts.append(len(ids[-1]))
            if not text.isascii():
                _take_in_marks(text, places[-1])
        begins, ends = np.concatenate(places).T
        return LocatedTokens(np.concatenate(ids), begins.copy(), ends.copy(), np.array(counts, np.int64))

    def _encodings(self, texts: list[str]) -> Iterator[tuple[tokenizers.Encoding, str]]:
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            some = texts[first : first + _TEXTS_AT_ONCE]
            with cutting(self._settings):
                encodings = self._tokenizer.encode_batch(some, add_special_tokens=False)
            yield from zip(encodings, some, strict=True)


def _take_in_marks(text: str, places: np.ndarray) -> None:
    """Extend tokens over the combining marks that follow them, because an accent belongs to its letter."""
    for mark in [place for place, character in enumerate(text) if unicodedata.combining(character)]:
        places[places[:, 1] == mark, 1] = mark + 1
