"""A fine-tuning's evaluation: official scores of the whole dev set, the same that finetuning/scoring.py gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bert_horovod.batches.source import Source
from bert_horovod.inference.outputs import NotFiniteError, RowOutputs, block_rows
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.training.hooks.divergence import Diverged
from bert_horovod.training.run import Run
from bert_horovod.training.step import compute_policy

Score = Callable[[Source, dict[str, np.ndarray]], dict[str, float]]  # (source, outputs of its rows) -> metrics


class DevScores:
    """Computes the dev scores for training/hooks/evaluation.py.

    Args:
        score: computes the metrics, equal on all ranks.
        run: its held-out rows are the dev set.
        more: further splits of the run's dataset -> the suffix of their metrics' names.
    """

    def __init__(self, score: Score, run: Run, more: dict[str, str] | None = None) -> None:
        self._outputs = run_outputs(run)
        self._score, self._run = score, run
        self._sources = {"": run.phase.held_out}
        self._sources |= {
            suffix: run.job.dataset.open(run.phase.number, split) for split, suffix in (more or {}).items()
        }

    def evaluate(self, variables: dict[str, tf.Variable]) -> dict[str, float]:
        """The metrics of each whole set; equal on all ranks. Raises Diverged if an output is not finite."""
        try:
            outputs = {
                suffix: self._outputs(variables, source, self._progress) for suffix, source in self._sources.items()
            }
        except NotFiniteError as error:
            raise Diverged(f"step {self._run.state.progress.step}: {error}") from error
        return {
            f"{name}{suffix}": score
            for suffix, source in self._sources.items()
            for name, score in self._score(source, outputs[suffix]).items()
        }

    def _progress(self, done: int, of: int) -> None:
        self._run.doing(f"evaluating, {done} of {of} rows")  # a large dev set may take longer than any step


def run_outputs(run: Run) -> RowOutputs:
    """Computes the outputs of a run's task, for rows of the sequence length of the run's last phase."""
    recipe = run.recipe
    rows = block_rows(recipe.phase[-1].sequence_length * max(1, recipe.objective.label_attention))
    return RowOutputs(run.task, recipe.model, compute_policy(recipe), rows, run.world)
