"""Official scores of a file of predictions, without a model: the kinds' classmethods `score`."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.corpus.reading.squad_files import find_squad_file, read_squad
from bert_horovod.corpus.reading.table_files import Table, kind_of, read_table
from bert_horovod.corpus.reading.tag_schemes import recognise
from bert_horovod.corpus.reading.tagged_files import TagColumns, TaggedSentences, read_tagged
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import (
    Format,
    find_split,
    glue_format,
    label_names,
    read_labelled,
    real,
    refuse_vectors,
)
from bert_horovod.finetuning.glue import TASKS
from bert_horovod.finetuning.kinds.base import Request
from bert_horovod.finetuning.scores import at_threshold, entity_scores, ranking_scores, score, scores_by_type
from bert_horovod.finetuning.squad_scores import squad_scores
from bert_horovod.finetuning.tag_data import find_tagged
from bert_horovod.finetuning.text_data import OWN_METRICS
from bert_horovod.interchange.tokenizer_files import read_json
from bert_horovod.storage.reading import shown
from bert_horovod.wording import listed


def score_glue(name: str, request: Request) -> dict[str, float]:
    """The metrics of predictions for a task of GLUE, in its submission format: index and prediction.

    A prediction is the value that the gold file has for a label, or the label's name. Raises ReportedError if a file is
    invalid, or the two do not fit together.
    """
    task = TASKS[name]
    form = glue_format(task)
    gold = request.dev_file
    if gold is None:
        if request.data_dir is None:
            raise UserError(f"expected --data_dir, the directory {task.title} of GLUE, or --dev_file")
        gold = find_split(request.data_dir, task.title, task.dev[0])
    labels = np.array(read_labelled(gold, form).examples.labels)
    table = read_table(request.predictions)
    numbers = {name_of_label: number for number, name_of_label in enumerate(form.labels)}
    numbers |= {label: number for number, label in enumerate(form.labels.values())}
    return score(predictions_of(table, gold, len(labels), numbers), labels, task.metrics)


def score_own(name: str, request: Request) -> dict[str, Any]:
    """The metrics of predictions for a task on a user's own files, as `predict` or a fine-tuning writes them.

    A classification's confusion matrix comes with them: the number of examples by label, then by prediction. The
    ranking scores of any number of labels need the columns of probabilities. Raises ReportedError if a file is invalid,
    or the two do not fit together.
    """
    if request.dev_file is None:
        raise UserError(f"--task {name}: expected --dev_file, the file with the labels")
    several = name == "multilabel"
    separator = request.separator if several else None
    form = Format(
        (),
        request.label_column,
        None,
        own=True,
        separator=separator,
        label_columns=request.label_columns,
        dialect=request.dialect,
    )
    gold = form.table(request.dev_file)
    table = read_table(request.predictions, may_be_list=lambda column: several and column == "prediction")
    if several:
        return _score_labels(form, gold, table)
    labels = [label for (label,) in form.labels_of(gold)]
    if name == "regression":
        numbers = np.array([real(gold.path, line, label) for (line, _), label in zip(gold.rows, labels, strict=True)])
        return score(predictions_of(table, gold.path, len(labels), {}), numbers, OWN_METRICS[name])
    (place,) = table.places(("prediction",))
    given = [fields[place] for _, fields in _in_order(table, gold.path, len(labels))]
    names, places = np.unique(np.array([*labels, *given], object), return_inverse=True)
    actual, predicted_numbers = np.split(places, 2)
    matrix: dict[str, dict[str, int]] = {str(label): {} for label in names[np.unique(actual)]}
    for label, prediction in zip(labels, given, strict=True):
        matrix[label][prediction] = matrix[label].get(prediction, 0) + 1
    return score(predicted_numbers, actual, OWN_METRICS[name]) | {"confusion_matrix": matrix}


def _score_labels(form: Format, gold: Table, table: Table) -> dict[str, float]:
    """The scores of any number of labels; ranking scores too if there is a column of probabilities for each label."""
    labels = form.labels_of(gold)
    rows = _in_order(table, gold.path, len(labels))
    (place,) = table.places(("prediction",))
    predicted = [label_names(fields[place], form.separator, table.path, line) for line, fields in rows]
    ranked = [column.removeprefix(_PROBABILITY) for column in table.columns if column.startswith(_PROBABILITY)]
    if not form.label_columns and not {"0", "1"}.intersection(ranked, *predicted):
        refuse_vectors(gold, form)
    names = list(dict.fromkeys([*ranked, *(name for of_row in (*labels, *predicted) for name in of_row)]))
    numbers = {name: number for number, name in enumerate(names)}
    hits = np.zeros((2, len(labels), len(names)), bool)
    for array, sets in zip(hits, (predicted, labels), strict=True):
        for row, of_row in zip(array, sets, strict=True):
            row[[numbers[name] for name in of_row]] = True
    scores = at_threshold(*hits)
    if ranked and len(ranked) == len(names):
        places = table.places(tuple(f"{_PROBABILITY}{name}" for name in ranked))
        probabilities = [
            [real(table.path, line, fields[place], "a probability") for place in places] for line, fields in rows
        ]
        scores |= ranking_scores(np.array(probabilities), hits[1])
    return scores


_PROBABILITY = "probability_"


def predictions_of(table: Table, gold: Path, count: int, numbers: dict[str, int]) -> np.ndarray:
    """The predictions in the order of their index: numbers of labels by `numbers`, or if that is empty real numbers."""
    _, prediction = table.places(("index", "prediction"))
    predictions: list[float] = []
    for line, fields in _in_order(table, gold, count):
        text = fields[prediction]
        if numbers and text not in numbers:
            raise UserError(
                f"{table.path}, line {line}: the prediction is {shown(text)}; expected one of {listed(numbers)}"
            )
        predictions.append(numbers[text] if numbers else real(table.path, line, text, "the prediction"))
    return np.array(predictions)


def _in_order(table: Table, gold: Path, count: int) -> list[tuple[int, list[str]]]:
    """The rows of predictions by their index, which must be each of 0 to count - 1 once; raises UserError."""
    (index,) = table.places(("index",))
    if len(table.rows) != count:
        raise UserError(
            f"{table.path} has {len(table.rows):,} predictions, {gold} has {count:,} examples; expected one for each"
        )
    by_place: dict[int, tuple[int, list[str]]] = {}
    for line, fields in table.rows:
        place = _index(fields[index], count)
        if place is None or place in by_place:
            raise UserError(
                f"{table.path}, line {line}: the index is {shown(fields[index])}; expected each of 0 to {count - 1} "
                "once"
            )
        by_place[place] = line, fields
    return [by_place[place] for place in range(count)]


def score_squad(request: Request) -> dict[str, float]:
    """The metrics of predictions for SQuAD, of version 1.1 or 2.0 like the dev file.

    Raises ReportedError if a file is invalid, or they do not fit together.
    """
    if request.dev_file is None and request.data_dir is None:
        raise UserError("expected --data_dir, with dev-v1.1.json or dev-v2.0.json, or --dev_file")
    questions = read_squad(request.dev_file or find_squad_file(request.data_dir, "dev"), scored=True)
    if request.null_odds is not None and not questions.version_2:
        raise UserError(
            f"--null_odds {request.null_odds}: {questions.path} is SQuAD 1.1, where every question has an answer "
            "(2.0 has is_impossible); leave it out, or give the dev file of 2.0"
        )
    predictions = _by_id(request.predictions, questions.ids, str, "a text")
    odds = None
    if request.null_odds is not None:
        odds = _by_id(request.null_odds, questions.ids, float, "a number")
        if missing_ids := [number for number in questions.ids if number not in odds]:
            raise UserError(
                f"{request.null_odds} has no value for {len(missing_ids):,} questions, such as {missing_ids[0]}"
            )
    return squad_scores(questions, predictions, odds, request.threshold)


def _by_id(path: Path, ids: list[str], kind: type, expected: str) -> dict[str, Any]:
    """Read a JSON object with a value for each question's id; it must have at least one of `ids`."""
    by_id = read_json(path)
    for number, answer in by_id.items():
        is_number = isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer)
        if not (is_number if kind is float else isinstance(answer, str)):
            raise UserError(f"{path}: {shown(number)} has {shown(answer)}; expected {expected} for each question's id")
    if by_id.keys().isdisjoint(ids):
        raise UserError(f"{path} has none of the dev file's {len(ids):,} questions; expected an object by their ids")
    return by_id


