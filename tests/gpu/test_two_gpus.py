"""Two GPUs train as one does: a run by `launch` on two ranks against one rank, on the same rows."""

import numpy as np
import pytest

from bert_horovod.cluster.doctor.facts import horovod_with
from tests.gpu.conftest import DEVICE, run_program
from tests.toy_runs import losses, pretrain_arguments

pytestmark = pytest.mark.gpu
NEEDED = "NCCL" if DEVICE == "GPU" else "Gloo"


@pytest.fixture(scope="module", autouse=True)
def two_devices() -> None:
    import tensorflow as tf

    if DEVICE == "GPU" and len(tf.config.list_physical_devices("GPU")) < 2:
        pytest.skip("needs two NVIDIA GPUs that TensorFlow sees")
    if NEEDED not in horovod_with():
        pytest.skip(f"needs Horovod with {NEEDED}, which run/setup.sh builds")


@pytest.mark.parametrize(("wire", "band"), [("float32", 1e-5), ("float16", 1e-3)])
def test_two_ranks_lose_as_one_does(store, tmp_path, wire, band):
    of_runs = []
    for ranks, micro_batch in ((1, 32), (2, 16)):
        directory = tmp_path / str(ranks)
        directory.mkdir()
        sections = {"execution": {"micro_batch": micro_batch}, "numerics": {"wire": wire}, "phase": {"steps": 10}}
        words = pretrain_arguments(directory, store, directory / "run", **sections)
        run_program(*(["launch", "-np", ranks, "--"] if ranks > 1 else []), "pretrain", *words)
        of_runs.append(losses(directory / "run"))
    assert len(of_runs[0]) == 10
    assert np.allclose(of_runs[1], of_runs[0], rtol=band, atol=0)
