"""GPUs' peak rates of matrix products and their memories, from data sheets."""

import re
from typing import NamedTuple, TypeVar

TERA = 1e12
_Entry = TypeVar("_Entry")


class Peaks(NamedTuple):
    """A GPU's dense peaks in 10^12 operations a second; None: the GPU does not accelerate or only emulates it."""

    float32: float
    tensor_float_32: float | None  # float32 variables, products rounded to 10 bits on tensor cores
    float16: float  # summed in float32, as TensorFlow does it
    bfloat16: float | None


# From NVIDIA's data sheets of each product (GeForce: the white papers of Turing, GA102 and Ada, reference clocks),
# at boost clock, without sparsity: if a sheet gives only the sparse rate, half of it. The first match counts.
GPU_PEAKS = {
    r"\bV100S\b": Peaks(16.4, None, 130, None),
    r"\bV100.*PCIE": Peaks(14, None, 112, None),
    r"\bV100\b": Peaks(15.7, None, 125, None),
    r"\bT4\b": Peaks(8.1, None, 65, None),
    r"\bRTX 2080 Ti\b": Peaks(13.4, None, 53.8, None),
    r"\bA100\b": Peaks(19.5, 156, 312, 312),
    r"\bA10\b": Peaks(31.2, 62.5, 125, 125),
    r"\bA30\b": Peaks(10.3, 82, 165, 165),
    r"\bA40\b": Peaks(37.4, 74.8, 149.7, 149.7),
    r"\bRTX 3090\b(?! Ti)": Peaks(35.6, 35.6, 71, 71),
    r"\bRTX 4090\b(?! D| Laptop)": Peaks(82.6, 82.6, 165.2, 165.2),
    r"\bL4\b": Peaks(30.3, 60, 121, 121),
    r"\bL40S\b": Peaks(91.6, 183, 362, 362),
    r"\bH100 PCIe\b": Peaks(51, 378, 756, 756),
    r"\bH100 NVL\b|\bH200 NVL\b": Peaks(60, 418, 835, 835),
    r"\bH100\b.*HBM3\b|\bH100 SXM|\bH200\b": Peaks(67, 494, 989, 989),
    r"\bB200\b": Peaks(75, 1125, 2250, 2250),
}


class Memory(NamedTuple):
    """A GPU's memory."""

    gib: float
    gb_per_s: float  # 10^9 bytes a second


# From NVIDIA's data sheets. The first match counts: a name without a size means the smallest GPU of its kind.
GPU_MEMORIES = {
    r"\bT4\b": Memory(16, 320),
    r"\bV100\b.*\b32GB\b": Memory(32, 900),
    r"\bV100\b": Memory(16, 900),
    r"\bA100\b.*\b80GB\b": Memory(80, 2039),
    r"\bA100\b": Memory(40, 1555),
    r"\bA10\b": Memory(24, 600),
    r"\bL4\b": Memory(24, 300),
    r"\bRTX 3090\b(?! Ti)": Memory(24, 936),
    r"\bRTX 4090\b(?! D| Laptop)": Memory(24, 1008),
    r"\bH100\b.*HBM3\b|\bH100 SXM": Memory(80, 3350),
    r"\bH200\b": Memory(141, 4800),
}

_HOPPER_OR_LATER = re.compile(r"\b(G?H\d{2,3}|G?B\d{2,3})\b", re.IGNORECASE)
# Names of a MIG slice or a virtual GPU: the data sheet of the whole GPU is not valid for them.
_PART_OF_A_GPU = re.compile(r"\bMIG\b|\bGRID\b|-\d+[ABCQ]\b")


def gpu_peak(device_name: str, precision: str, tensor_float_32: bool) -> float | None:
    """The peak of a GPU in operations a second; None if unknown or not accelerated. float32 is TF32 if enabled."""
    peaks = _first(GPU_PEAKS, device_name)
    if peaks is None:
        return None
    if precision == "float32" and tensor_float_32 and peaks.tensor_float_32:
        return peaks.tensor_float_32 * TERA
    rate = getattr(peaks, precision)
    return rate * TERA if rate else None


def gpu_memory(device_name: str) -> Memory | None:
    """The memory of a GPU of this name; None if unknown."""
    return _first(GPU_MEMORIES, device_name)


def compute_capability(device_name: str) -> tuple[int, int] | None:
    """The compute capability of a GPU of this name, Hopper and later ones as 9.0, minor numbers as 0; None: unknown."""
    if _HOPPER_OR_LATER.search(device_name):
        return 9, 0
    peaks = _first(GPU_PEAKS, device_name)
    return peaks and (8 if peaks.bfloat16 else 7, 0)


def known_gpus() -> list[str]:
    """Names that `gpu_peak` knows, at least one for each entry of GPU_PEAKS."""
    alternatives = [alternative for pattern in GPU_PEAKS for alternative in re.sub(r"\(.*?\)", "", pattern).split("|")]
    return [alternative.replace(r"\b", "").replace(".*", " ") for alternative in alternatives]


def _first(table: dict[str, _Entry], device_name: str) -> _Entry | None:
    """The entry of the first pattern found in the name; None for a part of a GPU, for which no data sheet is valid."""
    if _PART_OF_A_GPU.search(device_name):
        return None
    return next((figures for pattern, figures in table.items() if re.search(pattern, device_name, re.IGNORECASE)), None)
