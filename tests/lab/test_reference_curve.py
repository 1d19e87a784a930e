"""The band that lab/reference_curve.py writes."""

import json

import numpy as np
import pytest

from bert_horovod.errors import RunError
from bert_horovod.runs.reference_curves import Reference
from bert_horovod.runs.status_files import Sign
from tests.lab.scripts import load_script


@pytest.fixture(scope="module")
def script():
    return load_script("reference_curve")


def test_spread_and_noise_are_found_and_another_seed_is_inside(script):
    random = np.random.default_rng(0)
    trend = np.linspace(9, 4, 400).reshape(40, 10)
    seeds = trend + 0.05 * random.standard_normal((4, 40, 1)) + 0.2 * random.standard_normal((4, 40, 10))
    band = script.band(seeds[:3])
    assert band["noises"] == pytest.approx([0.2] * 40, rel=0.2)  # about the trend, not about the mean
    assert np.mean(np.square(band["spreads"])) == pytest.approx(0.05**2 + 0.2**2 / 10, rel=0.3)
    numbers = {name: tuple(values) for name, values in band.items()}
    reference = Reference("toy", "", "", {}, seeds=3, window=10, **numbers)
    assert [reference.judge(10 * (i + 1), list(seeds[3, i])) for i in range(40)] == [None] * 40
    higher = seeds[3] + 0.8
    assert all(reference.judge(10 * (i + 1), list(higher[i])) for i in range(40))


def test_losses_are_read_by_window(script, tmp_path):
    lines = [{"step": step, "loss": float(step)} for step in (1, *range(2, 45, 2))] + [{"step": 4, "incident": "x"}]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert script.read_losses(tmp_path, 20).tolist() == [[*range(2, 21, 2)], [*range(22, 41, 2)]]
    with pytest.raises(RunError, match="no loss of each 1 steps"):
        script.read_losses(tmp_path, 10)


def test_a_stopped_run_is_no_curve(script, tmp_path):
    lines = [{"step": step, "loss": float(step)} for step in range(2, 41, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    Sign(40, 40, "saving", 0.0, 0.0, 0.0, 1).write(tmp_path)
    assert len(script.read_losses(tmp_path, 20)) == 2
    Sign(40, 60, "saving", 0.0, 0.0, 0.0, 1).write(tmp_path)
    with pytest.raises(RunError, match="stopped at step 40 of 60; the same command goes on"):
        script.read_losses(tmp_path, 20)
