"""A fine-tuning's evaluation: official scores of the whole dev set, as the same answers would be scored alone."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from bert_horovod.batches.source import Source
from bert_horovod.inference.outputs import RowOutputs
from bert_horovod.training.run import Run
from bert_horovod.training.step import compute_policy

Score = Callable[[Source, dict[str, np.ndarray]], dict[str, float]]  # of a source's rows and their outputs, by metric


class DevScores:
    """What training/hooks/evaluation.py evaluates with.

    Args:
        score: makes the metrics; the same on all ranks.
        run: its held-out rows are the dev set.
    """

    def __init__(self, score: Score, run: Run) -> None:
        recipe = run.recipe
        self._outputs = RowOutputs(
            run.task, recipe.model, compute_policy(recipe), recipe.execution.micro_batch, run.world
        )
        self._score, self._source = score, run.phase.held_out

    def evaluate(self, variables: dict[str, tf.Variable]) -> dict[str, float]:
        """The metrics of the whole dev set; equal on all ranks."""
        return self._score(self._source, self._outputs(variables, self._source))
