"""Which tokens continue the word of the token before them: for masks of whole words, and for rows as text."""

import unicodedata

import numpy as np

from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer, TokenizerSettings

# Kinds of characters. A part is some bytes of a character, which a byte-level token may begin or end with.
_LETTER, _NUMBER, _OTHER, _PART = range(4)
_SAMPLES = "a1!"  # one of each of the first three kinds


class WordBoundaries:
    """The boundaries of words between tokens, as the texts of the tokens tell them.

    In BERT's WordPiece a token continues a word if it begins with ##. In other tokenizers it does if its text does not
    begin with a space, and if the pre-tokenizer would not cut a text between the character before it and its first
    one; the pre-tokenizer is asked for each two kinds of characters: letters, numbers and others.

    Args:
        vocabulary: tokens by id.
        settings: the tokenizer's.

    Attributes:
        texts: the text of each token, without the mark or space that tells whether it continues a word.
    """

    def __init__(self, vocabulary: list[str], settings: TokenizerSettings) -> None:
        self._joins: np.ndarray | None = None
        if not isinstance(settings, JsonTokenizer):
            self._continues = np.array([token.startswith("##") and len(token) > 2 for token in vocabulary])
            self.texts = [token[2 * goes_on :] for token, goes_on in zip(vocabulary, self._continues, strict=True)]
            return
        texts = _decoded(vocabulary, settings)
        self._continues = np.array([not text[:1].isspace() for text in texts])
        self.texts = [text.strip() or text or token for text, token in zip(texts, vocabulary, strict=True)]
        self._first = np.array([_kind(text[:1]) for text in self.texts])
        self._last = np.array([_kind(text[-1:]) for text in self.texts])
        self._joins = _joins(settings)

    def continues(self, ids: np.ndarray) -> np.ndarray:
        """Whether each token continues the word of the token before it: int32 [..., L] to bool of the same shape.

        The first token of L has none before it: for it only its own text tells.
        """
        continues = self._continues[ids]
        if self._joins is not None:
            continues[..., 1:] &= self._joins[self._last[ids[..., :-1]], self._first[ids[..., 1:]]]
        return continues


def _decoded(vocabulary: list[str], settings: JsonTokenizer) -> list[str]:
    """The text of each token after another one, with the space before it, if there is one."""
    decoder = settings.library().decoder
    if decoder is None:  # transformers then puts a space before each token
        return [f" {token}" for token in vocabulary]
    return [decoder.decode(["a", token])[1:] for token in vocabulary]


def _kind(character: str) -> int:
    if not character or character == "\ufffd":
        return _PART
    return {"L": _LETTER, "N": _NUMBER}.get(unicodedata.category(character)[0], _OTHER)


def _joins(settings: JsonTokenizer) -> np.ndarray:
    """Whether the pre-tokenizer leaves a character and the next one together, by their kinds: bool [4, 4]."""
    joins = np.ones((4, 4), bool)  # the parts of a character always stay together
    cut = settings.library().pre_tokenizer
    for i, before in enumerate(_SAMPLES if cut is not None else ""):
        for j, after in enumerate(_SAMPLES):
            joins[i, j] = len(cut.pre_tokenize_str(before + after)) == 1
    return joins
