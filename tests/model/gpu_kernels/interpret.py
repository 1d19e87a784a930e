"""Run kernels of source/ in Triton's interpreter, on arrays from a file.

    python interpret.py CASES.npz RESULTS.npz

CASES.npz has "cases", JSON: for each case its name, kernel, grid, constants, operands and results (name to shape); the
operands' arrays are "case/operand". Results, float32 all, go to RESULTS.npz as "case/result".
"""

import json
import sys
from typing import Any

import numpy as np
import triton
import triton.language as tl

from bert_horovod.model.gpu_kernels.source import (
    attention,
    between_products,
    dropout_bits,
    residual_norm,
    rotary_attention,
)


class _Type:
    """A torch.dtype, as far as Triton looks at it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


class Array:
    """A NumPy array in the clothes of a torch tensor, which the interpreter takes."""

    device = "cpu"

    def __init__(self, array: np.ndarray) -> None:
        self.array = np.ascontiguousarray(array)
        self.dtype = _Type(str(self.array.dtype))

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def cpu(self) -> "Array":
        return self

    def to(self, _: Any) -> "Array":
        return self

    @property
    def data(self) -> "Array":
        return self

    def copy_(self, _: Any) -> None:
        """The interpreter copies results back to a device; here they are in place."""


@triton.jit
def mask_of_tile(key, site, kept, first_block, blocks_per_row, threshold, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """int32 [2 ROWS, COLUMNS]: a tile's mask by kept_tile, then by kept_row."""
    r, c = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    site, key = tl.load(site), tl.load(key)
    block = tl.load(first_block)
    tile = dropout_bits.kept_tile(block, r, 0, blocks_per_row, site, key, threshold, ROWS, COLUMNS)
    tl.store(kept + r[:, None] * COLUMNS + c[None, :], tile.to(tl.int32))
    for i in range(ROWS):
        row = dropout_bits.kept_row(block + i * blocks_per_row, site, key, threshold, COLUMNS)
        tl.store(kept + (ROWS + i) * COLUMNS + c, row.to(tl.int32))


def main(cases_path: str, results_path: str) -> None:
    arrays, results = np.load(cases_path), {}
    for case in json.loads(str(arrays["cases"])):
        kernel = next(
            getattr(module, case["kernel"])
            for module in (attention, between_products, rotary_attention, residual_norm, sys.modules[__name__])
            if hasattr(module, case["kernel"])
        )
        operands = {name: Array(arrays[f"{case['name']}/{name}"]) for name in case["operands"]}
        made = {name: Array(np.zeros(shape, case["dtype"])) for name, shape in case["results"].items()}
        kernel[tuple(case["grid"])](**operands, **made, **case["constants"])
        results |= {f"{case['name']}/{name}": array.array for name, array in made.items()}
    np.savez(results_path, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
