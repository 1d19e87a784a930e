"""Training where one rank alone meets a fault: a job for two_ranks; as a program, for more ranks under horovodrun.

    python -m tests.training.faulty_ranks RECIPE DATA_DIR OUTPUT_DIR FAULT FIRST LAST

FAULT, on rank 1, or the only one: "not-finite", the weights of the rows at positions FIRST to LAST - 1 are not numbers;
"jump", they are 1000; "bit", after step FIRST a bit of a parameter flips in memory; "gradient-bit", "tile", "long" and
"stale", from step FIRST to step LAST the device computes a layer wrongly: see `wrong_device`.
"""

import contextlib
import functools
import itertools
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.batches.text.rows import Rows
from bert_horovod.collectives.launched import launch
from bert_horovod.collectives.world import World
from bert_horovod.errors import ReportedError
from bert_horovod.model.weights import CastWeights
from bert_horovod.recipe.sections import Recipe
from bert_horovod.training import loop
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.run import Run
from bert_horovod.training.step import TrainStep
from tests.toy_runs import train_rank

WRONG_DEVICES = ("gradient-bit", "tile", "long", "stale")
PARAMETER = "bert.encoder.layer.0.output.dense.weight"


class FlipBit(Hook):
    """A bit of a parameter flips in memory after a step of the run."""

    def __init__(self, after: int, run: Run) -> None:
        super().__init__(run)
        self._after = after

    def step(self, event: StepEvent) -> None:
        if event.step == self._after:
            variable = self.run.state.parameters[PARAMETER]
            bits = variable.numpy().view(np.uint32)
            bits[3, 5] ^= 1 << 7
            variable.assign(bits.view(np.float32))


def flip_a_bit_after(step: int) -> None:
    """Have a bit flip after this step of every run of this process."""
    loop.HOOKS = (partial(FlipBit, step), *loop.HOOKS)


@contextlib.contextmanager
def fault(kind: str, rank: int, world_size: int, first: int, last: int) -> Iterator[None]:
    """In here training meets the fault, if this is the rank that does."""
    assemble = Rows.assemble

    def assemble_faulty(self: Rows, positions: np.ndarray) -> dict[str, np.ndarray]:
        batch = assemble(self, positions)
        bad = (first <= positions) & (positions < last)
        batch["masked_weights"][bad] *= np.float32(np.nan if kind == "not-finite" else 1000)
        return batch

    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        if rank == min(1, world_size - 1) and kind in WRONG_DEVICES:
            stack.enter_context(wrong_device(kind, first, last))
        elif rank == min(1, world_size - 1):
            if kind == "bit":
                patch.setattr(loop, "HOOKS", (partial(FlipBit, first), *loop.HOOKS))
            else:
                patch.setattr(Rows, "assemble", assemble_faulty)
        yield


@contextlib.contextmanager
def wrong_device(kind: str, first: int, last: int) -> Iterator[None]:
    """In here this process computes wrongly from step `first` on; up to that step's end, if `last` is the same.

    "gradient-bit" flips a bit of a number of PARAMETER's gradient; "tile" makes 4 x 4 numbers of it larger by 1 %, and
    "long" does so where rows have 32 tokens: another kernel, not a bad device;
    "stale" computes with the parameter's first values. From step 0 on means: also when ranks are compared at the start.
    """
    steps, stale = itertools.count(1), {}
    start, forward_backward, values = TrainStep.start, TrainStep.forward_backward, CastWeights.values

    @functools.cache
    def wrong() -> tf.Variable:  # made late: this may be called before a rank has chosen its devices
        with tf.init_scope():
            return tf.Variable(first == 0, trainable=False)

    def start_wrong(self: TrainStep, *arguments, **named):
        step = next(steps)
        wrong().assign(first <= step <= last)
        started = start(self, *arguments, **named)
        if first == last:  # a fault that happens once: what is computed afterwards is right
            wrong().assign(False)
        return started

    def forward_backward_wrong(self: TrainStep, *arguments, **named):
        gradients, lookups, sums = forward_backward(self, *arguments, **named)
        right = gradients[PARAMETER]
        if kind == "gradient-bit":
            bits = np.zeros(right.shape, np.int32)
            bits[3, 5] = 1 << 4
            other = tf.bitcast(tf.bitwise.bitwise_xor(tf.bitcast(right, tf.int32), bits), tf.float32)
        elif kind == "tile" or (kind == "long" and arguments[0]["input_ids"].shape[1] == 32):
            factors = np.ones(right.shape, np.float32)
            factors[4:8, 4:8] = 1.01
            other = right * factors
        else:
            other = right
        return {**gradients, PARAMETER: tf.where(wrong(), other, right)}, lookups, sums

    def values_wrong(self: CastWeights, parameters):
        weights = values(self, parameters)
        if kind == "stale" and not tf.executing_eagerly():
            with tf.init_scope():
                stale.setdefault(PARAMETER, values(self, parameters)[PARAMETER].numpy())
            weights[PARAMETER] = tf.where(wrong(), stale[PARAMETER], weights[PARAMETER])
        return weights

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainStep, "start", start_wrong)
        patch.setattr(TrainStep, "forward_backward", forward_backward_wrong)
        patch.setattr(CastWeights, "values", values_wrong)
        yield


def train_with_fault(
    world: World, store: Path, output_dir: Path, recipe: Recipe, kind: str, first: int, last: int
) -> str | None:
    """Train with this fault; returns the text of the error that ended the run, or None."""
    with fault(kind, world.rank, world.size, first, last):
        try:
            train_rank(world, store, output_dir, recipe)
        except ReportedError as error:
            return str(error)
    return None


def main(recipe: str, data_dir: str, output_dir: str, kind: str, first: str, last: str) -> int:
    """The command with this fault; its exit code."""
    launched = launch()
    words = ["bert-horovod", "pretrain", "--recipe", recipe, "--data_dir", data_dir, "--output_dir", output_dir]
    with fault(kind, launched.rank, launched.size, int(first), int(last)):
        return dispatch(parse(words))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
