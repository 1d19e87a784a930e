"""Text to token ids: the ids of Hugging Face's BertTokenizer, at the speed of tensorflow_text's linear WordPiece.

Other tokenizers go through the tokenizers library, which is slower.

Printable ASCII goes straight to the WordPiece kernel. Every run of other characters is first normalised as
BertTokenizer does it, by the same library; results are cached, because most runs come again. No special tokens are
added, and the text of one, such as "[MASK]", is plain text.
"""

import re
import unicodedata
from collections.abc import Callable

import numpy as np
from tokenizers import pre_tokenizers

from bert_horovod.corpus.reading.tokenizer_settings import (
    MAXIMUM_WORD_CHARACTERS,
    NO_ID,
    TokenizerSettings,
    library_tokenizer,
    normalizer,
    token_ids,
)
from bert_horovod.corpus.reading.tokenizers_library import cutting
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.quiet import import_tensorflow

_RUN = re.compile("[^\n\x20-\x7e]+")
_PRINTABLE = bytes([10, *range(0x20, 0x7F), *range(0x80, 0x100)])  # all that is not an ASCII control character
# Characters that end a word: white space and ASCII punctuation; the normaliser puts spaces around other punctuation.
_BREAKS = " \n!-/:-@\\[-`{-~"
_LONG_WORD = re.compile(f"[^{_BREAKS}]{{{MAXIMUM_WORD_CHARACTERS + 1},}}")
_IS_BREAK = np.array([re.match(f"[{_BREAKS}]", chr(code)) is not None for code in range(256)])
_LONG_RUN = 12  # characters; longer runs seldom repeat
_REMEMBERED_RUNS = 1 << 17
# The kernel's Unicode tables (tensorflow_text 2.21.1) treat these ranges (first, last) as punctuation or CJK;
# BertTokenizer's do not. The text
# and the vocabulary that the kernel gets therefore have private-use characters in their place. These are free, because
# BertTokenizer removes private-use characters from text.
_SPLIT_BY_KERNEL_ONLY = (
    (0x61D, 0x61D),
    (0x9FD, 0x9FD),
    (0xA76, 0xA76),
    (0xC77, 0xC77),
    (0xC84, 0xC84),
    (0x1B4E, 0x1B4F),
    (0x1B7D, 0x1B7F),
    (0x2E43, 0x2E4F),
    (0x2E52, 0x2E5D),
    (0x10D6E, 0x10D6E),
    (0x10EAD, 0x10EAD),
    (0x10F55, 0x10F59),
    (0x10F86, 0x10F89),
    (0x113D4, 0x113D5),
    (0x113D7, 0x113D8),
    (0x1144B, 0x1144F),
    (0x1145A, 0x1145B),
    (0x1145D, 0x1145D),
    (0x11660, 0x1166C),
    (0x116B9, 0x116B9),
    (0x1183B, 0x1183B),
    (0x11944, 0x11946),
    (0x119E2, 0x119E2),
    (0x11A3F, 0x11A46),
    (0x11A9A, 0x11A9C),
    (0x11A9E, 0x11AA2),
    (0x11B00, 0x11B09),
    (0x11BE1, 0x11BE1),
    (0x11C41, 0x11C45),
    (0x11C70, 0x11C71),
    (0x11EF7, 0x11EF8),
    (0x11F43, 0x11F4F),
    (0x11FFF, 0x11FFF),
    (0x12FF1, 0x12FF2),
    (0x16D6D, 0x16D6F),
    (0x16E97, 0x16E9A),
    (0x16FE2, 0x16FE2),
    (0x1E5FF, 0x1E5FF),
    (0x1E95E, 0x1E95F),
    (0x2B820, 0x2B91F),
)
_RENAMED = {
    code: 0xE001 + i
    for i, code in enumerate(code for first, last in _SPLIT_BY_KERNEL_ONLY for code in range(first, last + 1))
}
_NO_TOKEN = "\ue000"  # in no vocabulary, hence [UNK]


class Normaliser:
    r"""BertTokenizer's normalisation of text, as a function on whole texts; line ends ("\n") stay.

    Non-ASCII punctuation and CJK characters come out with spaces around them. ASCII letters keep their case: the caller
    makes them lowercase, because bytes.lower() is the fastest way.
    """

    def __init__(self, settings: TokenizerSettings, rename: dict[int, int] | None = None):
        self._normalizer = normalizer(settings)
        self._pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._rename = rename or {}
        self._runs: dict[str, str] = {}
        self._characters = _Characters(self._normalise)

    def __call__(self, text: str) -> str:
        """Normalise a text of any length."""
        return _RUN.sub(self._replace, text)

    def _replace(self, match: re.Match) -> str:
        run = match[0]
        if len(run) > _LONG_RUN:
            try:
                return "".join(map(self._characters.__getitem__, run))
            except KeyError:  # a combining mark: normalisation may change the order of marks
                return self._normalise(run)
        normalised = self._runs.get(run)
        if normalised is None:
            if len(self._runs) >= _REMEMBERED_RUNS:
                self._runs.clear()
            normalised = self._runs[run] = self._normalise(run)
        return normalised

    def _normalise(self, run: str) -> str:
        # The run is put between two letters, so that spaces at its ends are kept.
        pieces = self._pre_tokenizer.pre_tokenize_str(f"a{self._normalizer.normalize_str(run)}a")
        return " ".join(piece for piece, _ in pieces)[1:-1].translate(self._rename)


