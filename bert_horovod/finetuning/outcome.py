"""A fine-tuning's evaluation, its best checkpoint and early end, and the scores and predictions that it writes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.batches.examples.base import PackedRows
from bert_horovod.collectives.world import World, from_all_ranks, from_rank_0
from bert_horovod.errors import UserError
from bert_horovod.finetuning.kinds.base import Kind
from bert_horovod.inference.outputs import NotFiniteError, RowOutputs, block_rows
from bert_horovod.interchange.huggingface import HuggingFace
from bert_horovod.model.gpu_kernels.choice import compute_policy
from bert_horovod.runs.checkpoint import BEST, Best, best_record, path_of
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.storage.writing import write_atomically
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.hooks.divergence import Diverged
from bert_horovod.training.run import FIRST_STEP_S, Run


class Answered(NamedTuple):
    """A dev set's answers in the last evaluation."""

    step: int
    answers: Any  # of the kind
    scores: dict[str, float]


Evaluated = dict[str, Answered]  # by the dev sets' suffixes; the evaluation fills it for the end of the run


class DevScores:
    """Computes the dev scores for training/hooks/evaluation.py; `last` takes the answers."""

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

    `last`: the answers of the last evaluation; `tests`: arrays of the splits without labels, by the name of the file of
    predictions; `of_head`: what is said of the checkpoint's head, which a resumed run does not take.
    """

    def __init__(
        self, kind: Kind, last: Evaluated, tests: dict[str, Any], notices: tuple[str, ...], of_head: list[str], run: Run
    ) -> None:
        super().__init__(run)
        self._kind, self._last, self._tests, data = kind, last, tests, kind.data
        self._notices, self._of_head = notices, of_head
        self._outputs: RowOutputs | None = None
        splits = {"train": data.train} | {f"dev{suffix}": split for suffix, split in data.dev.items()}
        splits |= {"test" if name == "test" else f"test ({name})": split for name, split in data.test.items()}
        require_same_files({name: (split.path, kind.content(split)) for name, split in splits.items()}, run.world)

    def phase(self) -> None:
        for notice in (*self._notices, *([] if self.run.resumed_from else self._of_head)):
            self.run.say(notice)
        self._resume()

    def _resume(self) -> None:
        run = self.run
        if run.resumed_from and not run.held_out:
            self._kind.resumed(run.task, HuggingFace(run.resumed_from).configuration)

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


def require_same_files(files: dict[str, tuple[Path, Any]], world: World) -> None:
    """Raise UserError, on all ranks, if a file's content is not the same on all ranks."""
    own_digests = {
        name: [str(path), hashlib.sha256(json.dumps(content).encode()).hexdigest()]
        for name, (path, content) in files.items()
    }
    everyone = from_all_ranks([own_digests], world, "digests of files")
    for name in {name: None for of_rank in everyone for name in of_rank}:
        copies = [of_rank.get(name, ["no such file", ""]) for of_rank in everyone]
        different = [rank for rank, (_, digest) in enumerate(copies) if digest != copies[0][1]]
        if different:
            raise UserError(
                f"the {name} file of rank{'s' if different[1:] else ''} {', '.join(map(str, different))} "
                f"({copies[different[0]][0]}) is not that of rank 0 ({copies[0][0]}): "
                "every host needs the same copy of it"
            )


class BestCheckpoint(Hook):
    """Saves each step with the best score so far, and ends the run after `patience` evaluations without a better one.

    All ranks have the same scores, and so end after the same step; None: it never ends the run. `metric`: name of the
    dev score that decides; more is better.
    """

    def __init__(self, metric: str, patience: int | None, run: Run) -> None:
        super().__init__(run)
        self._metric, self._patience = metric, patience
        self._best: Best | None = None

    def phase(self) -> None:
        run = self.run
        recorded = best_record(run.job.output_dir) if run.world.rank == 0 else None
        if run.world.rank == 0 and recorded is None and (path := run.job.output_dir / BEST).exists():
            run.say(f"warning: {path} is damaged, or its checkpoint is gone; later evaluations tell the best one anew")
        told = from_rank_0(asdict(recorded) if recorded else None, run.world, "the best checkpoint")
        if not told or told["metric"] != self._metric or told["step"] > run.state.progress.step:
            return
        self._best = best = Best(**(told | {"ended": False}))
        if best.last_step > (step := run.state.progress.step):  # the run was killed before it saved a checkpoint
            every = run.recipe.execution.evaluate_steps
            best.last_step, best.evaluations_since = step, step // every - best.step // every if every else 0
        self._write()

    def wants_to_end(self) -> bool:
        self._look()
        best = self._best
        if best is None or self._patience is None or best.evaluations_since < self._patience:
            return False
        self.run.ended = (
            f"ended at step {best.last_step}, because {self._metric.replace('_', ' ')} did not get better in "
            f"{best.evaluations_since} evaluations (--early_stop)"
        )
        if not best.ended:
            best.ended = True
            self._write()
        return True

    def finish(self) -> None:
        self._look()
        if best := self._best:
            path = path_of(self.run.job.output_dir, best.step)
            self.run.say(f"best checkpoint: {path}, {best.metric.replace('_', ' ')} {best.score:.4f}")

    def wants_checkpoint(self, step: int) -> bool:
        return self._is_better(self._score(step))

    def _score(self, step: int) -> float | None:
        """The score of the evaluation after this step, if there was one; while the loss is far up nothing is saved."""
        run = self.run
        score = run.held_out.get(f"held_out_{self._metric}")  # none if nothing was left to train: no phase is open
        if score is None or not run.evaluation_due(step) or run.state.progress.jumped_in_a_row:
            return None
        return score

    def _is_better(self, score: float | None) -> bool:
        return score is not None and (self._best is None or score > self._best.score)

    def _look(self) -> None:
        """Take the score of an evaluation after this step, if there was one."""
        best, step = self._best, self.run.state.progress.step
        score = self._score(step)
        if score is None or (best and best.last_step >= step):
            return
        if self._is_better(score):
            self._best = Best(self._metric, score, step, 0, step, False)
        elif best is not None:
            best.last_step, best.evaluations_since = step, best.evaluations_since + 1
        if self._best is not None:
            self._write()

    def _write(self) -> None:
        if self.run.world.rank == 0:
            write_atomically(self.run.job.output_dir / BEST, json.dumps(asdict(self._best), indent=1) + "\n")
