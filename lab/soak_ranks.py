"""Faults inside of a rank, for lab/soak.py: every process of its runs imports this when Python starts.

A rank that finds the file MARK beside sitecustomize.py, with its own number, removes it and does what it says:
"parameter" and "slot" flip a bit in memory after the present step; "gradient" lets the device compute wrongly, a bit of
each number of one gradient, until the process ends.
"""

import json
import os
import sys
from pathlib import Path

MARK = "mark.json"
NAME = "bert.encoder.layer.0.output.dense.weight"


def patch(directory: Path) -> None:
    """Add the hook to those of the training loop, and a fault that it can switch on to each gradient."""
    import numpy as np
    import tensorflow as tf

    from bert_horovod.optimizers import loss_scale
    from bert_horovod.training import loop
    from bert_horovod.training.hooks.base import Hook, StepEvent
    from bert_horovod.training.step import TrainStep

    wrong: list[tf.Variable] = []
    forward_backward = TrainStep.forward_backward

    def faulty(self, *arguments, **named):
        gradients, lookups, sums = forward_backward(self, *arguments, **named)
        with tf.init_scope():
            if not wrong:
                wrong.append(tf.Variable(False, trainable=False))
        right = gradients[NAME]
        return {**gradients, NAME: tf.where(wrong[0], right * tf.cast(1.01, right.dtype), right)}, lookups, sums

    class Faults(Hook):
        def step(self, event: StepEvent) -> None:
            try:
                fault = json.loads((directory / MARK).read_text())
            except (OSError, ValueError):
                return
            if fault["rank"] != self.run.world.rank:
                return
            (directory / MARK).unlink()
            if fault["kind"] == "gradient":
                wrong[0].assign(True)
                return
            state = self.run.state
            variable = state.parameters[NAME] if fault["kind"] == "parameter" else state.slots["m"][NAME]
            bits = variable.numpy().view(np.uint32)
            bits[3, 5] ^= 1 << 7
            variable.assign(bits.view(np.float32))

    loss_scale.INITIAL, loss_scale.GROWTH_STEPS = 2.0**24, 10  # so that steps are skipped, again and again
    TrainStep.forward_backward = faulty
    loop.HOOKS = (*loop.HOOKS[:-3], Faults, *loop.HOOKS[-3:])  # before the comparisons and the save of the same step


if "HOROVOD_RANK" in os.environ and "pretrain" in sys.orig_argv:
    import importlib.abc
    import importlib.machinery

    class _Watch(importlib.abc.MetaPathFinder):
        """Patches the loop once it is imported: TensorFlow must not be imported when Python starts."""

        def find_spec(self, name, path, target=None):
            if name != "bert_horovod.training.loop":
                return None
            sys.meta_path.remove(self)
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                patch(Path(sys.modules["sitecustomize"].__file__).parent)

            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, _Watch())
