"""Answers from the logits of windows: the n-best list of Google's run_squad.py, cut verbatim out of the context.

Evaluation and prediction both call find_answers. It compares only positions of a window's own tokens, also where rows
are packed.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.batches.examples.span_rows import SpanRows, SpanWindows
from bert_horovod.storage.writing import write_atomically

# The null odds of a question without any candidate: above every difference of logits, but finite for JSON.
NO_CANDIDATE_ODDS = 1e9
PREDICTIONS = "predictions.json"  # the last file that a run writes
_WINDOWS_AT_ONCE = 2048


@dataclass(frozen=True)
class AnswerRules:
    """How answers are chosen."""

    may_abstain: bool  # whether "" is an answer, as in SQuAD 2.0
    null_score_threshold: float = 0.0  # "" if the null odds are above it
    n_best: int = 20  # best starts and ends of a window, and answers listed
    most_answer_tokens: int = 30


class Answer(NamedTuple):
    """A part of the context, or "" for no answer."""

    text: str
    begin: int  # first character (code point) in the context
    end: int  # one past the last
    probability: float  # softmax over the sums of logits in the question's n-best list
    start_logit: float
    end_logit: float


class Answers(NamedTuple):
    """The answers to one question."""

    best: Answer
    n_best: list[Answer]  # different texts, best sum of logits first
    null_odds: float | None  # [CLS]'s sum of logits minus the best non-empty answer's; None: "" is not allowed


def find_answers(
    rows: SpanRows, outputs: dict[str, np.ndarray], contexts: list[str], rules: AnswerRules
) -> list[Answers]:
    """The answers to all questions of some rows, each of at least one window, in the questions' order.

    `outputs`: of all rows: start_logits and end_logits, float32 [rows.count, length]; `contexts`: texts, to which
    `rows.tokens.context_of` has an index for each question.
    """
    row, place = rows.places()
    all_answers: list[Answers] = []
    for chunk in _chunks(rows.windows.question):
        windows = SpanWindows(*(column[chunk] for column in rows.windows))
        logits = [_logits_of(outputs[f"{side}_logits"], row[chunk], place[chunk], windows) for side in ("start", "end")]
        all_answers += _answers(rows, windows, *logits, contexts, rules)
    return all_answers


def trimmed(text: str, begin: int, end: int) -> tuple[int, int]:
    """The place of a part of a text, without the blanks at its ends.

    >>> trimmed("a  film ", 1, 8), trimmed("a  film", 1, 3)
    ((3, 7), (3, 3))
    """
    begin += len(text[begin:end]) - len(text[begin:end].lstrip())
    return begin, begin + len(text[begin:end].rstrip())


def write_answers(directory: Path, ids: list[str], answers: list[Answers]) -> None:
    """Write predictions.json, nbest_predictions.json and, in version 2.0, null_odds.json, as run_squad.py does.

    Raises ReportedError if a file cannot be written.
    """

    def write(name: str, content: dict[str, Any]) -> None:
        write_atomically(directory / name, json.dumps(content, indent=4, ensure_ascii=False) + "\n")

    fields = ("text", "probability", "start_logit", "end_logit")
    n_best = (
        [{name: getattr(candidate, name) for name in fields} for candidate in answer.n_best] for answer in answers
    )
    write("nbest_predictions.json", dict(zip(ids, n_best, strict=True)))
    if answers[0].null_odds is not None:
        odds = (answer.null_odds for answer in answers)
        write("null_odds.json", dict(zip(ids, odds, strict=True)))
    else:
        (directory / "null_odds.json").unlink(missing_ok=True)  # of earlier answers, whose odds are not these
    write(PREDICTIONS, {number: answer.best.text for number, answer in zip(ids, answers, strict=True)})


def _chunks(question: np.ndarray) -> Iterator[slice]:
    """Slices of the windows; all windows of a question are in the same slice."""
    first = 0
    while first < len(question):
        last = min(first + _WINDOWS_AT_ONCE, len(question))
        last = int(np.searchsorted(question, question[last - 1], side="right"))
        yield slice(first, last)
        first = last


def _logits_of(logits: np.ndarray, row: np.ndarray, place: np.ndarray, windows: SpanWindows) -> np.ndarray:
    """The windows' own logits: float64 [windows, longest], -inf after a window's end."""
    position = np.arange(windows.lengths.max())
    is_own = position < windows.lengths[:, None]
    column = np.where(is_own, place[:, None] + position, 0)
    return np.where(is_own, logits[row[:, None], column].astype(np.float64), -np.inf)


def _answers(
    rows: SpanRows, windows: SpanWindows, start: np.ndarray, end: np.ndarray, contexts: list[str], rules: AnswerRules
) -> Iterator[Answers]:
    tokens = rows.tokens
    window, first, last, start_logit, end_logit = _candidates(windows, start, end, rules)
    order = np.lexsort((-(start_logit + end_logit), windows.question[window]))  # stable, as Python's sort is
    window, first, last, start_logit, end_logit = (
        column[order] for column in (window, first, last, start_logit, end_logit)
    )
    # From positions in the window to tokens, and to characters of the context.
    base = tokens.context_starts[tokens.context_of[windows.question]] + windows.start - windows.begin
    begins, ends = tokens.begins[base[window] + first].tolist(), tokens.ends[base[window] + last].tolist()
    null_window = np.lexsort((start[:, 0] + end[:, 0], windows.question))
    questions, first_window = np.unique(windows.question, return_index=True)
    nulls = np.stack((start[:, 0], end[:, 0]), 1)[null_window[first_window]].tolist()
    bounds = np.searchsorted(windows.question[window], np.append(questions, questions[-1] + 1)).tolist()
    starts, stops = start_logit.tolist(), end_logit.tolist()
    for number, question in enumerate(questions.tolist()):
        context = contexts[int(tokens.context_of[question])]
        candidates = (
            (begins[i], ends[i], starts[i], stops[i], context) for i in range(bounds[number], bounds[number + 1])
        )
        yield _of_question(candidates, nulls[number], rules)


def _candidates(windows: SpanWindows, start: np.ndarray, end: np.ndarray, rules: AnswerRules) -> tuple[np.ndarray, ...]:
    """Spans that may be answers, ordered by window, then by start logit, then by end logit, the best first.

    Returns:
        window: int64 [spans], its number in `windows`.
        first, last: int64 [spans], positions in the window.
        start_logit, end_logit: float64 [spans].
    """
    best_start, best_end = (np.argsort(-logits, axis=1, kind="stable")[:, : rules.n_best] for logits in (start, end))
    context_begin = windows.begin[:, None]
    context_end = context_begin + windows.count[:, None]
    start_fits = (best_start >= context_begin) & (best_start < context_end)
    start_fits &= _has_most_context(windows, best_start - context_begin)
    end_fits = (best_end >= context_begin) & (best_end < context_end)
    behind = best_end[:, None, :] - best_start[:, :, None]
    # (windows, starts, ends)
    fits = start_fits[:, :, None] & end_fits[:, None, :] & (behind >= 0) & (behind < rules.most_answer_tokens)
    window, i, j = np.nonzero(fits)
    first, last = best_start[window, i], best_end[window, j]
    return window, first, last, start[window, first], end[window, last]


def _has_most_context(windows: SpanWindows, place: np.ndarray) -> np.ndarray:
    """Whether no other window of the question shows a token with more context around it.

    Context is the smaller number of tokens before and after the token, plus 0.01 * the window's tokens of the context;
    at a tie the first window wins. `place`: in the window's part of the context, int64 [windows, places].
    """
    token = windows.start[:, None] + place

    def context(window: np.ndarray) -> np.ndarray:
        """The tokens' context in `window`, one window for each row; -1 if that window does not show the token."""
        begin, count = windows.start[window][:, None], windows.count[window][:, None]
        before, behind = token - begin, begin + count - 1 - token
        return np.where((before >= 0) & (behind >= 0), np.minimum(before, behind) + 0.01 * count, -1.0)

    numbers = np.arange(len(windows.start))
    own = context(numbers)
    most = np.ones(place.shape, bool)
    distance = 1
    while distance < len(numbers):
        later = np.minimum(numbers + distance, len(numbers) - 1)
        pairs = (later == numbers + distance) & (windows.question[later] == windows.question)
        if not (pairs & (windows.start[later] < windows.start + windows.count)).any():
            break
        most &= ~(pairs[:, None] & (context(later) > own))
        earlier = np.maximum(numbers - distance, 0)
        pairs = (earlier == numbers - distance) & (windows.question[earlier] == windows.question)
        most &= ~(pairs[:, None] & (context(earlier) >= own))
        distance += 1
    return most


