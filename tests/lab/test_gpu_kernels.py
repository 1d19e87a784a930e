"""lab/gpu_kernels.py: its first sections on a CPU, with the kernels in Triton's interpreter, whole and broken."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model import encoder
from bert_horovod.model.gpu_kernels import bert_layer, catalogue
from bert_horovod.model.gpu_kernels.programs import kernel_programs
from lab import gpu_kernels
from lab.gpu_kernels import BROKEN, Case, breaking, compare, out_of_bound, relative_error, verdict
from tests.horovod_runs import PATIENCE_S, PROJECT
from tests.lab.scripts import run_here
from tests.model.gpu_kernels.triton_environment import triton_python

SOURCE = Path("bert_horovod/model/gpu_kernels")
TINY = Case(rows=1, length=64, heads=2, head_size=32, precision="float16", layers=1)


def test_errors_are_relative_and_infinite_beside_nothing():
    expected = np.array([3.0, 4.0], np.float32)
    assert relative_error(expected, expected) == 0
    assert relative_error(np.array([3.0, 4.5]), expected) == pytest.approx(0.1)
    assert relative_error(np.zeros(2), np.zeros(2)) == np.inf
    assert relative_error(expected, np.array([np.nan, 1.0])) == np.inf


def test_an_error_is_bounded_by_twice_xlas_own_and_by_a_tenth():
    within = {"a": (0.0399, 0.02), "b": (0.0999, 0.06), "c": (0.0, 0.01)}
    beyond = {"d": (0.0401, 0.02), "e": (0.11, 0.06), "f": (np.inf, 0.02), "g": (np.nan, 0.02), "h": (0.01, np.nan)}
    found = out_of_bound(within | beyond)
    assert [each[0] for each in found] == ["f", "g", "e", "d", "h"]
    assert found[3] == "d: error 0.0401, bound 0.0400, XLA's own 0.0200"


def test_every_text_of_the_broken_kernel_is_another_and_others_are_not():
    texts = catalogue.all_texts()
    before = [text.read("f16") for text in texts]
    with breaking(*BROKEN):
        changed = {text.kernel for text, was in zip(texts, before, strict=True) if text.read("f16") != was}
    assert changed == {BROKEN[0]}
    assert [text.read("f16") for text in texts] == before


@pytest.fixture
def interpreter(tmp_path, monkeypatch):
    """Lets a layer's programs run here: each kernel as NumPy, in Triton's interpreter.

    Where a kernel's text was changed, the interpreter runs a copy of the source with the same change.
    """
    python = triton_python()
    copy = tmp_path / "broken"
    for module in ("source", "__init__.py", "catalogue.py"):
        target = copy / SOURCE / module
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if module == "source" else shutil.copyfile)(PROJECT / SOURCE / module, target)
    for package in (copy / "bert_horovod", copy / "bert_horovod" / "model"):
        (package / "__init__.py").touch()
    file = copy / SOURCE / "source" / "between_products.py"
    _, right, changed = BROKEN
    text, constant = file.read_text(), right[:8]  # the source has a Python float, the text its float32
    assert constant in text
    file.write_text(text.replace(constant, changed[:8]))
    read, calls = catalogue.Text.read, []

    def call(text, dtype, operands, results, grid):
        names = list(catalogue.OPERANDS[text.kernel])[: len(operands)]
        arrays = [np.asarray(tf.cast(each, tf.float32) if each.dtype == dtype else each) for each in operands]
        arrays = [each.view(np.int64) if each.dtype == np.uint64 else each for each in arrays]
        arrays = [each.reshape(1) if each.ndim == 0 else each for each in arrays]
        case = {
            "name": "k",
            "kernel": text.kernel,
            "grid": grid,
            "constants": dict(text.constants),
            "operands": names,
            "dtype": "float32",
            "results": dict(zip(catalogue.RESULTS[text.kernel], [tuple(s) for s, _ in results], strict=True)),
        }
        named = {f"k/{name}": array for name, array in zip(names, arrays, strict=True)}
        np.savez(tmp_path / "cases.npz", cases=json.dumps([case]), **named)
        is_broken = text.read("bf16") != read(text, "bf16")
        script = PROJECT / "tests" / "model" / "gpu_kernels" / "interpret.py"
        command = [python, script, tmp_path / "cases.npz", tmp_path / "results.npz"]
        variables = os.environ | {"PYTHONPATH": str(copy if is_broken else PROJECT), "TRITON_INTERPRET": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        calls.append((text.kernel, is_broken))
        made = np.load(tmp_path / "results.npz")
        return [tf.cast(made[f"k/{name}"], kind) for name, (_, kind) in zip(case["results"], results, strict=True)]

    monkeypatch.setattr(bert_layer, "call", call)
    monkeypatch.setattr(encoder, "capability", lambda: (9, 0))
    tf.config.run_functions_eagerly(True)
    kernel_programs.cache_clear()
    yield calls
    tf.config.run_functions_eagerly(False)
    kernel_programs.cache_clear()


@pytest.mark.slow
def test_a_right_kernel_is_within_its_bound_and_a_broken_one_is_named(interpreter, monkeypatch, capsys):
    by_name = compare(TINY)
    kernels = {"attention_forward", "attention_backward", "norm_forward", "norm_backward", "gelu_backward"}
    assert {kernel for kernel, _ in interpreter} == kernels
    assert verdict(TINY, by_name) == []
    monkeypatch.setattr(gpu_kernels, "CASES", [TINY])
    found, problems = gpu_kernels.broken(1, 1.0)
    assert problems == []
    assert "intermediate.dense" in found["verdict"]
    broken = "gelu_backward with 0.600000023 in place of 0.398942292"
    assert f"of a broken kernel ({broken}) it would have said: WRONG" in capsys.readouterr().out


def test_a_break_that_nobody_notices_is_a_problem(monkeypatch):
    monkeypatch.setattr(gpu_kernels, "compare", lambda case: {"output": (0.0, 0.0)})
    _, problems = gpu_kernels.broken(1, 1.0)
    assert "was not noticed: the bounds are too wide" in problems[0]


def test_without_a_gpu_it_says_so_and_fails():
    done = run_here("gpu_kernels")
    assert done.returncode == 1
    assert "the kernels cannot be used here: this rank has no GPU" in done.stderr
