"""SQuAD's official scores: equal to those of evaluate-v1.1.py and evaluate-v2.0.py, to the last digit.

Sums are taken in the official order, because another order changes the last digits.
"""

import collections
import re
import string
from functools import reduce
from operator import add
from typing import NamedTuple

from bert_horovod.corpus.reading.squad_files import Questions

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """A text in the form to compare: lower case, no ASCII punctuation, no English articles, one blank between words.

    >>> normalise("The  Eiffel-Tower!")
    'eiffeltower'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def word_f1(prediction: str, answer: str, both_empty: float = 0.0) -> float:
    """Harmonic mean of precision and recall of the words that two normalised texts share.

    `both_empty`: the score if neither text has a word: 1 in version 2.0, 0 in version 1.1.

    >>> f1("eiffel tower in paris", "eiffel tower")  # precision 2 / 4, recall 2 / 2
    0.6666666666666666
    """
    predicted, expected = prediction.split(), answer.split()
    if not predicted and not expected:
        return both_empty
    shared = sum((collections.Counter(predicted) & collections.Counter(expected)).values())
    if not shared:
        return 0.0
    precision, recall = 1.0 * shared / len(predicted), 1.0 * shared / len(expected)
    return (2 * precision * recall) / (precision + recall)


def squad_scores(
    questions: Questions, predictions: dict[str, str], null_odds: dict[str, float] | None = None, threshold: float = 1.0
) -> dict[str, float]:
    """The official scores, in percent, of predicted texts by the question's id; 1.1's or 2.0's, like the questions.

    Version 1.1: exact_match, f1; a question without a prediction counts as wrong. Version 2.0: exact, f1, total, and
    the same with HasAns_ and NoAns_ in front for questions with and without an answer; with null_odds also best_exact,
    best_exact_thresh, best_f1, best_f1_thresh. A question without a prediction is left out. The larger a question's
    null_odds, the likelier is "no answer"; above `threshold` it is the answer, whatever was predicted.
    """
    if not questions.version_2:
        return _first_version(questions, predictions)
    return _second_version(questions, predictions, null_odds, threshold)


def _first_version(questions: Questions, predictions: dict[str, str]) -> dict[str, float]:
    exact = f1_sum = 0
    for number, answers in zip(questions.ids, questions.answers, strict=True):
        if number in predictions:
            prediction = normalise(predictions[number])
            expected = [normalise(text) for text, _ in answers]
            exact += max(prediction == answer for answer in expected)
            f1_sum += max(word_f1(prediction, answer) for answer in expected)
    total = len(questions.ids)
    return {"exact_match": 100.0 * exact / total, "f1": 100.0 * f1_sum / total}


class _Scores(NamedTuple):
    """The scores of questions by id, in the file's order."""

    exact: dict[str, float]
    f1: dict[str, float]


def _second_version(
    questions: Questions, predictions: dict[str, str], null_odds: dict[str, float] | None, threshold: float
) -> dict[str, float]:
    raw, answerable = _Scores({}, {}), {}
    for number, answers in zip(questions.ids, questions.answers, strict=True):
        answerable[number] = bool(answers)
        if number not in predictions:
            continue
        prediction = normalise(predictions[number])
        expected = [text for text in (normalise(text) for text, _ in answers) if text] or [""]
        raw.exact[number] = max(int(prediction == answer) for answer in expected)
        raw.f1[number] = max(word_f1(prediction, answer, both_empty=1.0) for answer in expected)
    odds = null_odds or dict.fromkeys(questions.ids, 0.0)

    def abstaining(scores: dict[str, float]) -> dict[str, float]:
        return {
            number: float(not answerable[number]) if odds[number] > threshold else score
            for number, score in scores.items()
        }

    scores = _Scores(*map(abstaining, raw))
    metrics = _means(scores, list(scores.exact), "")
    for prefix, has_answer in (("HasAns_", True), ("NoAns_", False)):
        numbers = [number for number in scores.exact if answerable[number] == has_answer]
        if numbers:
            metrics |= _means(scores, numbers, prefix)
    if null_odds is not None and raw.exact:
        for name, by_question in raw._asdict().items():
            best, best_threshold = _best(predictions, by_question, odds, answerable)
            metrics |= {f"best_{name}": best, f"best_{name}_thresh": best_threshold}
    return metrics


def _means(scores: _Scores, numbers: list[str], prefix: str) -> dict[str, float]:
    total = len(numbers)
    means = {
        # Added one by one: since Python 3.12 `sum` rounds otherwise, and scores would depend on the version.
        f"{prefix}{name}": 100.0 * reduce(add, (of_questions[number] for number in numbers), 0.0) / max(1, total)
        for name, of_questions in scores._asdict().items()
    }
    return means | {f"{prefix}total": total}


def _best(
    predictions: dict[str, str], scores: dict[str, float], odds: dict[str, float], answerable: dict[str, bool]
) -> tuple[float, float]:
    """The best mean score that a threshold for the null odds can reach, in percent, and the first such threshold."""
    current = best = sum(1 for number in answerable if not answerable[number])
    threshold = 0.0
    for number in sorted(odds, key=odds.__getitem__):
        if number not in scores:
            continue
        if answerable[number]:
            current += scores[number]
        else:
            current += -1 if predictions[number] else 0
        if current > best:
            best, threshold = current, odds[number]
    return 100.0 * best / len(scores), threshold
