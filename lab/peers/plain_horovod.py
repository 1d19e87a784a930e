"""This package's parameters with plain Horovod: its tape, its fusion, nothing told about the order.

horovodrun -np 2 -H node1:1,node2:1 python lab/peers/plain_horovod.py --delay FILE --model small --micro_batches 4

The word embeddings' gradient is made dense first, as `sparse_as_dense` does: by default Horovod would gather the whole
table from every rank, since the tied decoder touches all of it. lab/scaling.py says how it is measured.
"""

# ruff: noqa: E402 (flags are read before anything that takes seconds to import)

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import ranks

arguments, recipe = ranks.parse(__doc__, ("float32",))

from bert_horovod.runtime.quiet import import_tensorflow

import_tensorflow()
import horovod.tensorflow as hvd
import tensorflow as tf

from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import pretraining_shapes


def main() -> None:
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    initial = initial_values(
        pretraining_shapes(recipe.model, recipe.objective.pairs), recipe.model.initializer_range, recipe.data.seed
    )
    parameters = {name: tf.Variable(value) for name, value in initial.items()}
    step, numbers = delayed_step(parameters, ranks.delays(arguments)), sum(value.size for value in initial.values())

    def barrier() -> None:
        hvd.allreduce(tf.zeros([1]), name="barrier").numpy()

    ranks.report(arguments, hvd.rank(), hvd.size(), numbers, step, barrier)
    hvd.shutdown()


class Tape(tf.GradientTape):
    """Gives dense gradients, with what was added up in the accumulators."""

    def __init__(self, accumulators: dict[str, tf.Variable]) -> None:
        super().__init__()
        self._accumulators = accumulators

    def gradient(self, target, sources, output_gradients=None):
        last = [tf.convert_to_tensor(each) for each in super().gradient(target, sources, output_gradients)]
        return [a + g for a, g in zip(self._accumulators.values(), last, strict=True)] if self._accumulators else last


def delayed_step(parameters: dict[str, tf.Variable], profile: dict):
    """A step that sleeps where it would compute or update.

    What each micro-batch gives out as gradients are the parameters. Adding these up and their norm are real.
    """
    accumulators = {
        name: tf.Variable(tf.zeros_like(value)) for name, value in parameters.items() if arguments.micro_batches > 1
    }
    layers = recipe.model.num_hidden_layers
    parts = [{name for name in parameters if ranks.part_of(name, layers) == part} for part in range(layers + 2)]

    def sleep(x: tf.Tensor, seconds: float) -> tf.Tensor:
        def work(value):
            time.sleep(seconds)
            return value

        slept = tf.numpy_function(work, [x], tf.float32)
        slept.set_shape([])
        return slept

    def part(x: tf.Tensor, names: set[str], seconds: float) -> tf.Tensor:
        @tf.custom_gradient
        def apply(x, *values):
            def backward(dx):
                slept = sleep(dx, seconds)
                with tf.control_dependencies([slept]):
                    return slept, *(tf.identity(value) for value in values)

            return tf.identity(x), backward

        return apply(x, *(tf.convert_to_tensor(parameters[name]) for name in sorted(names)))

    def forward() -> tf.Tensor:
        x = sleep(tf.constant(1.0), profile["forward_s"])
        for names, seconds in reversed(list(zip(parts, ranks.backward_s(profile), strict=True))):
            x = part(x, names, seconds)
        return x

    def accumulate() -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = forward()
        gradients = tape.gradient(value, list(parameters.values()))
        for accumulator, gradient in zip(accumulators.values(), gradients, strict=True):
            accumulator.assign_add(tf.convert_to_tensor(gradient))
        return value

    def finish(communicate: bool) -> tf.Tensor:
        with hvd.DistributedGradientTape(Tape(accumulators)) if communicate else Tape(accumulators) as tape:
            value = forward()
        gradients = tape.gradient(value, list(parameters.values()))
        with tf.control_dependencies([tf.linalg.global_norm(gradients)]):
            for accumulator in accumulators.values():
                accumulator.assign(tf.zeros_like(accumulator))
            return sleep(tf.constant(1.0), profile["update_s"]), [gradient[..., :1] for gradient in gradients]

    accumulate, finish = (tf.function(each, autograph=False) for each in (accumulate, finish))

    def step(communicate: bool) -> None:
        for _ in range(arguments.micro_batches - 1):
            accumulate()
        finish(communicate)[0].numpy()

    return step


if __name__ == "__main__":
    main()
