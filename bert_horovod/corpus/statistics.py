"""Statistics of a token store that need no model: token counts, unigram cross-entropy, lengths."""

import heapq
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bert_horovod.corpus.manifest import SourceEntry
from bert_horovod.corpus.reading.sequences import token_letters
from bert_horovod.corpus.shard import Shard
from bert_horovod.corpus.store import Store
from bert_horovod.corpus.tokens import TokenReader
from bert_horovod.errors import UserError
from bert_horovod.runtime.reading_progress import ReadingProgress
from bert_horovod.wording import counted, some

T = TypeVar("T")


def token_counts(store: Store) -> tuple[np.ndarray, np.ndarray]:
    """How often each id occurs in training and in held-out sections, without duplicates: int64 [vocabulary] each."""
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


def silent_sources(sources: list[SourceEntry]) -> list[str]:
    """Names of the files of a store's input that are not empty but gave no text."""
    return [source["name"] for source in sources if source["bytes"] and not source["tokens"]]


def _powers(lengths: np.ndarray) -> np.ndarray:
    """Histogram of lengths, as in Lengths: int64 [33]; all lengths are at least 1 and below 2^33."""
    return np.bincount(np.frexp(lengths.astype(np.float64))[1] - 1, minlength=33)


_BAR = 40  # characters of the longest bar
_WORST_SOURCES = 20
_MUCH_UNKNOWN = 0.05  # share of the tokens
_MOST_TOKENS = 0.5  # share of all tokens, in one document
_MANY_DUPLICATES = 0.1  # share of the documents
_FEW_HELD_OUT = 10_000  # tokens: 1,500 are masked; if their losses spread by 3 nats, their mean is known to 0.08
_SHORT = 5  # exponent: documents under 2^5 = 32 tokens are very short


class Hints(NamedTuple):
    """Questions about a store, of which one tells a user what to check, and where."""

    unknown: str
    strange: str
    longest: str
    short: str


_OF_PROSE = Hints(
    unknown="is the vocabulary for this language, and --cased given to prepare exactly when it is a cased one?",
    strange="another language, or no text?",
    longest="does its file hold many documents? See --documents of prepare",
    short="are they whole documents? See --documents of prepare",
)
_OF_ANY_TOKENIZER = _OF_PROSE._replace(unknown="is the tokenizer for this language?")  # which --cased is not read with
_OF_SEQUENCES = Hints(
    unknown="does the tokenizer know such sequences? Of k-mers, does vocab need a larger --size, or a smaller --split?",
    strange="other sequences than those of the tokenizer?",
    longest="does its file lack lines >NAME between sequences?",
    short="are they whole sequences? In FASTA each line >NAME begins one",
)


def hints_of(head: dict[str, Any]) -> Hints:
    """Those that fit a store, whose manifest has the settings and the vocabulary of `head`."""
    if token_letters(head["settings"].get("documents", "")):
        return _OF_SEQUENCES
    return _OF_ANY_TOKENIZER if "tokenizer" in head["vocabulary"] else _OF_PROSE


