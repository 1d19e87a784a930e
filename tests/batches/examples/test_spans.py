"""Spans of tokens, windows and their rows are those of Google's run_squad.py, whose loops are transcribed here."""

import numpy as np
import pytest

from bert_horovod.batches.examples import span_tokens
from bert_horovod.batches.examples.span_rows import cut_spans, question_room
from bert_horovod.batches.examples.span_tokens import (
    NO_ANSWER,
    NOT_FOUND,
    SpanTexts,
    SpanTokens,
    open_spans,
    span_texts,
    tokenised_spans,
)
from bert_horovod.corpus.reading.squad_files import read_squad
from bert_horovod.corpus.reading.tokenizer import LocatingTokenizer
from bert_horovod.corpus.reading.tokenizer_settings import CASED, UNCASED
from tests.toy_glue import WORDS

CUT_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "##s", "the", "new", "york"]
CUT_WORDS += [f"##{letter}" for letter in "abcdefghijklmnopqrtuvwxyz"] + list(".,'-()$19é")


@pytest.fixture(scope="module")
def tokenizer() -> LocatingTokenizer:
    return LocatingTokenizer(CUT_WORDS, UNCASED)


def spans(tokenizer: LocatingTokenizer, context: str, *answers: tuple[str, int] | None) -> list[list[int]]:
    texts = SpanTexts([context], ["who"] * len(answers), [0] * len(answers), list(answers))
    return tokenised_spans(texts, tokenizer).answers.tolist()


def googles(tokenizer: LocatingTokenizer, context: str, answer: str, begin: int) -> list[int]:
    """run_squad.py's read_squad_examples and convert_examples_to_features, in its loops."""
    words, word_of, after_space = [], [], True
    for character in context:
        if character in " \t\r\n\u202f":
            after_space = True
        else:
            if after_space:
                words.append(character)
            else:
                words[-1] += character
            after_space = False
        word_of.append(len(words) - 1)
    first_word, last_word = word_of[begin], word_of[begin + len(answer) - 1]
    if " ".join(answer.split()) not in " ".join(" ".join(words[first_word : last_word + 1]).split()):
        return [NOT_FOUND, NOT_FOUND]
    tokens, first_token = [], []
    for word in words:
        first_token.append(len(tokens))
        tokens += tokenizer([word]).ids.tolist()
    first = first_token[first_word]
    last = first_token[last_word + 1] - 1 if last_word + 1 < len(words) else len(tokens) - 1
    wanted = tokenizer([answer]).ids.tolist()
    for new_first in range(first, last + 1):
        for new_last in range(last, new_first - 1, -1):
            if tokens[new_first : new_last + 1] == wanted:
                return [new_first, new_last]
    return [first, last]


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("the new york", "new"),
        ("(the 1919-1991) new", "1991"),
        ("the $19 new", "19"),
        ("new  york\nthe", "york\nthe"),
        ("the new york's", "york"),
        ("a\u202fbc d", "bc"),
        ("a\u2009bc d", "bc"),
        ("the\u3000new york", "the\u3000new"),
        ("é new", "é"),
        ("newyorks the", "york"),
        ("aa aaa aa", "aa"),
        ("\u200e new york", "new"),
        ("new 中york", "york"),
    ],
)
def test_an_answer_becomes_the_tokens_that_google_takes(tokenizer, context, answer):
    begin = context.rfind(answer)
    expected = googles(tokenizer, context, answer, begin)
    assert spans(tokenizer, context, (answer, begin)) == [expected]
    assert expected[0] >= 0


def test_a_span_is_narrowed_to_the_first_part_whose_tokens_are_the_answers(tokenizer):
    assert spans(tokenizer, "(19.19.19)", ("19", 4)) == [[1, 1]]


