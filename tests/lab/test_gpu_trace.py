"""lab/gpu_trace.py: what a step asks of a GPU, counted on stand-ins for the CUDA libraries."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab import gpu_trace
from tests.horovod_runs import PATIENCE_S
from tests.lab.scripts import imported_by_help, run_here, run_script

TOOL = Path(__file__).resolve().parents[3] / "shared" / "tools" / "gpu_standin"
TOLD = """[fake] cuMemAlloc 1000
[fake] cuMemcpyDtoHAsync_v2 8: 1 2 3 4
[trace] step
[fake] cuMemcpyDtoDAsync_v2 100: 0 0 0 0
[fake] cublasSetStream_v2[fake] cuMemcpyDtoDAsync_v2 30: 0 0 0 0
[fake] cuMemcpyDtoDAsync_v2 30: 0 0 0 0
[fake] cuMemcpyDtoHAsync_v2 16: 0 2 1 3
[fake] cublasGemmEx
[fake] cublasGemmStridedBatchedEx
[fake] cuStreamSynchronize
[fake] cuEventQuery
[trace] end
[fake] cuMemAlloc 24
[fake] cuMemcpyDtoHAsync_v2 16: 0 2 1 3
"""


def test_what_was_told_between_the_marks_is_a_steps():
    counts = gpu_trace.told(TOLD)
    steps = gpu_trace.STEPS
    assert counts["allocated_bytes"] == 1024
    assert counts["on_device"] == {
        "copies": 3 / steps,
        "bytes": 160 / steps,
        "sizes": {"100": 1 / steps, "30": 2 / steps},
    }
    assert counts["to_host"]["sizes"] == {"16": 1 / steps}
    assert counts["to_device"] == {"copies": 0, "bytes": 0, "sizes": {}}
    assert counts["products"] == 2 / steps
    assert counts["waits"] == 1 / steps


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--standin DIR is needed"),
        (["--standin", "/nowhere"], "/nowhere has no lib/libcuda.so.1"),
        (["--standin", "/nowhere", "--layers", "1"], "--layers 1: expected 2 or more"),
        (["--standin", "/nowhere", "--length", "4"], "--length 4: expected 8 or more"),
        (["--standin", "/nowhere", "--rows", "-3"], "--rows -3: expected 1 or more"),
        (["--standin", "/nowhere", "--micro_batches", "0"], "--micro_batches 0: expected 1 or more"),
        (["--standin", "/nowhere", "--xla", "auto"], "invalid choice: 'auto'"),
    ],
)
def test_a_bad_value_is_refused_before_anything_runs(words, message):
    done = run_here("gpu_trace", *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_help_does_without_tensorflow():
    assert "tensorflow" not in imported_by_help("gpu_trace")


@pytest.fixture(scope="module")
def standin(tmp_path_factory) -> Path:
    """The stand-ins, built here; the variable GPU_STANDIN names built ones."""
    if "GPU_STANDIN" in os.environ:
        return Path(os.environ["GPU_STANDIN"])
    if not (TOOL / "build.sh").exists():
        pytest.skip("needs ../shared/tools/gpu_standin, which is not here")
    for program in ("gcc", "strings"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    directory = tmp_path_factory.mktemp("standin")
    command = ["bash", str(TOOL / "build.sh"), sys.prefix, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("needs the wheels nvidia-cuda-nvcc-cu12 and nvidia-cuda-runtime-cu12 12.5.82")
    assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.standin
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_step_copies_little_and_launches_few_kernels(standin, tmp_path):
    output = tmp_path / "trace.json"
    done = run_script("gpu_trace", "--standin", standin, "--smoke", "--json", output)
    assert done.returncode == 0, done.stderr
    [counts] = json.loads(output.read_text())
    assert counts["callbacks"] == 0
    assert counts["layer_launches"] < 60
    assert counts["to_host"]["copies"] <= 1  # the step's result
    assert counts["on_device"]["copies"] == 0  # a compiled layer returns no argument, and no tensor twice
    assert counts["to_device"]["bytes"] < 10_000
    assert counts["peak_bytes"] > 4 * 4 * 80_000  # 80,000 parameters: more than parameters, slots and gradients
    assert counts["programs"] > 0
