"""Windows are those of Google's run_squad.py: stride is a step, no token is lost, labels point at the whole answer."""

import numpy as np
import pytest

from bert_horovod.batches.examples.span_tokens import NO_ANSWER, NOT_FOUND, SpanTokens, span_texts, tokenised_spans
from bert_horovod.batches.examples.span_windows import cut_spans, question_room
from bert_horovod.corpus.reading.squad_files import read_squad
from bert_horovod.corpus.reading.tokenizer import LocatingTokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED


def questions(*sizes: tuple[int, int, tuple[int, int]]) -> SpanTokens:
    """Questions and contexts with these numbers of tokens, and with these answers."""
    question_sizes, contexts, answers = zip(*sizes, strict=True)
    total = sum(contexts)
    return SpanTokens(
        np.arange(total, dtype=np.int32),
        np.arange(total, dtype=np.int32),
        np.arange(total, dtype=np.int32) + 1,
        np.append(0, np.cumsum(contexts)),
        np.zeros(sum(question_sizes), np.int32),
        np.append(0, np.cumsum(question_sizes)),
        np.arange(len(sizes)),
        np.array(answers, np.int64),
    )


def googles(asked: int, context: int, answer: tuple[int, int], length: int, stride: int) -> list[tuple[int, ...]]:
    """Start, tokens and label places of each window: convert_examples_to_features, in its loop."""
    asked = min(asked, question_room(length))
    room, start, windows = length - asked - 3, 0, []
    while start < context:
        count = min(context - start, room)
        first, last = 0, 0
        if start <= answer[0] and answer[1] <= start + count - 1:
            first, last = (place - start + asked + 2 for place in answer)
        windows.append((start, count, first, last))
        if start + count == context:
            break
        start += min(count, stride)
    return windows


@pytest.mark.parametrize("length", [32, 128, 384])
@pytest.mark.parametrize("stride", [1, 7, 64, 128, 1000])
def test_windows_and_labels_are_googles_and_no_token_is_lost(length, stride):
    random = np.random.default_rng(length + stride)
    sizes = []
    for _ in range(40):
        context = int(random.integers(1, 900 if stride > 1 else 300))
        first = int(random.integers(context))
        sizes.append((int(random.integers(0, 80)), context, (first, min(context - 1, first + int(random.integers(9))))))
    windows = cut_spans(questions(*sizes), length, stride)
    assert windows.lengths.max() <= length
    for number, size in enumerate(sizes):
        own = windows.question == number
        question_windows = np.stack((windows.start, windows.count, windows.answer_start, windows.answer_end), 1)[own]
        assert list(map(tuple, question_windows.tolist())) == googles(*size, length, stride)
        shown = np.concatenate([start + np.arange(count) for start, count, *_ in question_windows])
        assert np.array_equal(np.unique(shown), np.arange(size[1]))


def test_questions_are_cut_to_64_tokens_and_to_less_where_a_short_row_needs_room():
    assert [question_room(length) for length in (512, 384, 128, 64, 32)] == [64, 64, 64, 45, 21]


def test_empty_contexts_have_a_window_and_answers_that_are_not_found_none():
    tokens = questions((3, 0, (NO_ANSWER,) * 2), (3, 5, (NOT_FOUND,) * 2), (3, 5, (2, 3)))
    windows = cut_spans(tokens, 32, 8)
    assert [column.tolist() for column in windows] == [[0, 2], [3, 3], [0, 0], [0, 5], [0, 7], [0, 8], [5, 5]]


def test_a_context_of_100_000_tokens_is_read_to_its_end():
    windows = cut_spans(questions((12, 100_000, (99_998, 99_999))), 384, 128)
    assert (windows.start + windows.count).max() == 100_000
    assert np.count_nonzero(windows.answer_start) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dev-v1.1", [10_833, 24_161]),
        pytest.param("dev-v2.0", [12_232, 27_765], marks=pytest.mark.slow),
        pytest.param("train-v1.1", [88_641, 191_597], marks=pytest.mark.slow),
    ],
)
def test_real_sets_have_as_many_windows_as_published_not_as_overlapping_strides_make(shared_data, name, expected):
    vocabulary = (shared_data / "vocab" / "bert-base-uncased-vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    file = read_squad(shared_data / "finetune" / "squad" / f"{name}.json.gz")
    tokens = tokenised_spans(span_texts(file), LocatingTokenizer(vocabulary, UNCASED))
    window_counts = [len(cut_spans(tokens, *settings).question) for settings in ((384, 128), (128, 64))]
    assert window_counts == expected
    assert not np.any(tokens.answers == NOT_FOUND)