@pytest.mark.parametrize(
    ("answer", "begin"), [("york", 0), ("new", -1), ("new", 99), ("", 0), (" ", 3), ("the new york the", 4)]
)
def test_an_answer_that_is_not_where_it_is_said_to_be_is_not_found(tokenizer, answer, begin):
    assert spans(tokenizer, "the new york", (answer, begin), None) == [[NOT_FOUND] * 2, [NO_ANSWER] * 2]


def test_contexts_and_questions_without_tokens_are_empty(tokenizer):
    texts = SpanTexts(["", " \n\u202f", "new"], ["", "who", "who"], [0, 1, 2], [None, None, ("new", 0)])
    tokens = tokenised_spans(texts, tokenizer)
    assert tokens.context_starts.tolist() == [0, 0, 0, 1]
    assert tokens.question_starts.tolist() == [0, 0, 3, 6]
    assert tokens.answers.tolist() == [[NO_ANSWER] * 2, [NO_ANSWER] * 2, [0, 0]]


def test_answers_of_a_real_dev_set_are_googles(shared_data):
    vocabulary = (shared_data / "vocab" / "bert-base-uncased-vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    tokenizer = LocatingTokenizer(vocabulary, UNCASED)
    texts = span_texts(read_squad(shared_data / "finetune" / "squad" / "xquad.en.json.gz"))
    answers = tokenised_spans(texts, tokenizer).answers[::6].tolist()
    expected = [
        googles(tokenizer, texts.contexts[context], *answer)
        for context, answer in list(zip(texts.context_of, texts.answers, strict=True))[::6]
    ]
    assert answers == expected
    assert len(answers) > 190


TEXTS = SpanTexts(["the film is good", "a plot"], ["is the film", "hero"], [0, 1], [("good", 12), None])


def same(one: SpanTokens, other: SpanTokens) -> bool:
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


@pytest.fixture
def expected() -> SpanTokens:
    return tokenised_spans(TEXTS, LocatingTokenizer(WORDS, UNCASED))


def test_the_next_start_reads_what_the_first_has_made(tmp_path, expected, monkeypatch):
    tokens, problem = open_spans(TEXTS, WORDS, UNCASED, tmp_path / "index")
    assert (same(tokens, expected), problem) == (True, None)
    monkeypatch.delattr(span_tokens, "tokenised_spans")
    tokens, problem = open_spans(TEXTS, WORDS, UNCASED, tmp_path / "index")
    assert (same(tokens, expected), problem) == (True, None)


def test_other_texts_vocabulary_or_case_are_made_anew(tmp_path):
    open_spans(TEXTS, WORDS, UNCASED, tmp_path)
    open_spans(TEXTS, WORDS, CASED, tmp_path)
    open_spans(TEXTS, [*WORDS, "more"], UNCASED, tmp_path)
    open_spans(TEXTS._replace(answers=[None, None]), WORDS, UNCASED, tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 4


@pytest.mark.parametrize("damage", ["empty", "cut", "flip", "other"])
def test_a_damaged_file_is_made_again(tmp_path, expected, damage):
    open_spans(TEXTS, WORDS, UNCASED, tmp_path)
    (path,) = tmp_path.glob("*.npz")
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.write_bytes({"empty": b"", "cut": content[:middle], "flip": flipped, "other": b"{}" * 99}[damage])
    assert same(open_spans(TEXTS, WORDS, UNCASED, tmp_path)[0], expected)
    assert path.read_bytes() == content


def test_a_directory_that_cannot_be_written_is_no_obstacle(tmp_path, expected):
    (tmp_path / "file").touch()
    tokens, problem = open_spans(TEXTS, WORDS, UNCASED, tmp_path / "file" / "index")
    assert same(tokens, expected)
    assert "cannot be kept in" in problem
    assert "--index_dir" in problem


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


def google_cut(asked: int, context: int, answer: tuple[int, int], length: int, stride: int) -> list[tuple[int, ...]]:
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
        assert list(map(tuple, question_windows.tolist())) == google_cut(*size, length, stride)
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
