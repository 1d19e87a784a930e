"""Statistics of a token store that need no model: token counts, unigram cross-entropy, lengths."""

import heapq
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from bert_horovod.corpus.manifest import Source
from bert_horovod.corpus.preparing.progress import ReadingProgress
from bert_horovod.corpus.shard import Shard
from bert_horovod.corpus.store import Store
from bert_horovod.corpus.tokens import TokenReader
from bert_horovod.errors import UserError

T = TypeVar("T")


def token_counts(store: Store) -> tuple[np.ndarray, np.ndarray]:
    """Count how often each id occurs: int64 [vocabulary] in training sections, int64 [vocabulary] in held-out ones.

    Duplicates of documents do not count, as they are never read. Reads all tokens, showing progress.
    """
    size = len(store.vocabulary)
    reader = TokenReader(store.path, store.manifest, size)

    def count(number: int) -> np.ndarray:
        shard, first, section, counts = store.shards[number], 0, 0, np.zeros((2, size), np.int64)
        kept = kept_sections(shard, store.repeated(number))
        for part in shard.split():
            held_out = np.asarray(part.held_out)
            lengths = np.diff(section_token_starts(part))
            tokens = reader.read(number, first, len(part.tokens)) if len(part.tokens) else part.tokens
            for split in range(2):
                chosen = kept[section : section + len(held_out)] & (held_out == split)
                counts[split] += np.bincount(tokens[np.repeat(chosen, lengths)], minlength=size)[:size]
            first, section = first + len(part.tokens), section + len(held_out)
        return counts

    counts = sum(_of_shards(store, count, "counting tokens"), np.zeros((2, size), np.int64))
    return counts[0], counts[1]


def _of_shards(store: Store, measure: Callable[[int], T], what: str) -> Iterator[T]:
    """The results of a function for each shard, in order; threads make them, and progress is shown."""
    entries = store.manifest["shards"]
    total = sum(entry["bytes"] for entry in entries)
    # NumPy releases the GIL.
    with ReadingProgress(what, total) as progress, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for entry, result in zip(entries, threads.map(measure, range(len(entries))), strict=True):
            progress.add(entry["bytes"])
            yield result


def kept_sections(shard: Shard, duplicates: np.ndarray) -> np.ndarray:
    """Tell for each section whether its document is kept, that is, not a duplicate: bool [sections].

    `duplicates`: int64, documents counted from the shard's first; numbers outside of the shard are ignored.
    """
    return np.repeat(kept_documents(shard, duplicates), np.diff(shard.documents))


def kept_documents(shard: Shard, duplicates: np.ndarray) -> np.ndarray:
    """Tell for each document whether it is kept: bool [documents]; `duplicates` as in kept_sections."""
    documents = len(shard.documents) - 1
    is_kept = np.ones(documents, bool)
    is_kept[duplicates[(duplicates >= 0) & (duplicates < documents)]] = False
    return is_kept


def section_token_starts(shard: Shard) -> np.ndarray:
    """The first token of each section, and the end of the last section: uint32 [sections + 1]."""
    return np.asarray(shard.sentences)[np.asarray(shard.sections)]


def unigram_cross_entropy(store: Store) -> float:
    """Cross-entropy, in nats per token, of the held-out tokens under the unigrams of the training tokens.

    The unigrams are smoothed by adding one. A model that has learned no more than word frequencies has about this loss.
    Raises UserError when nothing is held out.
    """
    training, held_out = token_counts(store)
    if not held_out.sum():
        raise UserError(f"{store.path} has no held-out tokens; prepare the data with a larger --held_out")
    log_probability = np.log((training + 1) / (training.sum() + len(training)))
    return float(-(held_out * log_probability).sum() / held_out.sum())


@dataclass(frozen=True)
class LongDocument:
    """One of the longest documents."""

    tokens: int
    shard: str
    number: int  # in the shard, from 0
    title: str  # may be empty


@dataclass(frozen=True)
class Lengths:
    """How long documents and sentences are; duplicates of documents do not count, as they are never read.

    A histogram is int64 [33]: entry i counts the lengths from 2^i to 2^(i + 1) - 1 tokens.
    """

    documents: np.ndarray
    sentences: np.ndarray
    tokens: int
    longest: list[LongDocument]  # descending


def measure_lengths(store: Store, longest: int = 5) -> Lengths:
    """Measure a store shard by shard, showing progress, and find its longest documents, `longest` of them."""

    def measure(number: int) -> tuple[np.ndarray, np.ndarray, int, list[tuple[int, int, int]]]:
        shard = store.shards[number]
        is_kept = kept_documents(shard, store.repeated(number))
        sizes = np.diff(section_token_starts(shard)[np.asarray(shard.documents)]).astype(np.int64)
        per_document = np.diff(np.asarray(shard.sections)[np.asarray(shard.documents)])
        sentences = _powers(np.diff(np.asarray(shard.sentences))[np.repeat(is_kept, per_document)])
        documents = _powers(sizes[is_kept])
        sizes[~is_kept] = 0
        best = np.argsort(-sizes, kind="stable")[:longest]
        return documents, sentences, int(sizes.sum()), [(int(sizes[i]), -number, -int(i)) for i in best if sizes[i]]

    documents, sentences, tokens = np.zeros(33, np.int64), np.zeros(33, np.int64), 0
    # (tokens, -shard, -document): negated, because nlargest then keeps the first of equally long documents.
    top: list[tuple[int, int, int]] = []
    for of_documents, of_sentences, of_tokens, best in _of_shards(store, measure, "measuring lengths"):
        documents += of_documents
        sentences += of_sentences
        tokens += of_tokens
        top = heapq.nlargest(longest, top + best)
    longest_documents = [
        LongDocument(size, store.manifest["shards"][-shard]["name"], -i, document_title(store.shards[-shard], -i))
        for size, shard, i in top
    ]
    return Lengths(documents, sentences, tokens, longest_documents)


def document_title(shard: Shard, number: int) -> str:
    """The title of a shard's document; empty where it has none."""
    titles = np.asarray(shard.titles)
    ends = np.flatnonzero(titles == ord("\n"))
    begin = ends[number - 1] + 1 if number else 0
    return titles[begin : ends[number]].tobytes().decode(errors="replace")


def silent_sources(sources: list[Source]) -> list[str]:
    """Names of the files of a store's input that are not empty but gave no text."""
    return [source["name"] for source in sources if source["bytes"] and not source["tokens"]]


def some(names: list[str]) -> str:
    """The first three of these names, for a message."""
    return f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"


def _powers(lengths: np.ndarray) -> np.ndarray:
    """Histogram of lengths, as in Lengths: int64 [33]; all lengths are at least 1 and below 2^33."""
    return np.bincount(np.frexp(lengths.astype(np.float64))[1] - 1, minlength=33)
