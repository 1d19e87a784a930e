"""Sections of text to shards: batches for the tokenizer, the arrays of one shard, counts of everything."""

import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.corpus.sentences import split_sentences
from bert_horovod.corpus.store import COUNTS, Shard, token_dtype, write_shard
from bert_horovod.corpus.text import Section

_BATCH_CHARACTERS = 1 << 19
TOTALS = (*COUNTS, "held_out_sections", "held_out_tokens", "unknown_tokens", "dropped_documents")

TokenizeFunction = Callable[[list[str]], tuple[np.ndarray, np.ndarray]]


class StoreBuilder:
    """Takes sections in order and writes a shard whenever enough of them has come to a document's end.

    Attributes: `entries`, the manifest's of the shards so far; `totals`, counts by the names of TOTALS.
    """

    def __init__(
        self,
        path: Path,
        tokenize: TokenizeFunction,
        vocabulary_size: int,
        unknown_id: int,
        *,
        lines: bool,
        held_out: float,
        shard_bytes: int,
    ):
        """
        Args:
            path: the store's directory.
            tokenize: sentences to (ids int32 [tokens], lengths int64 [sentences]).
            vocabulary_size: decides the dtype of the ids.
            unknown_id: id of [UNK], for counting.
            lines: whether a line of a section is a sentence; otherwise split_sentences says what one is.
            held_out: fraction of sections to hold out, by the hash of their text.
            shard_bytes: bytes of text after which a shard ends with the document; a document that alone has more is
                cut in two.
        """
        self._path, self._tokenize, self._unknown_id = path, tokenize, unknown_id
        self._split = (lambda text: text.split("\n")) if lines else split_sentences
        self._held_out_below = int(held_out * 2**64)
        self._shard_bytes = shard_bytes
        self._dtype = token_dtype(vocabulary_size)
        self.entries: list[dict[str, Any]] = []
        self.totals = dict.fromkeys(TOTALS, 0)
        self._document_hash, self._document_bytes, self._shard_text_bytes = hashlib.sha256(), 0, 0
        self._executor = ThreadPoolExecutor(1)  # tokenizes one batch while the next is read
        self._waiting: tuple[Future, list[tuple]] | None = None
        self._open_shard()
        self._open_batch()

    def add(self, section: Section) -> None:
        """Take the next section."""
        data = section.text.encode()
        if self._document_bytes:
            self._document_hash.update(b"\n")
        self._document_hash.update(data)
        self._document_bytes += section.bytes
        self._shard_text_bytes += section.bytes
        held = int.from_bytes(hashlib.sha256(data).digest()[:8], "little") < self._held_out_below
        ends = section.ends_document or self._document_bytes >= self._shard_bytes
        sentences = self._split(section.text)
        self._batch_sentences += sentences
        self._batch_characters += len(section.text)
        self._batch.append((len(sentences), section.bytes, held, self._document_hash.digest()[:16] if ends else None))
        if ends:
            self._document_hash, self._document_bytes = hashlib.sha256(), 0
        full = ends and self._shard_text_bytes >= self._shard_bytes
        if full or self._batch_characters >= _BATCH_CHARACTERS:
            self._end_batch()
        if full:
            self._end_shard()

    def close(self) -> None:
        """End the tokenizing thread."""
        self._executor.shutdown(cancel_futures=True)

    def finish(self) -> None:
        """Write what is left; the last section must have ended its document."""
        self._end_batch()
        self._end_shard()

    def _open_batch(self) -> None:
        self._batch: list[tuple[int, int, bool, bytes | None]] = []
        self._batch_sentences: list[str] = []
        self._batch_characters = 0

    def _open_shard(self) -> None:
        self._tokens: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._section_sentences: list[int] = []
        self._document_sections: list[int] = []
        self._held_out: list[bool] = []
        self._hashes: list[bytes] = []
        self._open_sections = 0  # sections that the document has so far
        self._kept_bytes = 0

    def _end_batch(self) -> None:
        waiting = self._waiting
        self._waiting = self._executor.submit(self._tokenize, self._batch_sentences), self._batch
        self._open_batch()
        if waiting is not None:
            self._take(*waiting)

    def _take(self, future: Future, batch: list[tuple[int, int, bool, bytes | None]]) -> None:
        ids, lengths = future.result()
        self._tokens.append(ids.astype(self._dtype))
        self._lengths.append(lengths[lengths > 0])
        self.totals["unknown_tokens"] += int(np.count_nonzero(ids == self._unknown_id))
        sentence_counts = np.concatenate([[0], np.cumsum(lengths > 0)])
        token_counts = np.concatenate([[0], np.cumsum(lengths)])
        begin = 0
        for sentences, size, held, document_hash in batch:
            end = begin + sentences
            kept = int(sentence_counts[end] - sentence_counts[begin])
            if kept:
                self._section_sentences.append(kept)
                self._held_out.append(held)
                self._open_sections += 1
                self._kept_bytes += size
                if held:
                    self.totals["held_out_sections"] += 1
                    self.totals["held_out_tokens"] += int(token_counts[end] - token_counts[begin])
            if document_hash is not None:
                self._end_document(document_hash)
            begin = end

    def _end_document(self, document_hash: bytes) -> None:
        if not self._open_sections:
            self.totals["dropped_documents"] += 1
            return
        self._document_sections.append(self._open_sections)
        self._hashes.append(document_hash)
        self._open_sections = 0

    def _end_shard(self) -> None:
        self._shard_text_bytes = 0
        if self._waiting is not None:
            self._take(*self._waiting)
            self._waiting = None
        if not self._document_sections:
            return
        shard = Shard(
            tokens=np.concatenate(self._tokens),
            sentences=_offsets(np.concatenate(self._lengths)),
            sections=_offsets(self._section_sentences),
            documents=_offsets(self._document_sections),
            held_out=np.array(self._held_out, bool),
            document_hashes=np.frombuffer(b"".join(self._hashes), "<u8").reshape(-1, 2),
        )
        entry = write_shard(self._path, len(self.entries), shard, self._kept_bytes)
        self.entries.append(entry)
        for name in COUNTS:
            self.totals[name] += entry[name]
        self._open_shard()


def _offsets(lengths: np.ndarray | list[int]) -> np.ndarray:
    """Lengths to offsets: uint32 [lengths + 1], beginning with 0."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.uint32)
