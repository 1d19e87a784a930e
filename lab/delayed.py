#!/usr/bin/env python3
"""Steps that sleep instead of computing: they measure communication where hosts share a processor.

python lab/delayed.py measure --model small > delays.json             seconds of a step's parts, on this processor
horovodrun -np 2 python lab/delayed.py delays.json --model small      `bench step` with steps that sleep so long

Other words are those of `bert-horovod bench step`.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.collectives.world import World
from bert_horovod.commands.shared.step_flags import step_recipe
from bert_horovod.costs.buckets import BackwardProfile
from bert_horovod.errors import UserError
from bert_horovod.exchange.base import UpdateInputs
from bert_horovod.exchange.updater import Updater
from bert_horovod.measuring.synthetic import phase_batch, synthetic_step
from bert_horovod.model.parameters import WORD_EMBEDDINGS, backward_blocks
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import use_devices
from bert_horovod.storage.reading import read_given_json
from bert_horovod.training import building
from bert_horovod.training.building import measure_profile
from bert_horovod.training.step import TrainStep
from bert_horovod.training.step_results import StepInputs
from lab.rounds import reported


def delays_of(profile: BackwardProfile, update_s: float) -> dict[str, float | list[float]]:
    """Seconds of a step's parts in the format of the file; layers_s begins with the last layer."""
    ends = [profile.forward_s]
    for names in backward_blocks(list(profile.ready_s))[:-1]:
        ends.append(max(ends[-1], *(profile.ready_s[name] for name in names)))
    head, *layers = np.diff(ends).tolist()
    return {
        "forward_s": profile.forward_s,
        "head_s": head,
        "layers_s": layers,
        "embeddings_s": max(0.0, profile.end_s - ends[-1]),
        "update_s": max(0.0, update_s),
    }


def read_delays(path: Path, layers: int) -> dict[str, float | list[float]]:
    """Read the file of delays; raises ReportedError if it is no such file or has another number of layers."""
    expected = "what `python lab/delayed.py measure` prints"
    delays = read_given_json(path, "the file", expected)
    try:
        seconds = [delays[name] for name in ("forward_s", "head_s", "embeddings_s", "update_s")] + delays["layers_s"]
        fit = len(seconds) == 4 + layers and all(0 <= delay_s < math.inf for delay_s in seconds)
    except (KeyError, TypeError):
        fit = False
    if not fit:
        raise UserError(f"{path}: expected {expected} of a model of {layers} layers, found {delays}")
    return delays


class DelayedStep(TrainStep):
    """A TrainStep that sleeps through forward and each block's backward; gradients are constants."""

    def __init__(self, delays: dict[str, float | list[float]], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._delays = delays

    def forward_backward(
        self, batch: dict[str, tf.Tensor], first_row: tf.Tensor, inputs: StepInputs, loss_scale: tf.Tensor | None = None
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.IndexedSlices], tf.Tensor]:
        """See TrainStep; the gradients of a block are ready after its delay."""
        delays = self._delays
        token = _sleep(delays["forward_s"], inputs.learning_rate)
        sums = tf.fill([len(self.task.sum_names)], tf.cast(token, tf.float64))
        gradients = {}
        for names, seconds in zip(
            backward_blocks(list(self.shapes)),
            [delays["head_s"], *delays["layers_s"], delays["embeddings_s"]],
            strict=True,
        ):
            token = _sleep(seconds, token)
            with tf.control_dependencies([token]):  # parameters serve as gradients, as in the peers: no copies
                gradients |= {name: self.state.parameters[name].read_value() for name in names}
        ids = tf.reshape(batch["input_ids"], [-1])
        row_gradients = tf.fill([ids.shape[0], self.shapes[WORD_EMBEDDINGS][1]], token)
        return gradients, {WORD_EMBEDDINGS: tf.IndexedSlices(row_gradients, ids)}, sums


class DelayedUpdater(Updater):
    """An Updater that sleeps instead of updating; the arguments are those of DelayedStep and Updater."""

    def __init__(self, delays: dict[str, float | list[float]], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._seconds = delays["update_s"]
        self.at_once = False

    def apply(self, grouped: list[tf.Tensor], norm: tf.Tensor, inputs: UpdateInputs, rule=None) -> list[tf.Tensor]:
        """See Updater."""
        return [_sleep(self._seconds, norm)]


def _sleep(seconds: float, after: tf.Tensor) -> tf.Tensor:
    """Return `after`, a float32 scalar, `seconds` later."""

    def sleep(number: np.ndarray) -> np.ndarray:
        time.sleep(seconds)
        return number

    return tf.ensure_shape(tf.numpy_function(sleep, [after], tf.float32, stateful=False), [])


@contextlib.contextmanager
def delayed(delays: dict[str, float | list[float]]) -> Iterator[None]:
    """Inside this context steps that are built sleep."""
    classes = building.TrainStep, building.Updater
    building.TrainStep, building.Updater = partial(DelayedStep, delays), partial(DelayedUpdater, delays)
    try:
        yield
    finally:
        building.TrainStep, building.Updater = classes


def measured_delays(recipe: Recipe, steps: int) -> dict[str, float | list[float]]:
    """The seconds of the parts of a step of the recipe's only phase, of one micro-batch, on this processor."""
    step = synthetic_step(recipe, phase_batch(recipe, recipe.phase[0]))
    profile = measure_profile(step.step, step.rows.micro_batches[0], step.inputs(), World())
    step.run(with_times=True)
    times = [step.run(with_times=True).times for _ in range(steps)]
    return delays_of(profile, statistics.median(each.updated - each.reduced for each in times))


@reported
def main() -> int:
    """Measure, or run `bench step` with steps that sleep."""
    what, *words = sys.argv[1:] or ["--help"]
    if what in ("-h", "--help"):
        print(__doc__)
        return 0
    command = parse(["bert-horovod", "bench", "step", *words])
    recipe = step_recipe(command)
    if what != "measure":
        delays = read_delays(Path(what), recipe.model.layer_groups)
        with delayed(delays):
            return dispatch(command)
    use_devices(0, 1, recipe.execution.threads)
    print(json.dumps(measured_delays(recipe, command.steps)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
