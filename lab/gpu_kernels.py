#!/usr/bin/env python3
"""Whether the Triton kernels of execution.kernels are right on this GPU.

    python lab/gpu_kernels.py --output gpu_kernels.json

One process, two parts:

1. errors: two layers, forward and backward, with kernels in bfloat16 and float16, beside XLA's own path in float32 from
   the same inputs with the same dropout masks: relative L2 errors of the output and of every gradient. Rows are packed.
   Each is bounded by twice XLA's own error in the same precision, which is rounding alone. The float32 reference
   itself is within 1e-5 of float64.
2. broken: what part 1 would have said of a broken kernel. One constant of a kernel's text is changed in a copy; if
   that is not noticed, part 1 proves nothing.

It exits with 1 if an error is above its bound or if anything failed, and says what; --output is written after each
part, and what it holds is the last line. It needs a GPU of compute capability 8.0 or later, and neither Triton nor
Horovod. Compiling takes most of the time, so XLA does not search for the fastest products (autotune level 0), unless
XLA_FLAGS names a level. lab/gpu.py begins with this.
"""
# ruff: noqa: E402 (TensorFlow is imported quietly)

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.runtime.quiet import import_tensorflow

import_tensorflow()

import numpy as np
import tensorflow as tf

from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from bert_horovod.model.encoder import encode
from bert_horovod.model.forward import ComputePolicy, DropoutState, Forward
from bert_horovod.model.gpu_kernels import catalogue
from bert_horovod.model.gpu_kernels.choice import capability, why_not
from bert_horovod.model.gpu_kernels.programs import kernel_programs
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import encoder_shapes
from bert_horovod.model.weights import cast_weights
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime.devices import gpu_details, use_devices

# Relative L2 errors: times XLA's own, and at most. XLA's own of two layers is at most 0.048 in bfloat16 and 0.006 in
# float16 on a CPU. A wrong mask, bias or block is wrong by more than 0.1.
OF_XLAS_OWN, CEILING = 2, 0.1
PRECISIONS = ("bfloat16", "float16")
BUDGET_S = 170.0  # no part or shape begins later
THREADS = 8  # that compile at the same time
BROKEN = ("gelu_backward", "0.398942292", "0.600000023")  # a kernel, and a constant of its text: 1 / sqrt(2 pi)


class Case(NamedTuple):
    """A shape in which layers are compared."""

    rows: int
    length: int
    heads: int
    head_size: int
    precision: str
    layers: int = 2
    window: int = 0  # of a ModernBERT, which has full attention and this window in turns; 0: a BERT

    def __str__(self) -> str:
        family = f"ModernBERT, window {self.window}, " if self.window else ""
        return f"{family}{self.rows} x {self.length}, {self.heads} heads of {self.head_size}, {self.precision}"


CASES = [
    Case(rows, length, heads, head_size, precision)
    for length, rows in {128: 8, 512: 4}.items()
    for head_size, heads in {64: 12, 32: 8}.items()
    for precision in PRECISIONS
] + [
    Case(rows, length, heads, head_size, precision, layers=3, window=128)
    for rows, length, heads, head_size in ((2, 1024, 12, 64), (4, 512, 4, 128))
    for precision in PRECISIONS
]


def main() -> int:
    """Run the parts; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="JSON file, written after each part")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts")
    arguments = parser.parse_args()
    reason = why_not(capability(), Model(), (128, 512), "bfloat16", "layers")
    if reason:
        print(f"gpu_kernels: the kernels cannot be used here: {reason}", file=sys.stderr)
        return 1
    if "autotune_level" not in os.environ.get("XLA_FLAGS", ""):  # XLA reads it when it compiles for the first time
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0"
    use_devices(0, 1, 0)
    tf.config.experimental.enable_tensor_float_32_execution(False)  # else the float32 reference is a rough one
    began, found, problems = time.monotonic(), {"gpu": gpu_details(), "xla_flags": os.environ["XLA_FLAGS"]}, []
    for part in arguments.only:
        try:
            found[part], wrong = PARTS[part](began + BUDGET_S)
        except (tf.errors.OpError, ValueError) as error:
            found[part], wrong = None, [f"failed: {str(error).strip()[:500]}"]
        problems += [f"{part}: {each}" for each in wrong]
        found |= {"problems": problems, "seconds": round(time.monotonic() - began, 1)}
        if arguments.output:
            arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for problem in problems:
        print(f"WRONG: {problem}", flush=True)
    print(f"{len(problems)} problems" if problems else "all errors are within their bounds", f"({found['seconds']} s)")
    print(json.dumps(found))
    return 1 if problems else 0


def errors(deadline: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Part 1, and what is out of bounds."""
    with ThreadPoolExecutor(THREADS) as pool:
        compared = list(pool.map(lambda case: compare(case) if time.monotonic() < deadline else None, CASES))
    results, problems = [], []
    for case, by_name in zip(CASES, compared, strict=True):
        if by_name is None:
            problems.append(f"{case}: not compared, the time was over")
            continue
        largest = max(error for error, _ in by_name.values())
        results.append(case._asdict() | {"largest_error": largest, "errors": by_name})
        print(f"{case}: errors of at most {largest:.5f}", flush=True)
        problems += verdict(case, by_name)
    return results, problems


def verdict(case: Case, by_name: dict[str, tuple[float, float]]) -> list[str]:
    """What is wrong with a case in one line; nothing if all is within the bound."""
    wrong = out_of_bound(by_name)
    return [f"{case}: {len(wrong)} of {len(by_name)} tensors, among them {'; '.join(wrong[:3])}"] if wrong else []


