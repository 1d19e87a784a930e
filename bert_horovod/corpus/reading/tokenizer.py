"""Text to token ids: those of the tokenizers library, which transformers uses too, at several times its speed.

Sentences are cut into pieces (pre_tokens.py) whose ids are kept (kept_ids.py), because words come again and again.
Sentences that no rule covers go to the library. No special tokens are added, and the text of one, such as "[MASK]", is
plain text.
"""

from collections.abc import Iterator

import numpy as np

from bert_horovod.corpus.reading.kept_ids import ODD, SEPARATOR, KeptIds
from bert_horovod.corpus.reading.pre_tokens import Rule, rule_of
from bert_horovod.corpus.reading.tokenizer_settings import (
    NO_ID,
    TokenizerSettings,
    library_tokenizer,
    token_ids,
)
from bert_horovod.corpus.reading.tokenizers_library import cutting

_CHARACTERS_AT_ONCE = 1 << 15  # the arrays for them fit into the cache of one core
# A rule that gives other ids for these is not used.
_SAMPLE = ["It's 3 o'clock (or 12:30), isn't it? They'll say: \"so\".", " A b c", "rock'n'roll e-mail a.b 'tis x1", ""]


class Tokenizer:
    """Ids of sentences.

    Args:
        vocabulary: tokens; a token's place is its id; must hold the unknown token, if there is one.
        settings: how text is normalised and cut first, or another tokenizer.
    """

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

    def _by_rule(self, rule: Rule, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
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
        """The ids of pieces; see kept_ids.EncodePieces."""
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
