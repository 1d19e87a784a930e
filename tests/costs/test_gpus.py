"""GPUs by their names.

What TensorFlow may allocate, against what it printed on idle GPUs.
"""

import math

import pytest

from bert_horovod.costs.gpus import GPUS, TERA, Memory, allocatable_bytes, compute_capability, data_sheet, gpu_peak


@pytest.mark.parametrize(
    ("name", "peaks", "memory", "capability"),  # float32, float16, bfloat16: TFLOP/s; GiB and GB/s
    [
        ("Tesla V100-SXM2-16GB", (15.7, 125, None), (16, 900), (7, 0)),
        ("Tesla V100-SXM2-32GB", (15.7, 125, None), (32, 900), (7, 0)),
        ("V100", (15.7, 125, None), (16, 900), (7, 0)),
        ("Tesla V100-PCIE-32GB", (14, 112, None), (32, 900), (7, 0)),
        ("Tesla V100S-PCIE-32GB", (16.4, 130, None), (32, 1134), (7, 0)),
        ("NVIDIA A100-SXM4-80GB", (19.5, 312, 312), (80, 2039), (8, 0)),
        ("NVIDIA A100 80GB PCIe", (19.5, 312, 312), (80, 1935), (8, 0)),
        ("a100", (19.5, 312, 312), (40, 1555), (8, 0)),
        ("NVIDIA A10", (31.2, 125, 125), (24, 600), (8, 0)),
        ("NVIDIA L40", (90.5, 181, 181), (48, 864), (8, 0)),
        ("NVIDIA L40S", (91.6, 362, 362), (48, 864), (8, 0)),
        ("NVIDIA RTX 6000 Ada Generation", (91.1, 364.2, 364.2), (48, 960), (8, 0)),
        ("NVIDIA H100 80GB HBM3", (67, 989, 989), (80, 3350), (9, 0)),
        ("NVIDIA H100 NVL", (60, 835, 835), (94, 3900), (9, 0)),
        ("NVIDIA B200", (75, 2250, 2250), (180, 8000), (9, 0)),
    ],
)
def test_a_known_gpu_has_its_makers_figures_and_tells_its_compute_capability(name, peaks, memory, capability):
    found = [gpu_peak(name, precision, tensor_float_32=False) for precision in ("float32", "float16", "bfloat16")]
    assert found == [value and value * TERA for value in peaks]
    assert data_sheet(name).memory == Memory(*memory)
    assert compute_capability(name) == capability


@pytest.mark.parametrize(
    "name",
    [
        *(
            "NVIDIA A10G",
            "NVIDIA GeForce RTX 3090 Ti",
            "NVIDIA GeForce RTX 4090 D",
            "NVIDIA GeForce RTX 4090 Laptop GPU",
        ),
        *("NVIDIA GeForce RTX 5090 D", "NVIDIA H100 64GB HBM2", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "GRID A100-10C"),
        *("NVIDIA A40-12Q", "Quadro RTX 6000", "Some other accelerator"),
    ],
)
def test_what_is_not_in_the_table_or_part_of_a_gpu_is_unknown(name):
    assert gpu_peak(name, "float32", tensor_float_32=True) is None
    assert data_sheet(name) is None


@pytest.mark.parametrize(("name", "capability"), [("NVIDIA GH200 480GB", (9, 0)), ("Quadro K2000", None)])
def test_a_new_gpu_is_known_by_its_letters_alone(name, capability):
    assert compute_capability(name) == capability


def test_float32_is_tf32_only_where_that_is_enabled_and_there():
    assert gpu_peak("NVIDIA A100-SXM4-40GB", "float32", tensor_float_32=True) == 156 * TERA
    assert gpu_peak("NVIDIA A100-SXM4-40GB", "bfloat16", tensor_float_32=True) == 312 * TERA
    assert gpu_peak("Tesla V100-SXM2-16GB", "float32", tensor_float_32=True) == 15.7 * TERA


def test_narrower_is_never_slower_in_the_table():
    for peaks in (gpu.peaks for gpu in GPUS):
        assert peaks.float32 <= (peaks.tensor_float_32 or math.inf)
        assert (peaks.tensor_float_32 or peaks.float32) < peaks.float16
        assert peaks.bfloat16 in (None, peaks.float16)
        assert (peaks.bfloat16 is None) == (peaks.tensor_float_32 is None)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_product_is_found_by_its_name_and_has_all_figures(gpu):
    assert data_sheet(gpu.name) == data_sheet(gpu.name.lower()) == gpu
    assert gpu_peak(gpu.name, "float16", tensor_float_32=True) > 0
    assert gpu.memory.gib > 8
    assert 2e-3 < gpu.memory.gb_per_s / 1e3 / gpu.peaks.float16 < 1.4e-2  # bytes an operation


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
