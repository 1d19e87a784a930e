"""Tests of what only a GPU can prove: pytest -m gpu. Elsewhere they are skipped.

GPU_TESTS_ON=CPU pytest -m gpu runs their code on the CPU, so that it is known to run.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment

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


def run_program(*words: object, **variables: str) -> None:
    """`bert-horovod WORDS`, with this host's GPUs and these variables of the environment."""
    environment = clean_environment()
    del environment["CUDA_VISIBLE_DEVICES"]
    visible = {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "bert_horovod", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment | visible | GPUS_OF_RANKS | variables,
        cwd=PROJECT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
