"""The call of a Triton kernel inside an XLA program."""

from __future__ import annotations

from collections.abc import Sequence

from bert_horovod.model.gpu_kernels.catalogue import Text
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import operations

TARGET = "__gpu$xla.gpu.triton"  # XLA's custom call that compiles Triton's intermediate representation
TYPE_NAMES = {"bfloat16": "bf16", "float16": "f16"}


def call(
    text: Text,
    dtype: tf.DType,
    operands: Sequence[tf.Tensor],
    results: Sequence[tuple[Sequence[int], tf.DType]],
    grid: tuple[int, int, int],
) -> list[tf.Tensor]:
    """Run a kernel; only inside a compiled function, on a GPU.

    Args:
        text: the kernel.
        dtype: of the computation: bfloat16 or float16.
        operands: the kernel's operands (catalogue.OPERANDS) without its results.
        results: shape and dtype of each result.
        grid: numbers of programs.
    """
    written = text.read(TYPE_NAMES[dtype.name])
    # MLIR's string syntax: a backslash and two hexadecimal digits for a special character.
    quoted = written.replace("\\", "\\5C").replace('"', "\\22").replace("\n", "\\0A")
    x, y, z = grid
    config = (
        f'{{name = "{text.kernel}", ir = "{quoted}", num_stages = {text.stages} : i32, num_warps = {text.warps} : i32, '
        f"grid_x = {x} : i32, grid_y = {y} : i32, grid_z = {z} : i32, debug = false}}"
    )
    specs = [tf.TensorSpec(shape, kind) for shape, kind in results]
    return operations().custom_call_v2(TARGET, list(operands), specs, backend_config=config)
