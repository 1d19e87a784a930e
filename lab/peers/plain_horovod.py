"""This package's model and update, with plain Horovod: its tape, its fusion, nothing told about the order.

horovodrun -np 2 -H node1:1,node2:1 python lab/peers/plain_horovod.py --model small --micro_batches 4

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

from bert_horovod.model.gpu_kernels.choice import compute_policy
from bert_horovod.runtime.quiet import import_tensorflow

import_tensorflow()
import horovod.tensorflow as hvd
import tensorflow as tf

from bert_horovod.model.forward import DropoutState, Forward, as_tensors
from bert_horovod.model.heads import loss_sums
from bert_horovod.model.parameters import decays, initial_values
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.model.weights import cast_weights
from bert_horovod.optimizers.applying import clip_factor
from bert_horovod.optimizers.applying import update as apply_rule


def main() -> None:
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    initial = initial_values(
        pretraining_shapes(recipe.model, recipe.objective.pairs), recipe.model.initializer_range, recipe.data.seed
    )
    parameters = {name: tf.Variable(value) for name, value in initial.items()}
    profile = ranks.delays(arguments)
    step = real_step(parameters) if profile is None else delayed_step(parameters, profile)
    ranks.report(
        arguments,
        recipe,
        hvd.rank(),
        hvd.size(),
        sum(value.size for value in initial.values()),
        step,
        lambda: hvd.allreduce(tf.zeros([1]), name="barrier").numpy(),
    )
    hvd.shutdown()


class Tape(tf.GradientTape):
    """Gives dense gradients, with what was added up in the accumulators."""

    def __init__(self, accumulators: dict[str, tf.Variable]) -> None:
        super().__init__()
        self._accumulators = accumulators

    def gradient(self, target, sources, output_gradients=None):
        last = [tf.convert_to_tensor(each) for each in super().gradient(target, sources, output_gradients)]
        return [a + g for a, g in zip(self._accumulators.values(), last, strict=True)] if self._accumulators else last


def fresh_accumulators(parameters: dict[str, tf.Variable]) -> dict[str, tf.Variable]:
    """Zeros for the sums of a step's gradients; none are needed for one micro-batch."""
    return {
        name: tf.Variable(tf.zeros_like(value)) for name, value in parameters.items() if arguments.micro_batches > 1
    }


def add_up(accumulators: dict[str, tf.Variable], gradients: list[tf.Tensor]) -> None:
    """Add a micro-batch's gradients."""
    for accumulator, gradient in zip(accumulators.values(), gradients, strict=True):
        accumulator.assign_add(tf.convert_to_tensor(gradient))


def clear(accumulators: dict[str, tf.Variable]) -> None:
    """Make the sums zero again."""
    for accumulator in accumulators.values():
        accumulator.assign(tf.zeros_like(accumulator))


def real_step(parameters: dict[str, tf.Variable]):
    """A step that computes; the last micro-batch's gradients are summed with the others' before Horovod has them."""
    count = arguments.micro_batches
    policy = compute_policy(recipe)
    accumulators = fresh_accumulators(parameters)
    slots = {
        slot: {name: tf.Variable(tf.zeros_like(value)) for name, value in parameters.items()} for slot in ("m", "v")
    }
    batches = [as_tensors(batch) for batch in ranks.micro_batches(arguments, recipe, hvd.rank())]

    def loss(batch: dict[str, tf.Tensor], k: tf.Tensor) -> tf.Tensor:
        dropout = DropoutState(tf.constant([1], tf.uint64), k * recipe.execution.micro_batch)
        forward = Forward(recipe.model, cast_weights(parameters, policy.dtype), policy, dropout)
        sums = loss_sums(forward, recipe.objective.pairs, batch)
        tokens, sequences = (tf.reduce_sum(batch[name]) for name in ("masked_weights", "sequence_weights"))
        return (sums.mlm_loss / tokens + sums.nsp_loss / sequences) / count

    def accumulate(batch: dict[str, tf.Tensor], k: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            value = loss(batch, k)
        add_up(accumulators, tape.gradient(value, list(parameters.values())))

    def finish(batch: dict[str, tf.Tensor], k: tf.Tensor, communicate: bool) -> tf.Tensor:
        with hvd.DistributedGradientTape(Tape(accumulators)) if communicate else Tape(accumulators) as tape:
            value = loss(batch, k)
        gradients = tape.gradient(value, list(parameters.values()))
        update(parameters, gradients, slots)
        with tf.control_dependencies(gradients):
            clear(accumulators)
        return value

    accumulate, finish = (tf.function(each, autograph=False) for each in (accumulate, finish))
    places = [tf.constant(k, tf.uint64) for k in range(count)]

    def step(communicate: bool) -> None:
        for batch, place in zip(batches[:-1], places, strict=False):
            accumulate(batch, place)
        finish(batches[-1], places[-1], communicate).numpy()

    return step


def update(
    parameters: dict[str, tf.Variable], gradients: list[tf.Tensor], slots: dict[str, dict[str, tf.Variable]]
) -> None:
    """Clip, and do an AdamW step."""
    factor = clip_factor(tf.linalg.global_norm(gradients), recipe.optimizer.max_grad_norm)
    for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        value, _, new = apply_rule(
            recipe.optimizer.rule,
            parameter[None],
            gradient[None],
            {slot: named[name][None] for slot, named in slots.items()},
            tf.constant(1.0),
            tf.constant(1e-4),
            factor,
            decays(name),
            recipe.optimizer,
            tf.float32,
            True,
        )
        parameter.assign(value[0])
        for slot, each in new.items():
            slots[slot][name].assign(each[0])


def delayed_step(parameters: dict[str, tf.Variable], profile: dict):
    """A step that sleeps where it would compute or update.

    What each micro-batch gives out as gradients are the parameters. Adding these up and their norm are real.
    """
    accumulators = fresh_accumulators(parameters)
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
        add_up(accumulators, tape.gradient(value, list(parameters.values())))
        return value

    def finish(communicate: bool) -> tf.Tensor:
        with hvd.DistributedGradientTape(Tape(accumulators)) if communicate else Tape(accumulators) as tape:
            value = forward()
        gradients = tape.gradient(value, list(parameters.values()))
        with tf.control_dependencies([tf.linalg.global_norm(gradients)]):
            clear(accumulators)
            return sleep(tf.constant(1.0), profile["update_s"]), [gradient[..., :1] for gradient in gradients]

    accumulate, finish = (tf.function(each, autograph=False) for each in (accumulate, finish))

    def step(communicate: bool) -> None:
        for _ in range(arguments.micro_batches - 1):
            accumulate()
        finish(communicate)[0].numpy()

    return step


if __name__ == "__main__":
    main()
