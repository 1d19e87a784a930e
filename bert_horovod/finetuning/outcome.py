"""Print a classifier's or regression's data at the start and its scores at the end, and write its predictions."""

from functools import cached_property
from pathlib import Path

import numpy as np

from bert_horovod.batches.examples.labelled import LabelledTokens
from bert_horovod.corpus.reading.table_files import table_text
from bert_horovod.errors import file_error
from bert_horovod.finetuning.dev_scores import run_outputs
from bert_horovod.finetuning.examples import Split
from bert_horovod.finetuning.same_files import require_same_files
from bert_horovod.finetuning.scores import constant_like, score
from bert_horovod.finetuning.text_data import TextData
from bert_horovod.inference.outputs import RowOutputs
from bert_horovod.inference.text_answers import answers
from bert_horovod.storage.writing import write_atomically
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.run import FIRST_STEP_S, Run

DEV_PREDICTIONS = Path("predictions", "dev.tsv")  # in output_dir; the last file that a run writes


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
        for notice in self._notices:
            self.run.say(notice)

    def finish(self) -> None:
        run, data = self.run, self._data
        if run.state.progress.step >= run.last_step:
            for name in self._test:
                self._predict(name, name, self._test[name])
            for suffix, split in reversed(list(data.dev.items())):
                predictions = self._predict(
                    f"dev{suffix}", f"held_out{suffix}", run.job.dataset.splits[f"held_out{suffix}"]
                )
                self._say_scores(split, score(predictions, np.array(split.examples.labels), data.metrics))
        elif run.held_out:
            for suffix, split in data.dev.items():
                self._say_scores(split, {name: run.held_out[f"held_out_{name}{suffix}"] for name in data.metrics})

    def _say_scores(self, split: Split, scores: dict[str, float]) -> None:
        """Print dev scores, and a line if they are exactly the scores of one answer for all examples."""
        text = ", ".join(f"{name.replace('_', ' ')} {score:.4f}" for name, score in scores.items())
        self.run.say(f"{split.path.name}: {text}, of {len(split.examples.labels):,} examples")
        labels = list(self._data.format.labels.values())
        constant = constant_like(scores, np.array(split.examples.labels), len(labels))
        if constant is not None:
            answer = repr(labels[constant]) if labels else "one number"
            undefined = "; a correlation that is undefined is given as 0" if 0.0 in scores.values() else ""
            self.run.say(
                f"collapsed: these are exactly the scores of predicting {answer} for every example{undefined}; "
                "try another data.seed, a lower learning rate or more epochs"
            )

    def _predict(self, stem: str, split: str, tokens: LabelledTokens) -> np.ndarray:
        """Predict some examples: all ranks compute the predictions and return them, rank 0 writes them."""
        run, data = self.run, self._data
        rows = run.job.dataset.rows(len(run.recipe.phase) - 1, tokens)

        def progress(done: int, of: int) -> None:
            run.doing(f"predicting {split}, {done} of {of} rows")

        run.doing(f"predicting {split}", FIRST_STEP_S)
        logits = rows.by_example(self._outputs(run.state.parameters, rows, progress)["logits"])
        predictions = answers(logits, len(data.format.labels))
        if run.world.rank == 0:
            path = (run.job.output_dir / DEV_PREDICTIONS).with_stem(stem)
            write_predictions(path, predictions, list(data.format.labels))
            run.say(f"predictions: {path}")
        return predictions


def write_predictions(path: Path, predictions: np.ndarray, labels: list[str]) -> None:
    """Write a file in the format that GLUE wants submitted: index and prediction.

    Args:
        path: of the file; its directory is created.
        predictions: numbers of labels, or real numbers, [examples].
        labels: the value in GLUE's files for each label; empty for real numbers.
    """
    predicted = [labels[number] if labels else number for number in predictions.tolist()]
    text = table_text(path, ["index", "prediction"], [[number, label] for number, label in enumerate(predicted)])
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise file_error(error, f"cannot write {path}: {error.strerror}") from error
