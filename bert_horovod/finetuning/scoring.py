"""Official scores of a file of predictions alone: a scorer for each task."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bert_horovod.corpus.reading.tables import read_table
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import find_split, glue_format, read_labelled
from bert_horovod.finetuning.glue import TASKS
from bert_horovod.finetuning.scores import score
from bert_horovod.storage.reading import shown


@dataclass(frozen=True)
class Request:
    """What a user wants scored."""

    predictions: Path
    data_dir: Path | None = None  # with the gold file, as its task names it
    dev_file: Path | None = None  # the gold file itself


def score_glue(name: str, request: Request) -> dict[str, float]:
    """The metrics of predictions for a task of GLUE, in its submission format: index and prediction.

    A prediction is what the gold file would say, or the label's name.

    Raises:
        ReportedError: a file is not what it should be, or the two do not fit together.
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
    index, prediction = table.places(("index", "prediction"))
    if len(table.rows) != len(labels):
        raise UserError(
            f"{request.predictions} has {len(table.rows):,} predictions, {gold} has {len(labels):,} examples; expected "
            "one for each"
        )
    found: list[float] = [0] * len(labels)
    seen: set[int] = set()
    numbers = {value: number for number, value in enumerate(form.labels)}
    numbers |= {label: number for number, label in enumerate(form.labels.values())}
    for line, fields in table.rows:
        place = _index(fields[index], len(labels))
        if place is None or place in seen:
            raise UserError(
                f"{request.predictions}, line {line}: the index is {shown(fields[index])}; expected each of 0 to "
                f"{len(labels) - 1} once"
            )
        seen.add(place)
        try:
            found[place] = numbers[fields[prediction]] if numbers else float(fields[prediction])
        except (KeyError, ValueError) as error:
            raise UserError(
                f"{request.predictions}, line {line}: the prediction is {shown(fields[prediction])}; expected "
                + (f"one of {', '.join(form.labels)}" if numbers else "a number")
            ) from error
    return score(np.array(found), labels, task.metrics)


SCORERS: dict[str, Callable[[Request], dict[str, float]]] = {name: partial(score_glue, name) for name in TASKS}


def _index(text: str, count: int) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text) < count else None
