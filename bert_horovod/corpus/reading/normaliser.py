"""BertTokenizer's normalisation of whole texts, for the words that a new vocabulary is made of.

Every run of characters other than printable ASCII is normalised by the tokenizers library; results are cached, because
most runs come again.
"""

import re
import unicodedata
from collections.abc import Callable

from tokenizers import pre_tokenizers

from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings, normalizer

_RUN = re.compile("[^\n\x20-\x7e]+")
_LONG_RUN = 12  # characters; longer runs seldom repeat
_REMEMBERED_RUNS = 1 << 17


class Normaliser:
    r"""BertTokenizer's normalisation of text, as a function on whole texts; line ends ("\n") stay.

    Non-ASCII punctuation and CJK characters come out with spaces around them. ASCII letters keep their case: the caller
    makes them lowercase, because bytes.lower() is the fastest way.
    """

    def __init__(self, settings: TokenizerSettings):
        self._normalizer = normalizer(settings)
        self._pre_tokenizer = pre_tokenizers.BertPreTokenizer()
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
        return " ".join(piece for piece, _ in pieces)[1:-1]


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
