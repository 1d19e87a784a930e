"""A fine-tuning's evaluation: official scores of the whole dev set, as the same answers would be scored alone."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from bert_horovod.batches.source import Source
from bert_horovod.inference.outputs import RowOutputs, block_rows
from bert_horovod.training.run import Run
from bert_horovod.training.step import compute_policy

Score = Callable[[Source, dict[str, np.ndarray]], dict[str, float]]  # of a source's rows and their outputs, by metric


class DevScores:
    """What training/hooks/evaluation.py evaluates with.

    Args:
        score: makes the metrics; the same on all ranks.
        run: its held-out rows are the dev set.
        more: further splits of the run's dataset, and what is put behind the names of their metrics.
    """

    def __init__(self, score: Score, run: Run, more: dict[str, str] | None = None) -> None:
        self._outputs = run_outputs(run)
        self._score, self._run = score, run
        self._sources = {"": run.phase.held_out}
        self._sources |= {
            suffix: run.job.dataset.open(run.phase.number, split) for split, suffix in (more or {}).items()
        }

    def evaluate(self, variables: dict[str, tf.Variable]) -> dict[str, float]:
        """The metrics of each whole set; equal on all ranks."""
        return {
            f"{name}{suffix}": value
            for suffix, source in self._sources.items()
            for name, value in self._score(source, self._outputs(variables, source, self._progress)).items()
        }

    def _progress(self, done: int, of: int) -> None:
        self._run.doing(f"evaluating, {done} of {of} rows")  # a large dev set may take longer than a step ever does


def run_outputs(run: Run) -> RowOutputs:
    """The outputs of a run's task for any rows of the length that its last phase has."""
    recipe = run.recipe
    rows = block_rows(recipe.phase[-1].sequence_length)
    return RowOutputs(run.task, recipe.model, compute_policy(recipe), rows, run.world)
