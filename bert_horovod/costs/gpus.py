"""GPUs' peak rates of matrix products and their memories, from data sheets: of a known GPU all figures are known.

Memory of a GPU that TensorFlow's allocator may take: the data sheet's size, less what others hold.

    allocatable = size * VISIBLE (* 15/16 with ECC in the memory) - context - reserve

- Visible: CUDA reports a little less than the data sheet has; GDDR memory with error correction, which is on in the
  data centre's cards as delivered, keeps 1/16 for it. A T4 of 16 GB shows 14.75 GiB.
- Context: CUDA's context of the process with the libraries' handles, when TensorFlow starts. More kernels are loaded
  when used (CUDA_MODULE_LOADING=LAZY, CUDA's default since 12.2) and go to the reserve.
- Reserve: what TensorFlow leaves to others: MinSystemMemory in its gpu_device.cc, by compute capability. There
  - cuBLAS has its own workspace, 4 MiB or on Hopper 32 MiB for each handle and stream (cuBLAS, cublasSetWorkspace);
  - NCCL has buffers: for each channel and each peer that it receives from NCCL_BUFFSIZE = 4 MiB, beside 0.5 and 4.7 MiB
    for its protocols LL and LL128 (NCCL's headers). With a ring and two trees these are four peers: 74 MiB with 2
    channels (PCIe, Ethernet), 880 MiB with 24 (NVLink). With HOROVOD_HIERARCHICAL_ALLREDUCE there are more.

TensorFlow prints the result as it starts: "Created device ... with N MB memory". tests/costs/test_gpus.py has
such lines.
"""

import re
from typing import NamedTuple

TERA = 1e12
# NVIDIA's published rows/s of BERT-large in mixed precision (DeepLearningExamples, TensorFlow2/LanguageModeling/BERT)
# times costs/derived.py's FLOPs a row: 39 % (length 128) and 32 % (512) of a V100's peak, 36 % and 31 % of an A100's.
# These include the update, kernels between products and everything else in a step.
PRODUCT_SHARE = 0.35


class Peaks(NamedTuple):
    """A GPU's dense peaks in 10^12 operations a second; None: the GPU does not accelerate or only emulates it."""

    float32: float
    tensor_float_32: float | None  # float32 variables, products rounded to 10 bits on tensor cores
    float16: float  # summed in float32, as TensorFlow does it
    bfloat16: float | None


class Memory(NamedTuple):
    """A GPU's memory."""

    gib: float
    gb_per_s: float  # 10^9 bytes a second


class Gpu(NamedTuple):
    """A data sheet."""

    name: str  # of the product
    pattern: str  # found in names that users and drivers give to it
    peaks: Peaks
    memory: Memory


