"""What one GPU can prove beside lab/gpu.py: exact resume, overflow in float16, modes that agree, memory."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from bert_horovod.costs.derived import derive
from bert_horovod.optimizers import loss_scale
from bert_horovod.recipe.sections import Recipe
from lab.gpu_correctness import BANDS, compare, out_of_bands, toy_recipe, train
from lab.gpu_plan import step_job
from tests.gpu.conftest import DEVICE, GPUS_OF_RANKS, run_program
from tests.toy_runs import assert_same_files, pretrain_arguments

pytestmark = pytest.mark.gpu
STEPS = 6


def with_settings(recipe: Recipe, section: str, **values: object) -> Recipe:
    return dataclasses.replace(recipe, **{section: dataclasses.replace(getattr(recipe, section), **values)})


@pytest.mark.full
@pytest.mark.parametrize("micro_batch", [32, 8])  # of 32 rows a step
@pytest.mark.parametrize("xla", ["off", "layers"])
def test_a_resumed_run_equals_one_that_was_not_stopped_bit_for_bit(store, tmp_path, xla, micro_batch):
    sections = {"execution": {"xla": xla, "checkpoint_steps": 4, "micro_batch": micro_batch}, "phase": {"steps": 8}}
    whole, stopped, resumed = tmp_path / "whole", tmp_path / "stopped", tmp_path / "resumed"
    run_program("pretrain", *pretrain_arguments(tmp_path, store, whole, **sections))
    run_program("pretrain", *pretrain_arguments(tmp_path, store, stopped, **sections), "--max_steps", 4)
    shutil.copytree(stopped, resumed)
    run_program("pretrain", *pretrain_arguments(tmp_path, store, resumed, **sections))
    assert_same_files(resumed, whole)


def test_a_loss_scale_that_overflows_falls_until_steps_count_as_on_the_cpu(device, monkeypatch):
    monkeypatch.setattr(loss_scale, "INITIAL", 2.0**26)
    recipe = toy_recipe("float16", "off", 1)
    trained, reference = (train(recipe, place, 2 * STEPS) for place in (device, "/CPU:0"))
    assert 0 < reference.skipped_steps < 2 * STEPS
    assert trained.skipped_steps == reference.skipped_steps
    applied = slice(reference.skipped_steps + 1, None)
    assert np.allclose(trained.losses[applied], reference.losses[applied], rtol=BANDS["float16"].loss, atol=0)
    assert trained.losses[-1] < trained.losses[0]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("xla", ["elementwise", "layers"])
def test_xla_modes_agree(device, precision, xla):
    plain, compiled = (train(toy_recipe(precision, mode, 2), device, STEPS) for mode in ("off", xla))
    assert out_of_bands(compare(compiled, plain), BANDS[precision]) == []


@pytest.mark.parametrize("xla", ["off", "layers"])
@pytest.mark.parametrize("recompute", ["attention", "layer"])
def test_recomputation_changes_nothing_but_rounding(device, recompute, xla):
    recipe = toy_recipe("float32", xla, 2)
    again = with_settings(recipe, "execution", recompute=recompute)
    assert out_of_bands(compare(train(again, device, STEPS), train(recipe, device, STEPS)), BANDS["float32"]) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("size", "length", "rows", "recompute"),
    [("base", 128, 64, "none"), ("base", 512, 16, "none"), ("base", 512, 16, "layer"), ("base", 128, 4, "none")]
    if DEVICE == "GPU"
    else [("small", 128, 64, "none")],
)
def test_the_memory_estimate_is_within_a_tenth(size, length, rows, recompute):
    precision = "float16" if DEVICE == "GPU" else "bfloat16"
    settings = [f"execution.recompute={recompute}", "execution.kernels=xla"]
    capability = (9, 0) if DEVICE == "GPU" else None
    facts = {"precision": precision, "without_kernels": "not here", "compute_capability": capability}
    job = step_job(size, length, rows, settings, facts, steps=2)
    command = [sys.executable, *job.command]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | GPUS_OF_RANKS, check=True)
    measured = json.loads(done.stdout.splitlines()[-1])["memory_bytes"]
    estimated = derive(job.recipe, job.recipe.phase[0], 1, capability=capability).memory_bytes
    assert measured == pytest.approx(estimated, rel=0.1)
