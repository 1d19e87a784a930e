"""Tests of what only a GPU can prove: pytest -m gpu. Elsewhere they are skipped.

GPU_TESTS_ON=CPU pytest -m gpu runs their code on the CPU, so that it is known to run.
"""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("TF_DETERMINISTIC_OPS", "1")  # exact resume is promised with it: docs/gpu.md
DEVICE = os.environ.get("GPU_TESTS_ON", "GPU")
GPUS_OF_RANKS = {} if DEVICE == "GPU" else {"CUDA_VISIBLE_DEVICES": ""}  # of processes that a test starts


@pytest.fixture(autouse=True)
def device() -> Iterator[str]:
    """The device that is tested, without TF32, which would round products to 10 bits; skips where it is absent."""
    import tensorflow as tf

    if DEVICE == "GPU" and not tf.config.list_physical_devices("GPU"):
        pytest.skip("needs an NVIDIA GPU that TensorFlow sees")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yield f"/{DEVICE}:0"
    tf.config.experimental.enable_tensor_float_32_execution(True)
