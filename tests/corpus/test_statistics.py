"""Lengths of documents and sentences over shards and without duplicates, and the report with its warnings."""

import dataclasses
import itertools

import numpy as np
import pytest

from bert_horovod.corpus.statistics import (
    Lengths,
    LongDocument,
    document_title,
    histogram,
    measure_lengths,
    silent_sources,
    some,
    warnings,
)
from tests.toys import write_store, write_toy_store

DUPLICATES = (0, 7, 8, 23, 44)
TITLES = [f"Titel {number} über" if number % 3 else "" for number in range(20)]


@pytest.fixture
def store(tmp_path):
    """Three shards of 20 documents with titles, the longest document of all a duplicate."""
    titles = np.frombuffer("".join(f"{title}\n" for title in TITLES).encode(), np.uint8)
    plain = write_toy_store(tmp_path / "plain")
    shards = [dataclasses.replace(shard, titles=titles, parts=None) for shard in plain.shards]
    longest = np.argmax([tokens for tokens, _, _ in documents_of(plain)])
    return write_store(tmp_path / "store", shards, duplicates=tuple(np.unique([*DUPLICATES, longest])))


def documents_of(store) -> list[tuple[int, int, int]]:
    """Tokens, shard and number of each document, counted one by one."""
    documents = []
    for number, shard in enumerate(store.shards):
        starts = [int(shard.sentences[shard.sections[section]]) for section in shard.documents]
        documents += [(end - begin, number, i) for i, (begin, end) in enumerate(itertools.pairwise(starts))]
    return documents


def test_lengths_are_those_of_what_is_read(store):
    documents = [document for i, document in enumerate(documents_of(store)) if i not in store.duplicates]
    lengths = measure_lengths(store)
    expected = [sum(1 << power <= tokens < 2 << power for tokens, _, _ in documents) for power in range(33)]
    assert lengths.documents.tolist() == expected
    assert lengths.tokens == sum(tokens for tokens, _, _ in documents)
    sentences = [0] * 33
    for _, number, document in documents:
        shard = store.shards[number]
        for section in range(shard.documents[document], shard.documents[document + 1]):
            for i in range(shard.sections[section], shard.sections[section + 1]):
                sentences[int(shard.sentences[i + 1] - shard.sentences[i]).bit_length() - 1] += 1
    assert lengths.sentences.tolist() == sentences


def test_the_longest_documents_are_named(store):
    documents = [document for i, document in enumerate(documents_of(store)) if i not in store.duplicates]
    expected = sorted(documents, key=lambda document: (-document[0], *document[1:]))[:5]
    assert [
        (document.tokens, document.shard, document.number, document.title)
        for document in measure_lengths(store).longest
    ] == [(tokens, f"shard-{shard:05d}", number, TITLES[number]) for tokens, shard, number in expected]


def test_there_may_be_fewer_documents_than_are_asked_for(tmp_path):
    assert len(measure_lengths(write_toy_store(tmp_path / "store", shards=1, documents=2)).longest) == 2


def test_titles_are_found_by_number(store):
    assert [document_title(store.shards[1], number) for number in range(20)] == TITLES


def test_a_source_is_silent_if_it_is_not_empty_but_gave_no_tokens():
    sources = [("a", 5, 0), ("b", 5, 1), ("c", 0, 0)]
    described = [{"name": name, "bytes": size, "tokens": tokens} for name, size, tokens in sources]
    assert silent_sources(described) == ["a"]
    assert (some(["a", "b", "c"]), some(["a", "b", "c", "d"])) == ("a, b, c", "a, b, c, ...")


def counts(**powers: int) -> np.ndarray:
    """A histogram by powers of two, as p5=10."""
    bins = np.zeros(33, np.int64)
    for power, count in powers.items():
        bins[int(power[1:])] = count
    return bins


def found(unknown=5, of_source=5, most=50, documents=None, held_out=1, duplicates=10, **manifest) -> list[str]:
    """Warnings for a store of 100 tokens and 100 documents, by default one at each limit."""
    manifest = {
        "settings": {"documents": "file"},
        "vocabulary": {},
        "totals": {
            "tokens": 100,
            "unknown_tokens": unknown,
            "documents": 100,
            "held_out_sections": held_out,
            "held_out_tokens": 10000 * held_out,
        },
        "duplicates": {"documents": duplicates},
    } | manifest
    sources = [{"name": "a", "bytes": 9, "tokens": 100, "unknown_tokens": of_source}]
    documents = counts(p4=5, p5=5) if documents is None else documents
    longest = [LongDocument(most, "shard-00000", 3, "")]
    return warnings(manifest, sources, Lengths(documents, counts(p3=1), 100, longest))


def test_at_the_limits_nothing_looks_wrong():
    assert found() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unknown": 6}, "6.0% of all tokens are [UNK]"),
        ({"of_source": 6}, "1 of 1 sources have over 5% [UNK]: a:"),
        ({"most": 51}, "one document has 51.0% of all tokens (document 3 of shard-00000)"),
        ({"documents": counts(p4=6, p5=5)}, "6 of 11 documents have fewer than 32 tokens"),
        ({"held_out": 0}, "nothing is held out"),
        ({"duplicates": 11}, "11 of 100 documents repeat others"),
    ],
)
def test_beyond_a_limit_there_is_one_warning(change, message):
    (warning,) = found(**change)
    assert warning.startswith(message)


@pytest.mark.parametrize(
    ("manifest", "hints"),
    [
        ({}, ["--cased given to prepare", "another language", "See --documents", "See --documents"]),
        ({"vocabulary": {"tokenizer": {}}}, ["is the tokenizer for", "another language", *2 * ["See --documents"]]),
        (
            {"vocabulary": {"tokenizer": {}}, "settings": {"documents": "6"}},
            ["a smaller --split", "other sequences than", "lack lines >NAME", "each line >NAME begins one"],
        ),
    ],
)
def test_a_warning_names_flags_that_are_read_for_such_a_store(manifest, hints):
    warned = found(unknown=6, of_source=6, most=51, documents=counts(p4=6, p5=5), **manifest)
    assert [hint in warning for hint, warning in zip(hints, warned, strict=True)] == [True] * 4


def test_a_histogram_shows_all_that_occurs_and_what_lies_between():
    lines = histogram(counts(p0=1, p2=1000, p3=500))
    assert [line.split() for line in lines] == [
        ["1", "to", "1", "1", "#"],
        ["2", "to", "3", "0"],
        ["4", "to", "7", "1,000", "#" * 40],
        ["8", "to", "15", "500", "#" * 20],
    ]
    assert histogram(counts()) == ["  none"]