class _Characters(dict):
    """A cache from each character to its normalised text; KeyError for combining marks."""

    def __init__(self, normalise: Callable[[str], str]):
        super().__init__()
        self._normalise = normalise

    def __missing__(self, character: str) -> str:
        if unicodedata.combining(character):
            raise KeyError(character)
        normalised = self[character] = self._normalise(character)
        return normalised


class Tokenizer:
    """Ids of sentences; imports TensorFlow for WordPiece only.

    Settings that the kernel does not have go through the tokenizers library, which is slower.

    Args:
        vocabulary: tokens; a token's place is its id; must hold the unknown token, if there is one.
        settings: how text is normalised and cut first, or another tokenizer.
    """

    def __init__(self, vocabulary: list[str], settings: TokenizerSettings):
        self.vocabulary = vocabulary
        self.settings = settings
        self.unknown_id = token_ids(vocabulary).get(settings.special_tokens.unknown, NO_ID)
        self.joint = settings.joint
        self._library = library_tokenizer(vocabulary, settings) if settings.unusual else None
        if self._library is None:
            self._make_kernel()

    def _make_kernel(self) -> None:
        import_tensorflow()
        import tensorflow_text
        from tensorflow_text.python.ops.fast_wordpiece_tokenizer import gen_fast_wordpiece_tokenizer

        self._normaliser = Normaliser(self.settings, _RENAMED)
        kernel = tensorflow_text.FastWordpieceTokenizer(
            kernel_vocabulary(self.vocabulary, _RENAMED),
            token_out_type=tf.int32,
            max_bytes_per_word=4 * MAXIMUM_WORD_CHARACTERS,
        )
        self._model = kernel._model
        # The op itself, because the class drops the offsets, which tell the sentence of each token.
        self._op = gen_fast_wordpiece_tokenizer.fast_wordpiece_tokenize_with_offsets
        self._constant = tf.constant

    def __call__(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenize sentences; many at once are faster.

        Returns:
            ids: int32 [tokens], of all sentences one after another.
            lengths: int64 [sentences], tokens per sentence; may be zero.
        """
        if not sentences:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        if self._library is not None:
            with cutting(self.settings):
                encodings = self._library.encode_batch_fast(sentences, add_special_tokens=False)
            rows = [np.array(encoding.ids, np.int32) for encoding in encodings]
            return np.concatenate(rows), np.array([len(row) for row in rows], np.int64)
        text = "\n".join(sentences)
        if text.count("\n") != len(sentences) - 1:
            sentences = [sentence.replace("\n", " ") for sentence in sentences]
            text = "\n".join(sentences)
        if text.encode().translate(None, _PRINTABLE):
            text = self._normaliser(text)
        elif not text.isascii():  # in most books, most sentences are ASCII
            text = "\n".join(s if s.isascii() else self._normaliser(s) for s in sentences)
        encoded = text.encode()
        if _longest_word_bytes(encoded) > MAXIMUM_WORD_CHARACTERS:
            encoded = _LONG_WORD.sub(_NO_TOKEN, text).encode()
        if self.settings.lowercase:
            encoded = encoded.lower()
        _, ids, _, starts, _ = self._op(input_values=self._constant([encoded]), wp_model=self._model)
        line_ends = np.flatnonzero(np.frombuffer(encoded, np.uint8) == ord("\n"))
        bounds = np.concatenate([[0], np.searchsorted(starts.numpy(), line_ends), [len(ids)]])
        return ids.numpy().astype(np.int32), np.diff(bounds)


def kernel_vocabulary(vocabulary: list[str], rename: dict[int, int] | None = None) -> list[str]:
    """The vocabulary for tensorflow_text's kernels, which want each token once.

    A place that no text reaches, because it has no token or because a later place has the same, gets a name that is in
    no text.
    """
    ids = token_ids(vocabulary)
    names = []
    for number, token in enumerate(vocabulary):
        reached = ids.get(token) == number and token.removeprefix("##").strip()
        names.append(token.translate(rename or {}) if reached else f"{_NO_TOKEN}{number}")
    return names


def _longest_word_bytes(encoded: bytes) -> int:
    """Bytes of the longest word, or 0 if no word can be over the limit."""
    # A word over the limit would fill at least one of these blocks, with no space or line end in it.
    width = MAXIMUM_WORD_CHARACTERS // 2
    blocks = np.frombuffer(encoded, np.uint8, len(encoded) // width * width).reshape(-1, width)
    if (blocks <= ord(" ")).any(axis=1).all():
        return 0
    breaks = np.flatnonzero(_IS_BREAK[np.frombuffer(encoded, np.uint8)])
    return int(np.diff(breaks, prepend=-1, append=len(encoded)).max()) - 1
