"""Words that are masked before all others: those of a list, such as the terms of a domain.

A word of the list is known by a 64-bit hash of its pieces, so that all words of a batch are looked up at once; two
different words have one hash with probability 2^-64.
"""

import hashlib
from pathlib import Path

import numpy as np

from bert_horovod.batches.order import keyed_hash
from bert_horovod.batches.word_boundaries import WordBoundaries
from bert_horovod.corpus.reading.tokenizer_settings import (
    NO_ID,
    TokenizerSettings,
    cutting,
    library_tokenizer,
    token_ids,
)
from bert_horovod.errors import UserError, file_error
from bert_horovod.storage.reading import read_text, shown

_PIECE = 300  # a stream of keyed_hash, other than those of masks.py


class PriorityWords:
    """A list of words, for rows of one vocabulary.

    Args:
        words: the ids of each word's pieces.
        boundaries: of the words of rows.
    """

    def __init__(self, words: list[list[int]], boundaries: WordBoundaries) -> None:
        self.boundaries = boundaries
        ordered = sorted(set(map(tuple, words)))
        self.hash = hashlib.sha256(repr(ordered).encode()).hexdigest()
        self._hashes = np.array([_pieces(np.array(word), np.arange(len(word))).sum() for word in ordered], np.uint64)

    def places(self, ids: np.ndarray, word_starts: np.ndarray, maskable: np.ndarray) -> np.ndarray:
        """The places of the list's words, bool [R, L].

        Args:
            ids: int32 [R, L].
            word_starts: int64 [R, L], the column where each place's word begins.
            maskable: bool [R, L]: ordinary tokens.
        """
        columns = np.arange(ids.shape[1])
        begins = np.flatnonzero(word_starts == columns)
        hashes = np.add.reduceat(_pieces(ids, columns - word_starts).ravel(), begins)
        listed = np.repeat(np.isin(hashes, self._hashes), np.diff(begins, append=ids.size))
        return listed.reshape(ids.shape) & maskable


def read_priority_words(path: str, vocabulary: list[str], settings: TokenizerSettings) -> PriorityWords | None:
    """Read the file that objective.priority_words names, a word a line; None for "".

    Raises UserError for a file that cannot be read, a line of several words, or a word that is [UNK].
    """
    if not path:
        return None
    name = f"objective.priority_words = {shown(path)}"
    try:
        lines = read_text(Path(path)).splitlines()
    except OSError as error:
        raise file_error(error, f"{name}: cannot read it ({error.strerror}); expected a file of words") from error
    except ValueError as error:
        raise UserError(f"{name} is not UTF-8 text; expected a word a line") from error
    tokenizer, words = library_tokenizer(vocabulary, settings), []
    unknown_id = token_ids(vocabulary).get(settings.special_tokens.unknown, NO_ID)
    for number, line in enumerate(lines, 1):
        with cutting(settings):
            encoding = tokenizer.encode(line, add_special_tokens=False)
        if len(set(encoding.word_ids)) > 1:
            raise UserError(
                f"{name}, line {number}: {shown(line.strip())} is several words to the tokenizer "
                f"({' '.join(encoding.tokens[:8])}); expected one word a line"
            )
        if unknown_id in encoding.ids:
            raise UserError(
                f"{name}, line {number}: the vocabulary reads {shown(line.strip())} as "
                f"{settings.special_tokens.unknown}; remove it"
            )
        if encoding.ids:
            words.append(encoding.ids)
        if encoding.ids and settings.joint:  # after another word it has other pieces
            words.append(tokenizer.encode(f"{settings.joint}{line.strip()}", add_special_tokens=False).ids)
    if not words:
        raise UserError(f"{name} has no words; expected a word a line")
    return PriorityWords(words, WordBoundaries(vocabulary, settings))


def _pieces(ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """A hash of each piece at its place in its word, uint64; the sum over a word, modulo 2^64, is the word's hash."""
    index = offsets.astype(np.uint64) << np.uint64(32) | ids.astype(np.uint64)
    return keyed_hash(0, _PIECE, index=index)