_A100, _H100, _H100_NVL = Peaks(19.5, 156, 312, 312), Peaks(67, 494, 989, 989), Peaks(60, 418, 835, 835)
# From NVIDIA's data sheets of each product (B200: of DGX B200, an eighth; GeForce and RTX: the white papers of Turing,
# GA102, Ada and RTX Blackwell, reference clocks), at boost clock, without sparsity: if a sheet gives only the sparse
# rate, half of it. The first match counts; a name without a size or a kind means the product that is most usual.
GPUS = (
    Gpu("V100S PCIe 32GB", r"\bV100S\b", Peaks(16.4, None, 130, None), Memory(32, 1134)),
    Gpu("V100 PCIe 32GB", r"\bV100.*PCIE.*\b32GB\b", Peaks(14, None, 112, None), Memory(32, 900)),
    Gpu("V100 PCIe 16GB", r"\bV100.*PCIE", Peaks(14, None, 112, None), Memory(16, 900)),
    Gpu("V100 SXM2 32GB", r"\bV100\b.*\b32GB\b", Peaks(15.7, None, 125, None), Memory(32, 900)),
    Gpu("V100 SXM2 16GB", r"\bV100\b", Peaks(15.7, None, 125, None), Memory(16, 900)),
    Gpu("T4", r"\bT4\b", Peaks(8.1, None, 65, None), Memory(16, 320)),
    Gpu("RTX 2080 Ti", r"\bRTX 2080 Ti\b", Peaks(13.4, None, 53.8, None), Memory(11, 616)),
    Gpu("A100 PCIe 80GB", r"\bA100\b(?=.*\b80GB\b).*PCIE", _A100, Memory(80, 1935)),
    Gpu("A100 SXM4 80GB", r"\bA100\b.*\b80GB\b", _A100, Memory(80, 2039)),
    Gpu("A100 40GB", r"\bA100\b", _A100, Memory(40, 1555)),
    Gpu("A10", r"\bA10\b", Peaks(31.2, 62.5, 125, 125), Memory(24, 600)),
    Gpu("A30", r"\bA30\b", Peaks(10.3, 82, 165, 165), Memory(24, 933)),
    Gpu("A40", r"\bA40\b", Peaks(37.4, 74.8, 149.7, 149.7), Memory(48, 696)),
    Gpu("RTX A6000", r"\bA6000\b", Peaks(38.7, 77.4, 154.8, 154.8), Memory(48, 768)),
    Gpu("RTX 3090", r"\bRTX 3090\b(?! Ti)", Peaks(35.6, 35.6, 71, 71), Memory(24, 936)),
    Gpu("RTX 4090", r"\bRTX 4090\b(?! D| Laptop)", Peaks(82.6, 82.6, 165.2, 165.2), Memory(24, 1008)),
    Gpu("RTX 5090", r"\bRTX 5090\b(?! D| Laptop)", Peaks(104.8, 104.8, 209.5, 209.5), Memory(32, 1792)),
    Gpu("RTX 6000 Ada", r"\bRTX 6000 Ada\b", Peaks(91.1, 182.1, 364.2, 364.2), Memory(48, 960)),
    Gpu("L4", r"\bL4\b", Peaks(30.3, 60, 121, 121), Memory(24, 300)),
    Gpu("L40", r"\bL40\b", Peaks(90.5, 90.5, 181, 181), Memory(48, 864)),
    Gpu("L40S", r"\bL40S\b", Peaks(91.6, 183, 362, 362), Memory(48, 864)),
    Gpu("H100 PCIe", r"\bH100 PCIe\b", Peaks(51, 378, 756, 756), Memory(80, 2000)),
    Gpu("H100 NVL", r"\bH100 NVL\b", _H100_NVL, Memory(94, 3900)),
    Gpu("H100 SXM", r"\bH100\b.*HBM3\b|\bH100 SXM|^(NVIDIA )?H100( 80GB)?$", _H100, Memory(80, 3350)),
    Gpu("H200 NVL", r"\bH200 NVL\b", _H100_NVL, Memory(141, 4800)),
    Gpu("H200 SXM", r"\bH200\b", _H100, Memory(141, 4800)),
    Gpu("B200", r"\bB200\b", Peaks(75, 1125, 2250, 2250), Memory(180, 8000)),
)

_HOPPER_OR_LATER = re.compile(r"\b(G?H\d{2,3}|G?B\d{2,3}|RTX 50\d0)\b", re.IGNORECASE)
# Names of a MIG slice or a virtual GPU: the data sheet of the whole GPU is not valid for them.
_PART_OF_A_GPU = re.compile(r"\bMIG\b|\bGRID\b|-\d+[ABCQ]\b")


def data_sheet(device_name: str) -> Gpu | None:
    """The data sheet of a GPU of this name; None if unknown, or a part of a GPU, for which no data sheet is valid."""
    if _PART_OF_A_GPU.search(device_name):
        return None
    return next((gpu for gpu in GPUS if re.search(gpu.pattern, device_name, re.IGNORECASE)), None)


def gpu_peak(device_name: str, precision: str, tensor_float_32: bool) -> float | None:
    """The peak of a GPU in operations a second; None if unknown or not accelerated. float32 is TF32 if enabled."""
    gpu = data_sheet(device_name)
    if gpu is None:
        return None
    if precision == "float32" and tensor_float_32 and gpu.peaks.tensor_float_32:
        return gpu.peaks.tensor_float_32 * TERA
    rate = getattr(gpu.peaks, precision)
    return rate * TERA if rate else None


def compute_capability(device_name: str) -> tuple[int, int] | None:
    """The compute capability of a GPU of this name, Hopper and later ones as 9.0, minor numbers as 0; None: unknown."""
    if _HOPPER_OR_LATER.search(device_name):
        return 9, 0
    gpu = data_sheet(device_name)
    return gpu and (8 if gpu.peaks.bfloat16 else 7, 0)


MIB = 1 << 20
VISIBLE = 0.984
ECC_SHARE = 1 / 16
_GDDR_WITH_ECC = re.compile(r"\b(T4|A10|A40|L4|L40S?)\b", re.IGNORECASE)
_CONTEXT = {7: 350 * MIB, 8: 700 * MIB, 9: 700 * MIB}  # by major compute capability
_RESERVE = {7: 1050 * MIB, 8: 1536 * MIB, 9: 1800 * MIB}


def allocatable_bytes(size_bytes: float, name: str) -> float:
    """Bytes of a GPU's memory, by its data sheet, that TensorFlow's allocator may take; fewest of an unknown GPU."""
    visible = size_bytes * VISIBLE * (1 - ECC_SHARE if _GDDR_WITH_ECC.search(name) else 1)
    major, _ = compute_capability(name) or (9, 0)
    return max(0.0, visible - _CONTEXT[major] - _RESERVE[major])