def _of_question(
    candidates: Iterator[tuple[int, int, float, float, str]], null: tuple[float, float], rules: AnswerRules
) -> Answers:
    """The n-best list of one question; `null`: [CLS]'s logits in the window in which their sum is smallest.

    `candidates`: begin, end, start and end logit, context; best first.
    """
    by_text: dict[str, tuple[int, int, float, float]] = {}
    for begin, end, start_logit, end_logit, context in candidates:
        if len(by_text) == rules.n_best:
            break
        begin, end = trimmed(context, begin, end)
        if begin == end:  # pieces of other tokenizers hold blanks, which are no answer
            continue
        if rules.may_abstain and "" not in by_text and start_logit + end_logit < sum(null):
            by_text[""] = (0, 0, *null)
            if len(by_text) == rules.n_best:
                break
        by_text.setdefault(context[begin:end], (begin, end, start_logit, end_logit))
    if rules.may_abstain or not by_text:
        by_text.setdefault("", (0, 0, *null))
    sums = np.array([start_logit + end_logit for _, _, start_logit, end_logit in by_text.values()])
    shares = np.exp(sums - sums.max())
    probabilities = (shares / shares.sum()).tolist()
    n_best = [
        Answer(text, begin, end, probability, start_logit, end_logit)
        for (text, (begin, end, start_logit, end_logit)), probability in zip(
            by_text.items(), probabilities, strict=True
        )
    ]
    if not rules.may_abstain:
        return Answers(n_best[0], n_best, None)
    empty = next(answer for answer in n_best if not answer.text)
    best = next((answer for answer in n_best if answer.text), None)
    if best is None:
        return Answers(empty, n_best, NO_CANDIDATE_ODDS)
    odds = sum(null) - best.start_logit - best.end_logit
    return Answers(empty if odds > rules.null_score_threshold else best, n_best, odds)
