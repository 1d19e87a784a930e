"""Print a classifier's or regression's data at the start and its scores at the end, and write its predictions."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.batches.examples.labelled import LabelledTokens
from bert_horovod.corpus.reading.table_files import table_text
from bert_horovod.errors import file_error
from bert_horovod.finetuning.dev_scores import run_outputs
from bert_horovod.finetuning.examples import Split
from bert_horovod.finetuning.same_files import require_same_files
from bert_horovod.finetuning.scores import confusion_matrix, constant_like
from bert_horovod.finetuning.text_data import TextData
from bert_horovod.inference.outputs import RowOutputs
from bert_horovod.inference.text_answers import answer_rows, answers, sigmoid
from bert_horovod.interchange.pretrained import read_configuration
from bert_horovod.storage.writing import write_atomically
from bert_horovod.tasks.multilabel import THRESHOLD, Multilabel
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.run import FIRST_STEP_S, Run
from bert_horovod.wording import listed

DEV_PREDICTIONS = Path("predictions", "dev.tsv")  # in output_dir; the last file that a run writes
CONFUSION = Path("predictions", "confusion.tsv")
_MOST_CONFUSED = 1000  # labels of a confusion matrix


class Outcome(Hook):
    """Prints notices at the start, and at the end dev scores and whether the run has collapsed; writes predictions.

    Args:
        data: the task and its files.
        test: the test examples, by the name of the file of predictions.
        notices: lines to print at the run's start.
        run: the run.
    """

    def __init__(self, data: TextData, test: dict[str, LabelledTokens], notices: tuple[str, ...], run: Run) -> None:
        super().__init__(run)
        self._data, self._test, self._notices = data, test, notices
        splits = {"train": data.train} | {f"dev{suffix}": split for suffix, split in data.dev.items()}
        splits |= {f"test ({name})": split for name, split in data.test.items()}
        require_same_files({name: (split.path, split.examples) for name, split in splits.items()}, run.world)

    @cached_property
    def _outputs(self) -> RowOutputs:
        return run_outputs(self.run)

    def phase(self) -> None:
        run = self.run
        for notice in self._notices:
            run.say(notice)
        self._take_threshold()

    def _take_threshold(self) -> None:
        """Go on with the threshold of the checkpoint from which the run resumes."""
        task, checkpoint = self.run.task, self.run.resumed_from
        if not isinstance(task, Multilabel) or not checkpoint or self.run.held_out:
            return
        task.threshold = read_configuration(checkpoint).get(THRESHOLD, task.threshold)

    def finish(self) -> None:
        run, data = self.run, self._data
        self._take_threshold()  # no phase has begun if nothing is left to train
        if run.ended or run.state.progress.step >= run.last_step:
            logits = {suffix: self._logits(f"held_out{suffix}") for suffix in data.dev}
            labels = {suffix: split.examples.label_array() for suffix, split in data.dev.items()}
            scores = {suffix: data.score(logits[suffix], labels[suffix]) for suffix in data.dev}
            if isinstance(run.task, Multilabel):
                run.task.threshold = scores[""].get("threshold", run.task.threshold)
            for name in self._test:
                self._write(name, self._logits(name))
            for suffix, split in reversed(list(data.dev.items())):
                if data.name == "classification":
                    self._write_confusion(answers(logits[suffix], len(data.format.labels)), labels[suffix])
                self._write(f"dev{suffix}", logits[suffix])
                self._say_scores(split, scores[suffix])
                if isinstance(run.task, Multilabel):
                    self._say_collapsed(sigmoid(logits[suffix]) >= run.task.threshold)
        elif run.held_out:
            for suffix, split in data.dev.items():
                self._say_scores(split, {name: run.held_out[f"held_out_{name}{suffix}"] for name in data.metrics})

    def _say_scores(self, split: Split, scores: dict[str, float]) -> None:
        """Print dev scores, and a line if they are exactly the scores of one answer for all examples."""
        text = ", ".join(f"{name.replace('_', ' ')} {score:.4f}" for name, score in scores.items())
        self.run.say(f"{split.name}: {text}, of {len(split.examples.labels):,} examples")
        if self._data.format.separator is not None:
            return
        labels = list(self._data.format.labels.values())
        constant = constant_like(scores, np.array(split.examples.labels), len(labels))
        if constant is not None:
            answer = repr(labels[constant]) if labels else "one number"
            undefined = "; a correlation that is undefined is given as 0" if 0.0 in scores.values() else ""
            self.run.say(
                f"collapsed: these are exactly the scores of predicting {answer} for every example{undefined}; "
                "try another data.seed, a lower learning rate or more epochs"
            )

    def _say_collapsed(self, predicted: np.ndarray) -> None:
        """Print a line if all examples get the same labels; `predicted`: bool [examples, labels]."""
        if (predicted == predicted[0]).all():
            names = [name for name, given in zip(self.run.task.labels, predicted[0], strict=True) if given]
            self.run.say(
                f"collapsed: every example gets the same labels ({listed(names) or 'none'}); choose the "
                "threshold on the dev set (--threshold dev), or try more epochs or another learning rate"
            )

    def _logits(self, split: str) -> np.ndarray:
        """The head's outputs for a dev or test set, [examples, outputs]; equal on all ranks."""
        run = self.run
        tokens = self._test[split] if split in self._test else run.job.dataset.splits[split]
        rows = run.job.dataset.rows(len(run.recipe.phase) - 1, tokens)

        def progress(done: int, of: int) -> None:
            run.doing(f"predicting {split}, {done} of {of} rows")

        run.doing(f"predicting {split}", FIRST_STEP_S)
        return rows.by_example(self._outputs(run.state.parameters, rows, progress)["logits"])

    def _write(self, stem: str, logits: np.ndarray) -> None:
        """Write a file of predictions on rank 0."""
        run, form = self.run, self._data.format
        if run.world.rank:
            return
        path = (run.job.output_dir / DEV_PREDICTIONS).with_stem(stem)
        if isinstance(run.task, Multilabel):
            task = run.task
            rows = answer_rows(logits, task.labels, task.separator, task.threshold)
            names = ["prediction", *(f"probability_{label}" for label in task.labels)]
            _write_table(path, ["index", *names], [[number, *row] for number, row in enumerate(rows)])
        else:
            write_predictions(path, answers(logits, len(form.labels)), list(form.labels))
        run.say(f"predictions: {path}")

    def _write_confusion(self, predictions: np.ndarray, labels: np.ndarray) -> None:
        """Write the dev set's confusion matrix on rank 0; of too many labels none."""
        run, names = self.run, list(self._data.format.labels)
        if run.world.rank or len(names) > _MOST_CONFUSED:
            return
        matrix = confusion_matrix(predictions, labels, len(names)).tolist()
        path = run.job.output_dir / CONFUSION
        rows = [[name, *row] for name, row in zip(names, matrix, strict=True)]
        _write_table(path, ["label", *(f"predicted_{name}" for name in names)], rows)
        run.say(f"confusion matrix, a row for each label: {path}")


def write_predictions(path: Path, predictions: np.ndarray, labels: list[str]) -> None:
    """Write a file in the format that GLUE wants submitted: index and prediction.

    Args:
        path: of the file; its directory is created.
        predictions: numbers of labels, or real numbers, [examples].
        labels: the value in GLUE's files for each label; empty for real numbers.
    """
    predicted = [labels[number] if labels else number for number in predictions.tolist()]
    _write_table(path, ["index", "prediction"], [[number, label] for number, label in enumerate(predicted)])


def _write_table(path: Path, columns: list[str], rows: list[list[Any]]) -> None:
    text = table_text(path, columns, rows)
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise file_error(error, f"cannot write {path}: {error.strerror}") from error
