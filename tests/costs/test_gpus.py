"""GPUs by their names.

What TensorFlow may allocate, against what it printed on idle GPUs.
"""

import pytest

from bert_horovod.costs.gpus import GPUS, Memory, allocatable_bytes, compute_capability, data_sheet, gpu_peak


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("V100", Memory(16, 900)),
        ("H100", Memory(80, 3350)),
        ("NVIDIA H100 80GB HBM3", Memory(80, 3350)),
        ("NVIDIA H100 NVL", Memory(94, 3900)),
        ("NVIDIA A100 80GB PCIe", Memory(80, 1935)),
        ("NVIDIA A100-PCIE-40GB", Memory(40, 1555)),
        ("Tesla V100S-PCIE-32GB", Memory(32, 1134)),
        ("NVIDIA RTX 6000 Ada Generation", Memory(48, 960)),
        ("NVIDIA RTX A6000", Memory(48, 768)),
        ("NVIDIA GeForce RTX 5090", Memory(32, 1792)),
        ("NVIDIA L40S", Memory(48, 864)),
        ("Tesla V100-SXM2-32GB", Memory(32, 900)),
        ("a100", Memory(40, 1555)),
        ("NVIDIA A100-SXM4-80GB", Memory(80, 2039)),
        ("NVIDIA A10", Memory(24, 600)),
        ("NVIDIA B200", Memory(180, 8000)),
        ("Quadro RTX 6000", None),
        ("NVIDIA A10G", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
    ],
)
def test_a_gpu_has_its_makers_memory(name, memory):
    gpu = data_sheet(name)
    assert (gpu and gpu.memory) == memory


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_product_is_found_by_its_name_and_has_all_figures(gpu):
    assert data_sheet(gpu.name) == data_sheet(gpu.name.lower()) == gpu
    assert gpu_peak(gpu.name, "float16", tensor_float_32=True) > 0
    assert gpu.memory.gib > 8
    assert 2e-3 < gpu.memory.gb_per_s / 1e3 / gpu.peaks.float16 < 1.4e-2  # bytes an operation


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("Tesla V100-SXM2-32GB", (7, 0)),
        ("Tesla T4", (7, 0)),
        ("NVIDIA A100-SXM4-80GB", (8, 0)),
        ("NVIDIA L4", (8, 0)),
        ("NVIDIA H200", (9, 0)),
        ("NVIDIA GH200 480GB", (9, 0)),
        ("NVIDIA B200", (9, 0)),
        ("Quadro K2000", None),
    ],
)
def test_a_gpus_name_tells_its_compute_capability(name, capability):
    assert compute_capability(name) == capability


# N of "Created device ... with N MB memory", from logs of TensorFlow that were published: the least and the most.
PRINTED = {
    "Tesla T4": (13627, 13942),
    "Tesla V100-SXM2-16GB": (14518, 14784),
    "Tesla V100-SXM2-32GB": (30574, 31134),
    "NVIDIA A100-SXM4-40GB": (38068, 38482),
    "NVIDIA A100-SXM4-80GB": (78945, 79197),
    "NVIDIA L4": (20549, 20967),
    "NVIDIA GeForce RTX 3090": (22289, 22289),
    "NVIDIA H100 80GB HBM3": (78763, 78763),
}


@pytest.mark.parametrize("name", PRINTED)
def test_it_is_what_tensorflow_printed_and_hardly_less(name):
    mib = allocatable_bytes(data_sheet(name).memory.gib * 2**30, name) / 2**20
    least, most = PRINTED[name]
    assert 0.98 * least < mib < most


def test_of_an_unknown_gpu_the_most_is_taken_off():
    size = 16 * 2**30
    assert allocatable_bytes(size, "of 50 TFLOP/s") < allocatable_bytes(size, "V100 16GB")
    assert allocatable_bytes(1e9, "of 50 TFLOP/s") == 0
