"""What a device can do: its peak rate, the precisions that it accelerates; what a run says before it starts."""

import sys
import time
from typing import NamedTuple

from bert_horovod.collectives.world import World
from bert_horovod.costs.derived import describe
from bert_horovod.costs.exchange_warnings import for_one_rank
from bert_horovod.costs.gpus import TERA, gpu_peak
from bert_horovod.model.gpu_kernels.choice import capability, compute_policy
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import gpu_details
from bert_horovod.tasks.base import Task

_MEASURED_ROWS = 2048
_MEASURE_S = 0.4  # seconds of measured products, after the first ones
_FASTER = 1.2  # so many times as fast as float32's must narrow products be, because the rest of a step is slower
_LONGEST_PRODUCT_S = 0.1  # a product that would take longer is measured on fewer rows


class Peak(NamedTuple):
    """The highest rate of matrix products that a rank can reach."""

    flops_per_s: float | None  # operations per second of one rank; None: unknown
    source: str  # source of the number, or the reason why it is unknown


def find_peak(precision: str, model: Model) -> Peak:
    """Floating point operations a second that this rank's device reaches in matrix products, and where that is from.

    A GPU's peak is from its maker (costs/gpus.py). A CPU's peak is measured in less than a second: the best rate of a
    product of 2048 rows with the feed-forward layer's weight, with this rank's threads. Rank 0 alone measures, while
    the other ranks wait. The peak of all ranks is this times the world size, as if ranks did not slow each other down
    and all hosts were equal. So if ranks on one host slow each other down (memory bandwidth, clock), their share of the
    peak is lower, as it should be.
    """
    details = gpu_details()
    if details is None:
        rate = measured_peak(precision, model.hidden_size, model.intermediate_size)
        return Peak(rate, "measured on this CPU")
    name = details.get("device_name", "a GPU without a name")
    tensor_float_32 = tf.config.experimental.tensor_float_32_execution_enabled()
    rate = gpu_peak(name, precision, tensor_float_32)
    return Peak(rate, f"{name}, data sheet" if rate else f"{name} has no entry in costs/gpus.py for {precision}")


def describe_peak(peak: Peak, precision: str) -> str:
    """The peak as a line for people."""
    if peak.flops_per_s is None:
        return f"peak of matrix products: unknown ({peak.source}); flops_share is null"
    return f"peak of matrix products in {precision}: {peak.flops_per_s / TERA:.3g} TFLOP/s a rank ({peak.source})"


def measured_peak(precision: str, hidden_size: int, intermediate_size: int) -> float:
    """The best rate of [2048, hidden] x [intermediate, hidden]^T on the default device, in operations a second."""
    dtype = tf.as_dtype(precision)
    product = tf.function(
        lambda rows, weight: tf.matmul(rows, weight, transpose_b=True),
        [tf.TensorSpec([None, hidden_size], dtype), tf.TensorSpec([intermediate_size, hidden_size], dtype)],
        jit_compile=False,
        autograph=False,
    )
    weight = tf.cast(tf.random.stateless_normal([intermediate_size, hidden_size], [0, 1]), dtype)
    values = tf.cast(tf.random.stateless_normal([_MEASURED_ROWS, hidden_size], [0, 2]), dtype)

    def seconds(rows: int) -> float:
        began = time.perf_counter()
        product(values[:rows], weight).numpy()
        return time.perf_counter() - began

    rows = 64  # a CPU without instructions for this precision may be a thousand times slower than one with them
    seconds(rows)  # traces
    while rows < _MEASURED_ROWS and 2 * seconds(rows) < _LONGEST_PRODUCT_S:
        rows *= 2
    began = time.perf_counter()
    best = seconds(rows)
    while time.perf_counter() - began < _MEASURE_S:
        best = min(best, seconds(rows))
    return 2.0 * rows * hidden_size * intermediate_size / best


def precision_advice(precision: str, model: Model, peak: Peak) -> str | None:
    """One line that recommends another numerics.precision for this rank's device; None if none is better."""
    details = gpu_details()
    if details is not None:
        return gpu_advice(precision, details.get("compute_capability"))
    if precision == "float32" or peak.flops_per_s is None:
        return None
    others = {"float32", "bfloat16"} - {precision}
    rates = {each: measured_peak(each, model.hidden_size, model.intermediate_size) for each in others}
    return cpu_advice(precision, rates | {precision: peak.flops_per_s})


def gpu_advice(precision: str, capability: tuple[int, int] | None) -> str | None:
    """Advice for a GPU of a compute capability (major, minor)."""
    if capability is None:
        return None
    capability_text = f"numerics.precision = {precision}: a GPU of compute capability {capability[0]}.{capability[1]}"
    if precision == "bfloat16" and capability < (8, 0):
        better = "float16" if capability >= (7, 0) else "float32"
        slow = f"{capability_text} does not accelerate bfloat16; {better} is faster"
        return f"{slow}: begin with --set numerics.precision={better}"
    if precision == "float16" and capability >= (8, 0):
        return (
            f"{capability_text} is as fast in bfloat16, which needs no loss scale and skips no steps: "
            "begin with --set numerics.precision=bfloat16"
        )
    return None


def cpu_advice(precision: str, rates: dict[str, float]) -> str | None:
    """Advice for a CPU that multiplies matrices in float32, bfloat16 and this precision at so many operations a second.

    Instructions alone do not tell: some processors have AVX512_BF16, and are no faster by it.
    """
    better = "bfloat16" if rates["bfloat16"] >= _FASTER * rates["float32"] else "float32"
    if precision == better or rates[precision] >= _FASTER * rates["float32"]:
        return None
    here, there = (f"{rates[each] / TERA:.3g} TFLOP/s in {each}" for each in (precision, better))
    return (
        f"numerics.precision = {precision}: this CPU multiplies matrices at {here}, at {there}, which is faster: "
        f"begin with --set numerics.precision={better}"
    )


def print_start(recipe: Recipe, task: Task, world: World) -> float | None:
    """Print the derived numbers and warnings; returns all ranks' peak FLOP/s of matrix products (None: unknown)."""
    precision = recipe.numerics.precision
    peak = find_peak(precision, recipe.model)
    warnings = [precision_advice(precision, recipe.model, peak), for_one_rank(recipe, world.size)]
    for warning in filter(None, warnings):
        print(f"bert-horovod: warning: {warning}", file=sys.stderr, flush=True)
    for note in recipe.notes:
        print(f"bert-horovod: note: {note}", flush=True)
    policy = compute_policy(recipe)
    kernels = ", Triton kernels" if policy.kernels == "triton" else ""
    print(
        f"world: {world.size} rank(s); XLA {policy.xla}{kernels}\n"
        f"{describe(recipe, world.size, capability(), task.parameters)}\n"
        f"{describe_peak(peak, precision)}"
    )
    return peak.flops_per_s * world.size if peak.flops_per_s else None
