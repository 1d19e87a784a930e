"""Tokens of questions are kept on the disk, made again where the file is damaged, and made anew for other settings."""

import numpy as np
import pytest

from bert_horovod.batches.examples import span_cache
from bert_horovod.batches.examples.span_cache import open_spans
from bert_horovod.batches.examples.span_tokens import SpanTexts, SpanTokens, tokenised_spans
from bert_horovod.corpus.reading.tokenizer import LocatingTokenizer
from bert_horovod.corpus.reading.tokenizer_settings import CASED, UNCASED
from tests.toy_glue import WORDS

TEXTS = SpanTexts(["the film is good", "a plot"], ["is the film", "hero"], [0, 1], [("good", 12), None])


def same(one: SpanTokens, other: SpanTokens) -> bool:
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


@pytest.fixture
def expected() -> SpanTokens:
    return tokenised_spans(TEXTS, LocatingTokenizer(WORDS, UNCASED))


def test_the_next_start_reads_what_the_first_has_made(tmp_path, expected, monkeypatch):
    tokens, problem = open_spans(TEXTS, WORDS, UNCASED, tmp_path / "index")
    assert (same(tokens, expected), problem) == (True, None)
    monkeypatch.delattr(span_cache, "tokenised_spans")
    tokens, problem = open_spans(TEXTS, WORDS, UNCASED, tmp_path / "index")
    assert (same(tokens, expected), problem) == (True, None)


def test_other_texts_vocabulary_or_case_are_made_anew(tmp_path):
    open_spans(TEXTS, WORDS, UNCASED, tmp_path)
    open_spans(TEXTS, WORDS, CASED, tmp_path)
    open_spans(TEXTS, [*WORDS, "more"], UNCASED, tmp_path)
    open_spans(TEXTS._replace(answers=[None, None]), WORDS, UNCASED, tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 4


def damages(content: bytes) -> list[bytes]:
    middle = len(content) // 2
    flipped = bytes([content[middle] ^ 1])
    return [b"", content[:middle], content[:middle] + flipped + content[middle + 1 :], b"{}" * 99]


@pytest.mark.parametrize("damage", range(4))
def test_a_damaged_file_is_made_again(tmp_path, expected, damage):
    open_spans(TEXTS, WORDS, UNCASED, tmp_path)
    (path,) = tmp_path.glob("*.npz")
    content = path.read_bytes()
    path.write_bytes(damages(content)[damage])
    assert same(open_spans(TEXTS, WORDS, UNCASED, tmp_path)[0], expected)
    assert path.read_bytes() == content


def test_a_directory_that_cannot_be_written_is_no_obstacle(tmp_path, expected):
    (tmp_path / "file").touch()
    tokens, problem = open_spans(TEXTS, WORDS, UNCASED, tmp_path / "file" / "index")
    assert same(tokens, expected)
    assert "cannot be kept in" in problem
    assert "--index_dir" in problem