def report(store: Store) -> str:
    """Totals, lengths, unknown tokens by source, the longest documents and warnings."""
    lengths, sources = measure_lengths(store), store.sources()
    parts = [
        [f"{store.path}: token store {store.hash}", *_totals(store)],
        ["documents by tokens, without duplicates:", *histogram(lengths.documents)],
        ["sentences by tokens:", *histogram(lengths.sentences)],
        _unknown(sources),
        ["longest documents:", *map(_described, lengths.longest)],
        [f"warning: {warning}" for warning in warnings(store.manifest, sources, lengths)] or ["nothing looks wrong"],
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def histogram(counts: np.ndarray) -> list[str]:
    """A line with a bar for each power of two, from the first that occurs to the last, of a histogram as in Lengths."""
    occurs = np.flatnonzero(counts)
    if not len(occurs):
        return ["  none"]
    lines = []
    for power in range(occurs[0], occurs[-1] + 1):
        count = int(counts[power])
        bar = "#" * -(-count * _BAR // int(counts.max()))  # rounded up, so that a small count has a bar
        lines.append(f"{1 << power:13,} to {(2 << power) - 1:13,} {count:13,} {bar}".rstrip())
    return lines


def warnings(manifest: dict[str, Any], sources: list[SourceEntry], lengths: Lengths) -> list[str]:
    """Warnings about a store; each tells what the user should check."""
    totals, lines, hints = manifest["totals"], [], hints_of(manifest)
    rate = totals["unknown_tokens"] / totals["tokens"]
    if rate > _MUCH_UNKNOWN:
        lines.append(f"{rate:.1%} of all tokens are [UNK]: {hints.unknown}")
    strange = [source["name"] for source in _by_rate(sources) if _rate(source) > _MUCH_UNKNOWN]
    if strange:
        lines.append(
            f"{len(strange)} of {len(sources)} sources have over {_MUCH_UNKNOWN:.0%} [UNK]: {some(strange)}: "
            f"{hints.strange}"
        )
    if lengths.longest and lengths.longest[0].tokens > _MOST_TOKENS * lengths.tokens:
        lines.append(
            f"one document has {lengths.longest[0].tokens / lengths.tokens:.1%} of all tokens "
            f"({_name(lengths.longest[0])}): {hints.longest}"
        )
    short, documents = int(lengths.documents[:_SHORT].sum()), int(lengths.documents.sum())
    if 2 * short > documents:
        lines.append(f"{short:,} of {documents:,} documents have fewer than {1 << _SHORT} tokens: {hints.short}")
    silent = silent_sources(sources)
    if silent:
        lines.append(f"{len(silent)} of {len(sources)} sources gave no text: {some(silent)}")
    if 0 < totals["held_out_tokens"] < _FEW_HELD_OUT:
        lines.append(
            f"{counted(totals['held_out_tokens'], 'token')} are held out, too few to judge by: expected "
            f"{_FEW_HELD_OUT:,}, on which a loss is known to 0.1 nats; prepare with a larger --held_out, or more text"
        )
    if not totals["held_out_sections"]:
        lines.append("nothing is held out, so that evaluation is impossible; prepare with a larger --held_out")
    duplicates = manifest["duplicates"]["documents"]
    if duplicates > _MANY_DUPLICATES * totals["documents"]:
        lines.append(
            f"{duplicates:,} of {totals['documents']:,} documents repeat others and are never read: "
            "was a part of the input given twice?"
        )
    return lines


def _totals(store: Store) -> list[str]:
    manifest = store.manifest
    totals, duplicates, vocabulary = manifest["totals"], manifest["duplicates"], manifest["vocabulary"]
    passed_over = ", ".join(f"{count:,} {reason}" for reason, count in sorted(manifest["passed_over"].items()))
    described = {
        "documents": f"{totals['documents']:,}",
        "sections": f"{totals['sections']:,}",
        "sentences": f"{totals['sentences']:,}",
        "tokens": f"{totals['tokens']:,}",
        "unknown tokens": f"{totals['unknown_tokens']:,} ({totals['unknown_tokens'] / totals['tokens']:.2%})",
        "held out": f"{counted(totals['held_out_sections'], 'section')}, {counted(totals['held_out_tokens'], 'token')}",
        "duplicates": f"{counted(duplicates['documents'], 'document')}, {counted(duplicates['tokens'], 'token')}: "
        "never read",
        "dropped": f"{counted(totals['dropped_documents'], 'document')} without tokens",
        "passed over": passed_over or "nothing",
        "vocabulary": f"{vocabulary['size']:,} entries, {store.tokenizer_settings}",
    }
    return [f"  {name:15} {text}" for name, text in described.items()]


def _unknown(sources: list[SourceEntry]) -> list[str]:
    ordered = _by_rate(sources)
    lines = ["unknown tokens by source, the worst first:"]
    lines += [
        f"  {_rate(source):7.2%} of {source['tokens']:15,} tokens  {source['name']}"
        for source in ordered[:_WORST_SOURCES]
    ]
    if len(ordered) > _WORST_SOURCES:
        lines.append(f"  and {len(ordered) - _WORST_SOURCES:,} more sources, none with a higher rate than these")
    return lines


def _by_rate(sources: list[SourceEntry]) -> list[SourceEntry]:
    """Sources that gave text, by their share of unknown tokens, descending."""
    return sorted((source for source in sources if source["tokens"]), key=_rate, reverse=True)


def _rate(source: SourceEntry) -> float:
    return source["unknown_tokens"] / source["tokens"] if source["tokens"] else 0.0


def _described(document: LongDocument) -> str:
    return f"{document.tokens:13,} tokens  {_name(document)}"


def _name(document: LongDocument) -> str:
    return document.title or f"document {document.number} of {document.shard}"
