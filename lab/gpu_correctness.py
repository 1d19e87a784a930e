"""Whether a GPU computes what the CPU computes: losses, gradients and dropout masks of a toy model, side by side.

The correctness section of lab/gpu.py. Both devices compute in one process, in the same precision, without TF32.
The CPU computes without XLA. On a machine without a GPU the CPU is compared with itself, compiled by XLA. The mode
"triton" is "layers" with the Triton kernels; where these cannot be used it is left out, with the reason.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_horovod.measuring.synthetic import TimedStep, synthetic_batch, synthetic_step
from bert_horovod.model.forward import DropoutState, random_bytes
from bert_horovod.model.gpu_kernels.choice import capability, why_not
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_from_table
from bert_horovod.runtime.devices import has_gpu
from bert_horovod.training.inputs import step_inputs

CPU = "/CPU:0"
ROWS, LENGTH, MASKED_SLOTS, SEQUENCES, MICRO_BATCHES = 4, 64, 12, 2, 2
LEARNING_RATE = 2e-3
SMALL = 1e-3  # of the largest number of all gradients: a tensor below it is compared with that, not with its own
DROPOUT_SHAPES = ([3, 2, 64, 64], [5, 7, 33], [4, 50])  # the last two are no multiples of a Philox block
DROPOUT_KEY, FIRST_ROW = 0x0123456789ABCDEF, 5


class Bands(NamedTuple):
    """How far a device may be from the CPU in the same precision."""

    loss: float  # relative, at any of the steps
    gradient: float  # of a tensor's largest difference to its largest number


# On a CPU, 20 steps compiled by XLA differ from plain ones by 2e-7 (losses) and 6e-7 (gradients) in float32, by 7e-4
# and 8e-3 in bfloat16. A GPU sums in other orders, so that these are wider. A wrong dropout mask is far outside.
BANDS = {"float32": Bands(2e-5, 1e-4), "bfloat16": Bands(5e-3, 5e-2), "float16": Bands(2e-3, 1e-2)}


class Trained(NamedTuple):
    """What a device made of the toy model."""

    losses: list[float]  # of each step
    gradients: dict[str, np.ndarray]  # of the first micro-batch, before training; float32
    skipped_steps: int  # float16 only: gradients that were not finite


def correctness(precision: str, modes: list[str], steps: int, layers: int) -> dict[str, Any]:
    """Train on the CPU, then on the GPU in each mode; how far each is from the CPU, and what is out of band."""
    tf.config.experimental.enable_tensor_float_32_execution(False)  # else products round to 10 bits on the GPU alone
    device = "/GPU:0" if has_gpu() else CPU
    reference = train(toy_recipe(precision, "off", layers), CPU, steps)
    bands = BANDS[precision]
    differences: dict[str, Any] = {
        "device": device,
        "bands": bands._asdict(),
        "reference_losses": reference.losses,
        "dropout_bytes_that_differ": {
            "compiled" if compiled else "plain": bytes_that_differ(device, compiled) for compiled in (False, True)
        },
    }
    problems = [
        f"dropout, {how}: {count} bytes differ, expected 0"
        for how, count in differences["dropout_bytes_that_differ"].items()
        if count
    ]
    for mode in modes:
        recipe = toy_recipe(precision, "layers" if mode == "triton" else mode, layers)
        lacking = why_not(capability(), recipe.model, (LENGTH,), precision, "layers") if mode == "triton" else None
        if lacking:
            differences[mode] = {"absent": lacking}
            continue
        kernels = "triton" if mode == "triton" else "xla"
        recipe = replace(recipe, execution=replace(recipe.execution, kernels=kernels))
        compared = compare(train(recipe, device, steps), reference)
        differences[mode] = compared
        problems += [f"{mode}: {problem}" for problem in out_of_bands(compared, bands)]
    compared = {mode: differences[mode] for mode in modes if "absent" not in differences[mode]}
    largest = {mode: [each["loss_difference"], each["gradient_difference"]] for mode, each in compared.items()}
    return differences | {"largest_differences": largest, "problems": problems}


def compare(trained: Trained, reference: Trained) -> dict[str, Any]:
    """Largest relative differences of losses, and of gradients by tensor; nan where something is not finite."""
    losses, others = np.float64(trained.losses), np.float64(reference.losses)
    largest = max(np.max(np.abs(gradient)) for gradient in reference.gradients.values())
    differences = {}
    for name, gradient in reference.gradients.items():
        size = max(np.max(np.abs(gradient)), SMALL * largest)
        differences[name] = float(np.max(np.abs(trained.gradients[name] - gradient)) / size)
    worst = max(differences, key=lambda name: np.nan_to_num(differences[name], nan=np.inf))
    return {
        "losses": trained.losses,
        "loss_difference": float(np.max(np.abs(losses - others) / np.abs(others))),
        "gradient_difference": differences[worst],
        "worst_gradient": worst,
        "skipped_steps": [trained.skipped_steps, reference.skipped_steps],
    }


def out_of_bands(compared: dict[str, Any], bands: Bands) -> list[str]:
    """What of a comparison is outside, in words; what is not finite is."""
    problems = []
    if not compared["loss_difference"] <= bands.loss:
        problems.append(f"losses differ by {compared['loss_difference']:.1e}, expected at most {bands.loss:.0e}")
    if not compared["gradient_difference"] <= bands.gradient:
        problems.append(
            f"the gradient of {compared['worst_gradient']} differs by {compared['gradient_difference']:.1e}, "
            f"expected at most {bands.gradient:.0e}"
        )
    mine, others = compared["skipped_steps"]
    if mine != others:
        problems.append(f"{mine} steps were skipped, expected {others} as on the CPU")
    return problems


def toy_recipe(precision: str, xla: str, layers: int) -> Recipe:
    """A few layers with heads of the usual size and dropout."""
    return recipe_from_table(
        {
            "model": {
                "vocab_size": 1000,
                "hidden_size": 128,
                "num_hidden_layers": layers,
                "num_attention_heads": 2,
                "intermediate_size": 256,
                "max_position_embeddings": LENGTH,
            },
            "data": {"seed": 7},
            "optimizer": {"max_grad_norm": 0.5},
            "numerics": {"precision": precision},
            "phase": [{"sequence_length": LENGTH, "global_batch": ROWS * MICRO_BATCHES}],
            "execution": {"micro_batch": ROWS, "xla": xla, "bucket_bytes": 200000},
        }
    )


def train(recipe: Recipe, device: str, steps: int) -> Trained:
    """Gradients of a first micro-batch, then so many optimizer steps, all on the device."""
    batch = synthetic_batch(recipe.model, ROWS, LENGTH, MASKED_SLOTS, SEQUENCES)
    with tf.device(device):
        step = synthetic_step(recipe, batch, MICRO_BATCHES)
        gradients = first_gradients(step)
        losses = [_train_step(step) for _ in range(steps)]
    return Trained(losses, gradients, step.state.progress.skipped_steps)


def _train_step(step: TimedStep) -> float:
    """One optimizer step; its loss."""
    inputs = step_inputs(step.recipe, step.state.progress.step, {}, step.rows.counts, LEARNING_RATE)
    result = step.step.start(step.rows.micro_batches, [ROWS * k for k in range(MICRO_BATCHES)], inputs).result()
    step.state.progress.count(result.finite, step.recipe.numerics)
    sums, counts = result.sums, step.rows.counts
    return sums["mlm_loss"] / counts["masked_tokens"] + sums["nsp_loss"] / counts["sequences"]


def first_gradients(step: TimedStep) -> dict[str, np.ndarray]:
    """The first micro-batch's gradients, float32 by parameter, the looked-up rows added in."""
    graph = tf.function(step.step.forward_backward, autograph=False)
    gradients, lookups, _ = graph(step.rows.micro_batches[0], tf.constant(0, tf.uint64), step.inputs())
    dense = {name: tf.cast(gradient, tf.float32).numpy().copy() for name, gradient in gradients.items()}
    for name, part in lookups.items():
        values = tf.cast(part.values, tf.float32).numpy()
        np.add.at(dense[name], part.indices.numpy().reshape(-1), values.reshape(-1, dense[name].shape[1]))
    return dense


def bytes_that_differ(device: str, compiled: bool) -> int:
    """How many random bytes of dropout masks are others than the CPU's without XLA; expected 0."""
    pairs = zip(dropout_bytes(device, compiled), dropout_bytes(CPU, False), strict=True)
    return sum(int(np.count_nonzero(one != other)) for one, other in pairs)


def dropout_bytes(device: str, compiled: bool) -> list[np.ndarray]:
    """Random bytes of dropout masks of several shapes, each at a site of its own."""

    def draw(key: tf.Tensor, first_row: tf.Tensor) -> list[tf.Tensor]:
        state = DropoutState(key, first_row)
        return [random_bytes(shape, 0.1, site, state) for site, shape in enumerate(DROPOUT_SHAPES)]

    with tf.device(device):
        graph = tf.function(draw, jit_compile=compiled, autograph=False)  # of arguments: constants are folded on a CPU
        drawn = graph(tf.constant([DROPOUT_KEY], tf.uint64), tf.constant(FIRST_ROW, tf.uint64))
        return [part.numpy() for part in drawn]
