"""Statistics of a token store that need no model: token counts, unigram cross-entropy, lengths."""

import heapq
from dataclasses import dataclass

import numpy as np

from bert_horovod.corpus.manifest import Source
from bert_horovod.corpus.shard import Shard
from bert_horovod.corpus.store import Store
from bert_horovod.errors import UserError


def token_counts(store: Store) -> tuple[np.ndarray, np.ndarray]:
    """Count how often each id occurs: int64 [vocabulary] in training sections, int64 [vocabulary] in held-out ones.

    Duplicates of documents do not count, as they are never read.
    """
    size = len(store.vocabulary)
    training, held_out = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for number, shard in enumerate(store.shards):
        begins = section_token_starts(shard)
        is_kept = kept_sections(shard, store.repeated(number))
        for i in np.flatnonzero(is_kept):
            held = shard.held_out[i]
            counts = held_out if held else training
            counts += np.bincount(shard.tokens[begins[i] : begins[i + 1]], minlength=size)
    return training, held_out


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
    """Measure a store shard by shard, and find its longest documents, `longest` of them."""
    documents, sentences = np.zeros(33, np.int64), np.zeros(33, np.int64)
    tokens = 0
    # (tokens, -shard, -document): negated, because nlargest then keeps the first of equally long documents.
    top: list[tuple[int, int, int]] = []
    for number, shard in enumerate(store.shards):
        is_kept = kept_documents(shard, store.repeated(number))
        sizes = np.diff(section_token_starts(shard)[np.asarray(shard.documents)]).astype(np.int64)
        per_document = np.diff(np.asarray(shard.sections)[np.asarray(shard.documents)])
        documents += _powers(sizes[is_kept])
        sentences += _powers(np.diff(np.asarray(shard.sentences))[np.repeat(is_kept, per_document)])
        sizes[~is_kept] = 0
        tokens += int(sizes.sum())
        best = np.argsort(-sizes, kind="stable")[:longest]
        top = heapq.nlargest(longest, top + [(int(sizes[i]), -number, -int(i)) for i in best if sizes[i]])
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
