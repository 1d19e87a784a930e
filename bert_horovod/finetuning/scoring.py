"""Official scores of a file of predictions of texts, without a model: classmethods `score` of the kinds."""

from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.corpus.reading.table_files import Table, read_table
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import (
    LabelFormat,
    find_split,
    glue_format,
    label_names,
    read_labelled,
    real,
    refuse_vectors,
)
from bert_horovod.finetuning.glue import TASKS
from bert_horovod.finetuning.kinds.base import Request
from bert_horovod.finetuning.scores import at_threshold, score, threshold_free_scores
from bert_horovod.finetuning.text_data import OWN_METRICS
from bert_horovod.storage.reading import shown
from bert_horovod.wording import listed

PREDICTED = ("index", "prediction")  # columns of a file of predictions


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
    table = read_table(request.predictions, PREDICTED)
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
    separator = request.separator or "," if several else None
    form = LabelFormat(
        (),
        request.label_column,
        None,
        own=True,
        separator=separator,
        label_columns=request.label_columns,
        dialect=request.dialect,
        usual=request.separator is None,
    )
    gold = form.table(request.dev_file)
    table = read_table(request.predictions, PREDICTED, lists=PREDICTED[1:] if several else ())
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


def _score_labels(form: LabelFormat, gold: Table, table: Table) -> dict[str, float]:
    """The scores of any number of labels; ranking scores too if there is a column of probabilities for each label."""
    labels = form.labels_of(gold)
    rows = _in_order(table, gold.path, len(labels))
    (place,) = table.places(("prediction",))
    predicted = [label_names(fields[place], form.separator, table.path, line) for line, fields in rows]
    ranked = [column.removeprefix(_PROBABILITY) for column in table.columns if column.startswith(_PROBABILITY)]
    if not form.label_columns and not {"0", "1"}.intersection(ranked, *predicted):
        refuse_vectors(gold, form)
    names = list(dict.fromkeys([*ranked, *(name for of_row in (*labels, *predicted) for name in of_row)]))
    if not names:
        raise UserError(f"{gold.path} and {table.path} have no label in any row; expected some to score")
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
        scores |= threshold_free_scores(np.array(probabilities), hits[1])
    return scores


_PROBABILITY = "probability_"


def predictions_of(table: Table, gold: Path, count: int, numbers: dict[str, int]) -> np.ndarray:
    """The predictions in the order of their index: numbers of labels by `numbers`, or if that is empty real numbers."""
    _, prediction = table.places(PREDICTED)
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
        text = fields[index]
        place = int(text) if text.isascii() and text.isdigit() else count
        if place >= count or place in by_place:
            raise UserError(
                f"{table.path}, line {line}: the index is {shown(text)}; expected each of 0 to {count - 1} once"
            )
        by_place[place] = line, fields
    return [by_place[place] for place in range(count)]