def broken(deadline: float) -> tuple[dict[str, Any], list[str]]:
    """Part 2: the verdict on a broken kernel; that there is none is wrong."""
    if time.monotonic() > deadline:
        return {}, ["not tried, the time was over"]
    kernel, right, changed = BROKEN
    case = next(each for each in CASES if each.precision == "float16")  # whose bounds are the closest
    with breaking(kernel, right, changed):
        said = verdict(case, compare(case))
    what = f"{kernel} with {changed} in place of {right}"
    if not said:
        return {"kernel": what, "verdict": None}, [f"{what} was not noticed: the bounds are too wide"]
    print(f"of a broken kernel ({what}) it would have said: WRONG: errors: {said[0]}", flush=True)
    return {"kernel": what, "verdict": said[0]}, []


@contextlib.contextmanager
def breaking(kernel: str, right: str, changed: str) -> Iterator[None]:
    """Change a constant in all texts of a kernel, in a copy: programs that are made meanwhile compute wrongly."""
    read = catalogue.Text.read

    def read_changed(text: catalogue.Text, dtype: str) -> str:
        written = read(text, dtype)
        return written.replace(right, changed) if text.kernel == kernel else written

    catalogue.Text.read = read_changed
    kernel_programs.cache_clear()
    try:
        yield
    finally:
        catalogue.Text.read = read
        kernel_programs.cache_clear()


def out_of_bound(by_name: dict[str, tuple[float, float]]) -> list[str]:
    """The errors that are above their bounds, or no numbers, the worst first; `by_name`: an error and XLA's own."""
    bounds = {name: np.minimum(OF_XLAS_OWN * own, CEILING) for name, (_, own) in by_name.items()}
    wrong = [(name, *each) for name, each in by_name.items() if not each[0] <= bounds[name]]
    wrong.sort(key=lambda each: -np.nan_to_num(each[1], nan=np.inf, posinf=np.inf))
    return [f"{name}: error {error:.4f}, bound {bounds[name]:.4f}, XLA's own {own:.4f}" for name, error, own in wrong]


def relative_error(computed: np.ndarray, expected: np.ndarray) -> float:
    """The L2 norm of the difference over that of what is expected; infinite if that is 0 or not finite."""
    norm = np.linalg.norm(expected.astype(np.float64))
    if not 0 < norm < np.inf:
        return np.inf
    return float(np.linalg.norm(computed.astype(np.float64) - expected) / norm)


def compare(case: Case) -> dict[str, tuple[float, float]]:
    """Relative errors of two layers' output and gradients, by name: with kernels, and XLA's own in the precision."""
    dtype = tf.as_dtype(case.precision)
    hidden = case.head_size * case.heads
    sizes = {"vocab_size": 100, "num_hidden_layers": case.layers, "hidden_size": hidden}
    sizes |= {"num_attention_heads": case.heads, "intermediate_size": 4 * hidden}
    model = Model(**sizes)
    if case.window:
        model = ModernBertModel(**sizes, local_attention=case.window, global_attn_every_n_layers=2)
    random = np.random.default_rng(0)
    batch, dy = packed_batch(case.rows, case.length, random), random.normal(size=(case.rows, case.length, hidden))
    parameters = {
        name: value + 0.05 * random.normal(size=value.shape)  # so that no bias is 0
        for name, value in initial_values(encoder_shapes(model, pooler=False), 0.05, 0).items()
    }

    def rounded(x: np.ndarray) -> tf.Tensor:
        return tf.cast(tf.cast(tf.constant(x, tf.float32), dtype), tf.float32)

    parameters, dy = {name: rounded(value) for name, value in parameters.items()}, rounded(dy)
    policies = [ComputePolicy(dtype, "layers", kernels="triton"), ComputePolicy(dtype, "layers")]
    narrow = [outputs(model, policy, parameters, batch, dy) for policy in policies]
    exact = outputs(model, ComputePolicy(tf.float32, "layers"), parameters, batch, dy)
    return {name: tuple(relative_error(each[name], exact[name]) for each in narrow) for name in exact}


def packed_batch(rows: int, length: int, random: np.random.Generator) -> dict[str, tf.Tensor]:
    """Rows of one to four sequences and some padding."""
    shape = rows, length
    ids = np.zeros(shape, np.int32)
    for row in ids:
        ends = np.sort(random.choice(np.arange(8, length - 8), random.integers(1, 5), replace=False))
        for number, (begin, end) in enumerate(zip([0, *ends], [*ends, length - 5], strict=True), 1):
            row[begin:end] = number
    batch = {
        "input_ids": random.integers(0, 100, shape),
        "token_type_ids": random.integers(0, 2, shape),
        "position_ids": np.tile(np.arange(length), (shape[0], 1)),
        "sequence_ids": ids,
    }
    return {name: tf.constant(array, tf.int32) for name, array in batch.items()}


def outputs(
    model: Model, policy: ComputePolicy, parameters: dict[str, tf.Tensor], batch: dict[str, tf.Tensor], dy: tf.Tensor
) -> dict[str, np.ndarray]:
    """The encoder's output and the gradients of its cast weights, float32, for an output's gradient `dy`."""
    weights = cast_weights(parameters, policy.dtype)
    dropout = DropoutState(tf.constant([0x123456789ABCDEF0], tf.uint64), tf.constant(40, tf.uint64))
    with tf.GradientTape() as tape:
        tape.watch(weights)
        output = encode(Forward(model, weights, policy, dropout), batch)[-1]
    gradients = tape.gradient(output, weights, tf.cast(dy, policy.dtype))
    named = {"output": output} | gradients
    return {name: tf.cast(tf.convert_to_tensor(each), tf.float32).numpy() for name, each in named.items()}


PARTS = {"errors": errors, "broken": broken}

if __name__ == "__main__":
    sys.exit(main())
