"""A report on a token store: totals, lengths of documents and sentences, unknown tokens, warnings."""

from typing import Any

import numpy as np

from bert_horovod.corpus.manifest import Source
from bert_horovod.corpus.statistics import Lengths, LongDocument, measure_lengths, silent_sources, some
from bert_horovod.corpus.store import Store
from bert_horovod.wording import counted

_BAR = 40  # characters of the longest bar
_WORST_SOURCES = 20
_MUCH_UNKNOWN = 0.05  # share of the tokens
_MOST_TOKENS = 0.5  # share of all tokens, in one document
_MANY_DUPLICATES = 0.1  # share of the documents
_FEW_HELD_OUT = 10_000  # tokens: 1,500 are masked; if their losses spread by 3 nats, their mean is known to 0.08
_SHORT = 5  # exponent: documents under 2^5 = 32 tokens are very short


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
    """A line with a bar for each power of two, from the first that occurs to the last.

    `counts` is a histogram as in Lengths.
    """
    occurs = np.flatnonzero(counts)
    if not len(occurs):
        return ["  none"]
    lines = []
    for power in range(occurs[0], occurs[-1] + 1):
        count = int(counts[power])
        bar = "#" * -(-count * _BAR // int(counts.max()))  # rounded up, so that a small count has a bar
        lines.append(f"{1 << power:13,} to {(2 << power) - 1:13,} {count:13,} {bar}".rstrip())
    return lines


def warnings(manifest: dict[str, Any], sources: list[Source], lengths: Lengths) -> list[str]:
    """Warnings about a store; each tells what the user should check."""
    totals = manifest["totals"]
    lines = []
    rate = totals["unknown_tokens"] / totals["tokens"]
    if rate > _MUCH_UNKNOWN:
        lines.append(
            f"{rate:.1%} of all tokens are [UNK]: is the vocabulary for this language, and --cased given to prepare "
            "exactly when it is a cased one?"
        )
    strange = [source["name"] for source in _by_rate(sources) if _rate(source) > _MUCH_UNKNOWN]
    if strange:
        lines.append(
            f"{len(strange)} of {len(sources)} sources have over {_MUCH_UNKNOWN:.0%} [UNK]: {some(strange)}: "
            "another language, or no text?"
        )
    if lengths.longest and lengths.longest[0].tokens > _MOST_TOKENS * lengths.tokens:
        lines.append(
            f"one document has {lengths.longest[0].tokens / lengths.tokens:.1%} of all tokens "
            f"({_name(lengths.longest[0])}): does its file hold many documents? See --documents of prepare"
        )
    short, documents = int(lengths.documents[:_SHORT].sum()), int(lengths.documents.sum())
    if 2 * short > documents:
        lines.append(
            f"{short:,} of {documents:,} documents have fewer than {1 << _SHORT} tokens: are they whole documents? "
            "See --documents of prepare"
        )
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


def _unknown(sources: list[Source]) -> list[str]:
    ordered = _by_rate(sources)
    lines = ["unknown tokens by source, the worst first:"]
    lines += [
        f"  {_rate(source):7.2%} of {source['tokens']:15,} tokens  {source['name']}"
        for source in ordered[:_WORST_SOURCES]
    ]
    if len(ordered) > _WORST_SOURCES:
        lines.append(f"  and {len(ordered) - _WORST_SOURCES:,} more sources, none with a higher rate than these")
    return lines


def _by_rate(sources: list[Source]) -> list[Source]:
    """Sources that gave text, by their share of unknown tokens, descending."""
    return sorted((source for source in sources if source["tokens"]), key=_rate, reverse=True)


def _rate(source: Source) -> float:
    return source["unknown_tokens"] / source["tokens"] if source["tokens"] else 0.0


def _described(document: LongDocument) -> str:
    return f"{document.tokens:13,} tokens  {_name(document)}"


def _name(document: LongDocument) -> str:
    return document.title or f"document {document.number} of {document.shard}"