def score_ner(request: Request) -> dict[str, Any]:
    """The scores of entity_scores, the scheme of the right tags, and `by_type`: the scores of each type.

    What was not read as it stands in the files is told on standard error.

    The file of predictions is CoNLL, with the predicted tag in the last column, or JSON Lines. The right tags are those
    of the dev file; without one, those of the column before the last. Raises ReportedError if a file is invalid, or the
    two do not fit together.
    """
    predicted = read_tagged(request.predictions)
    if request.dev_file is None and request.data_dir is None:
        if kind_of(request.predictions) == "json":
            raise UserError(f"{request.predictions} has no right tags: expected --dev_file, or --data_dir with it")
        if len(predicted.fields[0][0]) < 3:
            raise UserError(
                f"{request.predictions} has {len(predicted.fields[0][0])} columns: expected --dev_file, or the right "
                "tag in a column before the predicted one"
            )
        gold = read_tagged(request.predictions, TagColumns(tag="-2"))
    else:
        gold = read_tagged(request.dev_file or find_tagged(request.data_dir, "dev"))
        _require_same_words(gold, predicted)
    for notice in dict.fromkeys([*gold.notices(), *predicted.notices()]):
        print(notice, file=sys.stderr)
    scheme = recognise(gold.tags)
    return {
        **entity_scores(gold.tags, predicted.tags, scheme),
        "scheme": scheme,
        "by_type": scores_by_type(gold.tags, predicted.tags),
    }


def _require_same_words(gold: TaggedSentences, predicted: TaggedSentences) -> None:
    if len(gold.words) != len(predicted.words):
        raise UserError(
            f"{predicted.path} has {len(predicted.words):,} sentences, {gold.path} has {len(gold.words):,}; expected "
            "the same sentences in both"
        )
    for number, (words, others) in enumerate(zip(gold.words, predicted.words, strict=True)):
        if len(words) != len(others):
            raise UserError(
                f"{predicted.path}, line {predicted.lines[number]}: a sentence of {len(others)} words; {gold.path}, "
                f"line {gold.lines[number]}: of {len(words)}; expected the same sentences in both"
            )
        for place, (word, other) in enumerate(zip(words, others, strict=True)):
            if word.split() != other.split():  # blanks and tabs differ, because a CoNLL file cannot hold all
                raise UserError(
                    f"{predicted.path}, line {predicted.line(number, place)}: the word {shown(other)}; {gold.path}, "
                    f"line {gold.line(number, place)}: {shown(word)}; expected the same words in both"
                )


def _index(text: str, count: int) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text) < count else None
