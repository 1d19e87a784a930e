"""Text to token ids and the place of each token, so that the answer of a model can be cut out of the original text.

The ids are those of corpus/reading/tokenizer.py. That tokenizer is faster, but does not keep the places of
tokens; the tokenizers library keeps them through lower-casing, stripped accents and Unicode's normal forms.
"""

import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tokenizers

from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings, library_tokenizer
from bert_horovod.corpus.reading.tokenizers_library import cutting

_TEXTS_AT_ONCE = 256


class LocatedTokens(NamedTuple):
    """Tokens of several texts, one text after another."""

    ids: np.ndarray  # int32 [tokens]
    begins: np.ndarray  # int32 [tokens]: the token's first character (Unicode code point) in its text
    ends: np.ndarray  # int32 [tokens]: one past the token's last character
    counts: np.ndarray  # int64 [texts]: tokens of each text


class LocatingTokenizer:
    """WordPiece ids of texts, with their places; no special tokens are added, and "[MASK]" is plain text.

    Args:
        vocabulary: tokens; a token's place is its id; must hold [UNK].
        settings: how text is normalised and cut first.
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
