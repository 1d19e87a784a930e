"""run/setup.sh with NCCL, for real, on a machine without a CUDA toolkit: about 10 minutes, 3 GB of packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
TOY_RUN = """
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
assert hvd.nccl_built()
print("sum", int(hvd.allreduce(tf.constant(hvd.rank() + 1), op=hvd.Sum)))
"""


@pytest.mark.nccl
@pytest.mark.timeout(3600)
def test_horovod_with_nccl_is_built_without_a_toolkit(tmp_path):
    root = tmp_path / "project"
    shutil.copytree(PROJECT, root, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__"))
    directories = os.environ["PATH"].split(os.pathsep)
    without_nvcc = [directory for directory in directories if not (Path(directory) / "nvcc").exists()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")} | {
        "PATH": os.pathsep.join(without_nvcc),
        "CUDA_HOME": str(tmp_path / "no-toolkit"),
        "GPU": "yes",
        "PYTHON": sys.executable,
        "PYTHONPATH": "",
    }

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    assert "NCCL (CUDA 13.0 from wheels)" in run("run/setup.sh")
    binaries = root / ".venv" / "bin"
    assert "[X] NCCL" in run(binaries / "horovodrun", "--check-build")
    assert not (root / ".venv" / "cuda-wheels").exists()
    library = next((root / ".venv").glob("lib/python*/site-packages/horovod/tensorflow/mpi_lib*.so"))
    undefined = run("nm", "-D", "--undefined-only", library)
    assert " ncclAllReduce\n" in undefined  # TensorFlow's own NCCL
    assert " cudaMalloc\n" not in undefined  # CUDA 13's runtime is inside
    assert " __cudaRegisterFatBinary\n" not in undefined
    facts = "from bert_horovod.cluster.doctor.facts import horovod_cuda; print(horovod_cuda())"
    assert run(binaries / "python", "-c", facts).split()[-1] == "13"
    printed = run(binaries / "horovodrun", "--gloo", "-np", "2", binaries / "python", "-c", TOY_RUN)
    assert printed.count("sum 3") == 2
    assert "Horovod is in place" in run("run/setup.sh")
    shutil.rmtree(root / ".venv")  # pytest would keep its 5 GB
