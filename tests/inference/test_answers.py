"""Answers are those of Google's run_squad.py, cut verbatim out of the context; defects of others are not ours."""

import collections
import math

import numpy as np
import pytest

from bert_horovod.batches.examples.span_rows import SpanRows, cut_spans
from bert_horovod.batches.examples.span_tokens import SpanTexts, tokenised_spans
from bert_horovod.batches.layout import special_ids
from bert_horovod.corpus.reading.tokenizer import LocatingTokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.inference.answers import NO_CANDIDATE_ODDS, AnswerRules, Answers, _has_most_context, find_answers
from tests.toy_glue import WORDS

LENGTH, STRIDE = 32, 7


def rows_of(contexts: list[str], questions: list[str], packing: bool = True, length: int = LENGTH) -> SpanRows:
    texts = SpanTexts(contexts, questions, list(range(len(contexts))), [None] * len(contexts))
    tokens = tokenised_spans(texts, LocatingTokenizer(WORDS, UNCASED))
    return SpanRows(tokens, special_ids(WORDS), length, 3, packing, STRIDE)


def random_texts(count: int) -> tuple[list[str], list[str]]:
    random = np.random.default_rng(2)
    contexts = [" ".join(random.choice(WORDS[5:], random.integers(1, 70))) for _ in range(count)]
    return contexts, ["film " * int(random.integers(0, 6)) for _ in range(count)]


