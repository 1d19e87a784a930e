"""GPUs by their names."""

import pytest

from bert_horovod.costs.gpus import GPU_MEMORIES, Memory, compute_capability, gpu_memory, gpu_peak, known_gpus


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("V100", Memory(16, 900)),
        ("Tesla V100-SXM2-32GB", Memory(32, 900)),
        ("a100", Memory(40, 1555)),
        ("NVIDIA A100-SXM4-80GB", Memory(80, 2039)),
        ("NVIDIA H100 80GB HBM3", Memory(80, 3350)),
        ("NVIDIA A10", Memory(24, 600)),
        ("NVIDIA B200", None),
        ("NVIDIA A10G", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
    ],
)
def test_a_gpu_has_its_makers_memory(name, memory):
    assert gpu_memory(name) == memory


def test_every_known_name_is_known_and_those_with_a_memory_are_among_them():
    for name in known_gpus():
        assert gpu_peak(name, "float16", tensor_float_32=True) == gpu_peak(name.lower(), "float16", True) > 0
    assert len({gpu_memory(name) for name in known_gpus()} - {None}) >= len(GPU_MEMORIES) - 2  # 32 and 80 GB variants


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
