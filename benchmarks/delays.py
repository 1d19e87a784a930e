#!/usr/bin/env python3
"""When a training step's gradients are there: what benchmarks/scaling.py lets its contestants sleep.

python benchmarks/delays.py --model small --speed 20 > profile.json

Runs our step, float32, on one core, and prints a JSON object of seconds, divided by --speed:

    {"forward_s": of a micro-batch's forward pass,
     "head_s": then, until the heads' gradients are there, the tied decoder's share of the word embeddings' too,
     "layers_s": [then, of the last layer, ..., of the first],
     "embeddings_s": then, of the embeddings,
     "update_s": of clipping and the optimizer}
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.config import Recipe
from bert_horovod.errors import UserError
from bert_horovod.flags import add_overrides
from bert_horovod.performance.configuration import SIZES, size_recipe
from bert_horovod.quiet import import_tensorflow

WARM_UP = 2  # passes
LAYER = "bert.encoder.layer."


def blocks(names: list[str]) -> dict[str, list[str]]:
    """Weights, given in forward order, by the part whose backward makes their gradients last, in backward order.

    The parts are "head", "layer.N", ..., "layer.0" and "embeddings".
    """
    layers: dict[str, list[str]] = {}
    head, embeddings = [], []
    for name in names:
        if name.startswith(LAYER):
            layers.setdefault("layer." + name.removeprefix(LAYER).split(".")[0], []).append(name)
        else:
            (embeddings if name.startswith("bert.embeddings.") else head).append(name)
    return {"head": head, **{layer: layers[layer] for layer in reversed(layers)}, "embeddings": embeddings}


def durations(moments: dict[str, float]) -> dict[str, float | list[float]]:
    """Seconds of each part, as above, from the moments when "forward" and each of `blocks` are done, from the start."""
    ends = list(moments.values())
    forward, head, *layers, embeddings = (end - start for start, end in zip([0.0, *ends], ends, strict=False))
    return {"forward_s": forward, "head_s": head, "layers_s": layers, "embeddings_s": embeddings}


def measure(recipe: Recipe, passes: int) -> dict[str, float | list[float]]:
    """Seconds of each part: medians, on this process's one thread."""
    import_tensorflow()
    import tensorflow as tf

    from bert_horovod.model.compute import Compute
    from bert_horovod.model.dropout import DropoutState
    from bert_horovod.model.heads import loss_sums
    from bert_horovod.model.working import working_weights
    from bert_horovod.performance.compute import TimedStep
    from bert_horovod.training.step import as_tensors, xla_mode

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)  # with 1 the head's gradients come last
    step = TimedStep(recipe)
    parameters = step.state.parameters
    compute = Compute(tf.float32, xla_mode(recipe))

    def moments(batch: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        started = tf.timestamp()
        with tf.control_dependencies([started]):
            weights = working_weights({name: tf.identity(value) for name, value in parameters.items()}, tf.float32)
            dropout = DropoutState(tf.constant([1], tf.uint64), tf.constant(0, tf.uint64))
            with tf.GradientTape() as tape:
                tape.watch(weights)
                sums = loss_sums(weights, recipe.model, recipe.objective.pairs, batch, compute, dropout)
                loss = sums.mlm_loss + sums.nsp_loss
        gradients = {name: tf.identity(gradient) for name, gradient in tape.gradient(loss, weights).items()}
        needed = {part: [gradients[name] for name in names] for part, names in blocks(list(weights)).items()}
        found = {}
        for part, tensors in [("forward", [loss]), *needed.items()]:  # the graph takes timestamps in this order
            with tf.control_dependencies([getattr(tensor, "values", tensor) for tensor in tensors]):
                found[part] = tf.timestamp() - started
        return found, gradients  # what nobody reads would not be computed

    timed = tf.function(moments, autograph=False)
    batch = as_tensors(step.batch)
    found = [{part: float(moment) for part, moment in timed(batch)[0].items()} for _ in range(WARM_UP + passes)]
    step.warm_up()
    step.forward_backward()
    update = max(0.0, statistics.median(step.run() - step.forward_backward() for _ in range(passes)))
    medians = {part: statistics.median(each[part] for each in found[WARM_UP:]) for part in found[0]}
    return durations(medians) | {"update_s": update}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(SIZES), default="small", help="(default: %(default)s)")
    parser.add_argument("--rows", type=int, metavar="N", help="of a micro-batch (default: the model's usual)")
    parser.add_argument("--length", type=int, metavar="N", help="positions of a row (default: the model's usual)")
    parser.add_argument("--passes", type=int, default=5, metavar="N", help="timed (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="of one core (default: %(default)s)")
    add_overrides(parser, "model.num_hidden_layers=2")
    arguments = parser.parse_args()
    if arguments.passes < 1:
        parser.error(f"--passes {arguments.passes}: expected at least 1")
    if not arguments.speed > 0:
        parser.error(f"--speed {arguments.speed}: expected more than 0")
    try:
        recipe = size_recipe(arguments.model, arguments.overrides, arguments.rows, arguments.length)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    found = measure(recipe, arguments.passes)
    print(
        json.dumps(
            {
                key: [each / arguments.speed for each in value] if isinstance(value, list) else value / arguments.speed
                for key, value in found.items()
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
