"""What TensorFlow may allocate, against what it printed on idle GPUs."""

import pytest

from bert_horovod.costs.gpus import allocatable_bytes, data_sheet

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