def outputs_of(rows: SpanRows, by_window: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """The windows' logits where their tokens stand; everything else is huge, and must not matter."""
    outputs = {f"{side}_logits": np.full((rows.count, LENGTH), 99, np.float32) for side in ("start", "end")}
    for row, place, logits in zip(*rows.places(), by_window, strict=True):
        for values, own in zip(outputs.values(), logits, strict=True):
            values[row, place : place + len(own)] = own
    return outputs


def random_logits(rows: SpanRows, rounded: bool = True) -> list[tuple[np.ndarray, np.ndarray]]:
    """Start and end logits of each window; rounded, so that many tie."""
    random = np.random.default_rng(4)
    drawn = [random.normal(size=(2, length)) * 3 for length in rows.windows.lengths]
    return [tuple(np.round(logits) if rounded else logits.astype(np.float32)) for logits in drawn]


def googles(rows: SpanRows, logits: list, contexts: list[str], rules: AnswerRules) -> list[tuple]:
    """run_squad.py's write_predictions in its loops: n-best (text, probability), best text, null odds."""
    windows, tokens = rows.windows, rows.tokens
    by_question = []
    for question in range(len(contexts)):
        own = np.flatnonzero(windows.question == question).tolist()
        base = tokens.context_starts[question]
        null, null_pair, preliminary = math.inf, None, []
        for number in own:
            start_logits, end_logits = (side.tolist() for side in logits[number])
            asked, begin, count = (int(x[number]) for x in (windows.question_count, windows.start, windows.count))

            def is_max_context(token: int, number: int = number, own: list[int] = own) -> bool:
                best, best_window = None, None
                for other in own:
                    first, last = windows.start[other], windows.start[other] + windows.count[other] - 1
                    if not first <= token <= last:
                        continue
                    score = min(token - first, last - token) + 0.01 * windows.count[other]
                    if best is None or score > best:
                        best, best_window = score, other
                return best_window == number

            if start_logits[0] + end_logits[0] < null:
                null, null_pair = start_logits[0] + end_logits[0], (start_logits[0], end_logits[0])
            best_of = [
                [place for place, _ in sorted(enumerate(side), key=lambda pair: pair[1], reverse=True)[: rules.n_best]]
                for side in (start_logits, end_logits)
            ]
            for start in best_of[0]:
                for end in best_of[1]:
                    shown = range(asked + 2, asked + 2 + count)
                    if start not in shown or end not in shown or not is_max_context(start - asked - 2 + begin):
                        continue
                    if end < start or end - start + 1 > rules.most_answer_tokens:
                        continue
                    places = [base + begin + place - asked - 2 for place in (start, end)]
                    text = contexts[question][tokens.begins[places[0]] : tokens.ends[places[1]]]
                    preliminary.append((text, start_logits[start], end_logits[end]))
        if rules.may_abstain:
            preliminary.append(("", *null_pair))
        preliminary.sort(key=lambda entry: entry[1] + entry[2], reverse=True)
        n_best = collections.OrderedDict()
        for text, start, end in preliminary:
            if len(n_best) >= rules.n_best:
                break
            n_best.setdefault(text, (start, end))
        if rules.may_abstain or not n_best:  # without a candidate Google's has none and fails
            n_best.setdefault("", null_pair)
        sums = [start + end for start, end in n_best.values()]
        shares = [math.exp(value - max(sums)) for value in sums]
        listed = [(text, share / sum(shares)) for text, share in zip(n_best, shares, strict=True)]
        best, odds = next(iter(n_best)), None
        if rules.may_abstain:
            text = next((text for text in n_best if text), None)
            odds = null - n_best[text][0] - n_best[text][1] if text else NO_CANDIDATE_ODDS
            best = "" if odds > rules.null_score_threshold else text
        by_question.append((listed, best, odds))
    return by_question


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize(
    "rules",
    [
        AnswerRules(may_abstain=False),
        AnswerRules(may_abstain=True),
        AnswerRules(may_abstain=True, null_score_threshold=-1.5, n_best=3, most_answer_tokens=4),
        AnswerRules(may_abstain=False, n_best=1, most_answer_tokens=2),
    ],
)
def test_answers_are_googles(packing, rounded, rules, monkeypatch):
    monkeypatch.setattr("bert_horovod.inference.answers._WINDOWS_AT_ONCE", 16)
    contexts, questions = random_texts(16)
    rows = rows_of(contexts, questions, packing)
    logits = random_logits(rows, rounded)
    answers = find_answers(rows, outputs_of(rows, logits), contexts, rules)
    expected = googles(rows, logits, contexts, rules)
    assert len(answers) == len(expected) == 16
    for computed, (n_best, best, odds) in zip(answers, expected, strict=True):
        assert [answer.text for answer in computed.n_best] == [text for text, _ in n_best]
        np.testing.assert_allclose([answer.probability for answer in computed.n_best], [share for _, share in n_best])
        assert (computed.best.text, computed.null_odds) == (best, odds)


def answers_to(context: str, question: str = "the plot", may_abstain: bool = True) -> tuple[Answers, SpanRows]:
    rows = rows_of([context], [question])
    outputs = outputs_of(rows, random_logits(rows, rounded=False))
    (answers,) = find_answers(rows, outputs, [context], AnswerRules(may_abstain))
    return answers, rows


@pytest.mark.parametrize("may_abstain", [True, False])
@pytest.mark.parametrize("context", ["", " \n\t ", "\u200b\u202f", "good"])
@pytest.mark.parametrize("question", ["the plot", "", "film " * 100])
def test_no_candidate_an_empty_or_blank_context_or_a_question_as_long_as_the_window(context, question, may_abstain):
    answers, _ = answers_to(context, question, may_abstain)
    if context == "good":
        assert "good" in [answer.text for answer in answers.n_best]
        return
    assert [answer.text for answer in answers.n_best] == [""] == [answers.best.text]
    assert answers.best.probability == 1.0
    assert answers.null_odds == (NO_CANDIDATE_ODDS if may_abstain else None)


def test_a_context_of_100_000_words_is_read_to_its_last_word():
    context = "film " * 99_999 + "good"
    rows = rows_of([context], ["the plot"])
    logits = [(np.zeros(length), np.zeros(length)) for length in rows.windows.lengths]
    for side in logits[-1]:
        side[-2] = 5.0
    (answers,) = find_answers(rows, outputs_of(rows, logits), [context], AnswerRules(False))
    assert (answers.best.text, answers.best.begin, answers.best.end) == ("good", len(context) - 4, len(context))


@pytest.mark.parametrize("stride", [1, 25, 26, 1000])
def test_every_token_can_be_answered_once_whatever_the_stride(stride):
    """Exactly one window of a token has the most context, so that no start is lost and none is taken twice."""
    context = "film " * 83
    tokens = tokenised_spans(SpanTexts([context], ["the"], [0], [None]), LocatingTokenizer(WORDS, UNCASED))
    windows = cut_spans(tokens, LENGTH, stride)
    place = np.broadcast_to(np.arange(windows.count.max()), (len(windows.start), windows.count.max()))
    taken = _has_most_context(windows, place) & (place < windows.count[:, None])
    shown = (windows.start[:, None] + place)[taken]
    assert sorted(shown.tolist()) == list(range(83))


@pytest.mark.parametrize(
    "context",
    ["Good  Film\n\nis\u202fFINE", "The plót\u2009is  good", "a film, (good) \u3000 plot.", "GOOD\tfilm\r\nfine"],
)
@pytest.mark.parametrize("may_abstain", [True, False])
def test_every_answer_is_a_slice_of_the_context(context, may_abstain):
    answers, _ = answers_to(context, may_abstain=may_abstain)
    assert len(answers.n_best) > 3
    for answer in answers.n_best:
        assert context[answer.begin : answer.end] == answer.text
        assert answer.text == answer.text.strip()
