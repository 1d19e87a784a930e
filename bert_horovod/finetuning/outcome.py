"""A fine-tuning's evaluation, and what it says and writes at its end: scores of whole sets, and predictions."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from bert_horovod.batches.examples.base import PackedRows
from bert_horovod.finetuning.kinds.base import Kind
from bert_horovod.finetuning.same_files import require_same_files
from bert_horovod.inference.outputs import NotFiniteError, RowOutputs, block_rows
from bert_horovod.interchange.pretrained import read_configuration
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.hooks.divergence import Diverged
from bert_horovod.training.run import FIRST_STEP_S, Run
from bert_horovod.training.step import compute_policy


class Answered(NamedTuple):
    """A dev set's answers in the last evaluation."""

    step: int
    answers: Any  # of the kind
    scores: dict[str, float]


Evaluated = dict[str, Answered]  # by the dev sets' suffixes; the evaluation fills it for the end of the run


class DevScores:
    """Computes the dev scores for training/hooks/evaluation.py.

    Args:
        kind: the data.
        last: takes the answers.
        run: the run.
    """

    def __init__(self, kind: Kind, last: Evaluated, run: Run) -> None:
        self._kind, self._last, self._run = kind, last, run
        number, dataset = run.phase.number, run.job.dataset
        self._sources = {suffix: dataset.open(number, f"held_out{suffix}") for suffix in kind.data.dev}
        self._outputs = run_outputs(run, self._sources[""])

    def evaluate(self, variables: dict[str, tf.Variable]) -> dict[str, float]:
        """The metrics of each whole set; equal on all ranks. Raises Diverged if an output is not finite."""
        run, dev = self._run, self._kind.data.dev
        step = run.state.progress.step
        try:
            outputs = {
                suffix: self._outputs(variables, source, partial(_tell, run, "evaluating"))
                for suffix, source in self._sources.items()
            }
        except NotFiniteError as error:
            raise Diverged(f"step {step}: {error}") from error
        for suffix, source in self._sources.items():
            answers = self._kind.answers(run.task, source, outputs[suffix], dev[suffix])
            self._last[suffix] = Answered(step, answers, self._kind.scores(run.task, answers, dev[suffix]))
        return {f"{name}{suffix}": score for suffix in dev for name, score in self._last[suffix].scores.items()}


class Outcome(Hook):
    """Prints notices at the start; at the end writes predictions, and says scores and whether the run has collapsed.

    Args:
        kind: the data.
        last: the answers of the last evaluation.
        tests: arrays of the splits without labels, by the name of the file of predictions.
        notices: lines to print at the start.
        run: the run.
    """

    def __init__(self, kind: Kind, last: Evaluated, tests: dict[str, Any], notices: tuple[str, ...], run: Run) -> None:
        super().__init__(run)
        self._kind, self._last, self._tests, self._notices, data = kind, last, tests, notices, kind.data
        self._outputs: RowOutputs | None = None
        splits = {"train": data.train} | {f"dev{suffix}": split for suffix, split in data.dev.items()}
        splits |= {"test" if name == "test" else f"test ({name})": split for name, split in data.test.items()}
        require_same_files({name: (split.path, kind.content(split)) for name, split in splits.items()}, run.world)

    def phase(self) -> None:
        for notice in self._notices:
            self.run.say(notice)
        self._resume()

    def _resume(self) -> None:
        run = self.run
        if run.resumed_from and not run.held_out:
            self._kind.resumed(run.task, read_configuration(run.resumed_from))

    def finish(self) -> None:
        self.wait()
        run, kind, data = self.run, self._kind, self._kind.data
        self._resume()  # no phase has begun if nothing is left to train
        step = run.state.progress.step
        at_end = bool(run.ended) or step >= run.last_step
        if at_end:
            for suffix, split in data.dev.items():
                # The files may be missing though nothing was left to train; or the run has ended between evaluations.
                if suffix not in self._last or self._last[suffix].step != step:
                    answers = self._answers(f"held_out{suffix}", run.job.dataset.splits[f"held_out{suffix}"], split)
                    self._last[suffix] = Answered(step, answers, kind.scores(run.task, answers, split))
            for name, split in data.test.items():
                self._write(name, split, self._answers(name, self._tests[name], split))
        for suffix, (_, answers, scores) in reversed(list(self._last.items())):
            if at_end:
                self._write(f"dev{suffix}", data.dev[suffix], answers)
            for line in kind.verdict(run.task, data.dev[suffix], answers, scores):
                run.say(line)

    def _answers(self, name: str, arrays: Any, split: Any) -> Any:
        """The answers to a dev or test set; equal on all ranks."""
        run = self.run
        rows = run.job.dataset.rows(len(run.recipe.phase) - 1, arrays)
        run.doing(f"predicting {name}", FIRST_STEP_S)
        self._outputs = self._outputs or run_outputs(run, rows)
        outputs = self._outputs(run.state.parameters, rows, partial(_tell, run, f"predicting {name}"))
        return self._kind.answers(run.task, rows, outputs, split)

    def _write(self, name: str, split: Any, answers: Any) -> None:
        if self.run.world.rank == 0:
            for line in self._kind.write(self.run.job.output_dir, name, split, answers, self.run.task):
                self.run.say(line)


def _tell(run: Run, what: str, done: int, of: int) -> None:
    run.doing(f"{what}, {done} of {of} rows")  # a large set may take longer than any step


def run_outputs(run: Run, rows: PackedRows) -> RowOutputs:
    """Computes the outputs of a run's task, for such rows."""
    recipe = run.recipe
    return RowOutputs(run.task, recipe.model, compute_policy(recipe), block_rows(rows.positions), run.world)
