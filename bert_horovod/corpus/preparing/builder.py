"""Makes the arrays of one shard from sections of text, and counts documents, tokens and unknown tokens."""

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bert_horovod.corpus.reading.sentences import split_sentences
from bert_horovod.corpus.reading.text import Section
from bert_horovod.corpus.shard import Shard, token_dtype

_FIRST_CJK = "\u2e80"  # such text has no spaces between sentences
_BATCH_CHARACTERS = 1 << 16  # fits into the cache of one core: a fifth faster than 1 << 19

TokenizeFunction = Callable[[list[str]], tuple[np.ndarray, np.ndarray]]


@dataclass
class ShardTotals:
    """Counts of one shard that the lengths of its arrays do not tell."""

    bytes: int = 0  # of the kept text in UTF-8
    held_out_sections: int = 0
    held_out_tokens: int = 0
    unknown_tokens: int = 0
    dropped_documents: int = 0  # without a token
    pieces: dict[int, dict[str, int]] = field(default_factory=dict)  # piece number: documents, tokens, unknown_tokens


class _Waiting(NamedTuple):
    """A section whose sentences wait for the tokenizer."""

    sentences: int
    text_bytes: int
    held_out: bool
    piece: int
    title: str
    document_hash: bytes | None  # of the whole document, if this section ends it


class ShardBuilder:
    """Collects sections in order until they make a shard; sentences go to the tokenizer in batches."""

    def __init__(
        self,
        tokenize: TokenizeFunction,
        vocabulary_size: int,
        unknown_id: int,
        *,
        lines: bool,  # whether each line of a section is a sentence; else split_sentences cuts the text
        held_out: float,  # fraction of sections to hold out, by the hash of their text
        shard_bytes: int,  # of text: the document that reaches them ends the shard; one that alone has more is cut
        joint: str = "",  # before a sentence that follows another of its section, unless that ends in a CJK character
    ):
        self._tokenize, self._unknown_id = tokenize, unknown_id
        self._split = (lambda text: text.split("\n")) if lines else split_sentences
        self._held_out_below = int(held_out * 2**64)
        self._shard_bytes = shard_bytes
        self._joint = joint
        self._dtype = token_dtype(vocabulary_size)
        self._open_document()
        self._open_batch()
        self._open_shard()

    def add(self, section: Section, piece: int) -> bool:
        """Add the next section, from piece number `piece` of the task; True: the shard is full, call take() now."""
        encoded = section.text.encode()
        if self._document_bytes:
            self._document_hash.update(b"\n")
        self._document_hash.update(encoded)
        self._document_bytes += section.bytes
        self._text_bytes += section.bytes
        held = int.from_bytes(hashlib.sha256(encoded).digest()[:8], "little") < self._held_out_below
        ends = section.ends_document or self._document_bytes >= self._shard_bytes
        sentences = self._split(section.text)
        if self._joint:
            sentences[1:] = [
                sentence if before[-1:] >= _FIRST_CJK else self._joint + sentence
                for before, sentence in itertools.pairwise(sentences)
            ]
        self._sentences += sentences
        self._characters += len(section.text)
        digest = self._document_hash.digest()[:16] if ends else None
        self._batch.append(_Waiting(len(sentences), section.bytes, held, piece, section.title, digest))
        if ends:
            self._open_document()
        if self._characters >= _BATCH_CHARACTERS:
            self._end_batch()
        return ends and self._text_bytes >= self._shard_bytes

    def take(self) -> tuple[Shard, ShardTotals]:
        """Return the shard of all sections so far, the last of which ended its document, and begin the next shard."""
        self._end_batch()
        shard = Shard(
            tokens=np.concatenate([*self._tokens, np.zeros(0, self._dtype)]),
            sentences=_offsets(np.concatenate([*self._lengths, np.zeros(0, np.int64)])),
            sections=_offsets(self._section_sentences),
            documents=_offsets(self._document_sections),
            held_out=np.array(self._held_out, bool),
            document_hashes=np.frombuffer(b"".join(self._hashes), "<u8").reshape(-1, 2),
            titles=np.frombuffer("".join(self._titles).encode(), np.uint8),
        )
        totals = self._totals
        self._open_shard()
        return shard, totals

    def _open_document(self) -> None:
        self._document_hash, self._document_bytes = hashlib.sha256(), 0

    def _open_batch(self) -> None:
        self._batch: list[_Waiting] = []
        self._sentences: list[str] = []
        self._characters = 0

    def _open_shard(self) -> None:
        self._text_bytes = 0
        self._totals = ShardTotals()
        self._tokens: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._section_sentences: list[int] = []
        self._document_sections: list[int] = []
        self._held_out: list[bool] = []
        self._hashes: list[bytes] = []
        self._titles: list[str] = []
        self._open_sections = 0  # sections that the document has so far

    def _end_batch(self) -> None:
        ids, lengths = self._tokenize(self._sentences)
        self._tokens.append(ids.astype(self._dtype))
        self._lengths.append(lengths[lengths > 0])
        # Counts before each sentence, int64 (sentences + 1): kept sentences, tokens, unknown tokens.
        kept_before = np.concatenate([[0], np.cumsum(lengths > 0)])
        tokens = np.concatenate([[0], np.cumsum(lengths)])
        unknown = np.searchsorted(np.flatnonzero(ids == self._unknown_id), tokens)
        begin = 0
        for waiting in self._batch:
            end = begin + waiting.sentences
            if kept_before[end] > kept_before[begin]:
                sums = (int(sums[end] - sums[begin]) for sums in (kept_before, tokens, unknown))
                self._end_section(waiting, *sums)
            if waiting.document_hash is not None:
                self._end_document(waiting, waiting.document_hash)
            begin = end
        self._open_batch()

    def _end_section(self, section: _Waiting, sentences: int, tokens: int, unknown: int) -> None:
        self._section_sentences.append(sentences)
        self._held_out.append(section.held_out)
        self._open_sections += 1
        totals = self._totals
        totals.bytes += section.text_bytes
        totals.unknown_tokens += unknown
        totals.held_out_sections += section.held_out
        totals.held_out_tokens += tokens * section.held_out
        piece = totals.pieces.setdefault(section.piece, {"documents": 0, "tokens": 0, "unknown_tokens": 0})
        piece["tokens"] += tokens
        piece["unknown_tokens"] += unknown

    def _end_document(self, section: _Waiting, digest: bytes) -> None:
        if not self._open_sections:
            self._totals.dropped_documents += 1
            return
        self._document_sections.append(self._open_sections)
        self._hashes.append(digest)
        self._titles.append(" ".join(section.title.split()) + "\n")
        self._open_sections = 0
        self._totals.pieces[section.piece]["documents"] += 1


def _offsets(lengths: np.ndarray | list[int]) -> np.ndarray:
    """Lengths to offsets: uint32 [lengths + 1], beginning with 0."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.uint32)
