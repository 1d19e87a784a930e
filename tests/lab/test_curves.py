"""Curves: under which key they are kept, what their steps take, what a line tells, the band of several seeds."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from bert_horovod.errors import RunError
from bert_horovod.runs.reference_curves import Reference
from bert_horovod.runs.status_files import Sign
from lab import curves
from lab.curve_recipes import CURVES, Curve, kept, key_of
from tests.lab.scripts import load_script


def curve(name: str, held_out: list[tuple[int, float]], **more) -> dict:
    phase = {"steps": held_out[-1][0], "flops": 0.0, "wire_bytes": more.pop("wire_bytes", 0.0)}
    return {"name": name, "settings": [], "held_out": held_out, "phases": [phase], **more}


PHASES = [{"steps": 10, "flops": 1e12, "wire_bytes": 4e9}, {"steps": 20, "flops": 3e12, "wire_bytes": 1e9}]


def test_a_curve_whose_ranks_compute_what_one_does_needs_one_rank_on_a_gpu():
    enough = [name for name, curve in CURVES.items() if curves.one_rank_is_enough(curve.recipe)]
    assert {"float32", "ALBERT-mini, seed 2", "MSLT, 8 layers", "continued 400, LAMB"} <= set(enough)
    assert not {"float16", "int8", "continued, 1-bit Adam", "continued 400, bucket clipping"} & set(enough)


def test_what_steps_take_is_summed_over_phases():
    grown = curve("stacking, 8 layers", [(10, 5.0), (30, 4.0)], phases=PHASES)
    assert curves.total(10, grown, "flops") == 10e12
    assert curves.total(15, grown, "flops") == 25e12
    assert curves.total(30, grown, "wire_bytes") == 60e9
    times = {"stacking, 8 layers, phase 0": 2.0, "stacking, 8 layers, phase 1": 5.0}
    assert curves.seconds_of(12, grown, times) == 30.0
    assert curves.seconds_of(12, grown | {"name": "stacking, 8 layers, seed 2"}, times) == 30.0
    assert curves.seconds_of(12, grown, {}) is None


def test_steps_take_as_long_whatever_begins_them_and_a_dense_stage_takes_what_float16_takes():
    signs = curve("continued 400, 1-bit Adam, seed 2", [(10, 5.0)]) | {"settings": ["exchange.dense=0.3"]}
    assert curves.seconds_of(10, signs, {"float16": 4.0, "1-bit Adam": 1.0}) == pytest.approx(3 * 4.0 + 7 * 1.0)
    assert curves.seconds_of(10, signs, {"1-bit Adam": 1.0}) is None
    longer = curve("continued, 1-bit Adam, longer", [(12, 5.0)]) | {"settings": ["exchange.dense=0.25"]}
    assert curves.seconds_of(12, longer, {"float16": 4.0, "1-bit Adam": 1.0}) == pytest.approx(3 * 4.0 + 9 * 1.0)
    low_rank = curve("128 wide, PowerSGD, 4, seed 2", [(10, 5.0)]) | {"settings": ["exchange.dense=0.1"]}
    times = {"128 wide, float16": 4.0, "128 wide, PowerSGD, 4": 1.0, "float16": 9.0}
    assert curves.seconds_of(10, low_rank, times) == pytest.approx(1 * 4.0 + 9 * 1.0)
    local = curve("continued 400, local AdamW, 8, rate 2e-3", [(10, 5.0)])
    assert curves.seconds_of(10, local, {"local AdamW, 8": 2.0}) == 20.0


def test_a_line_tells_at_which_cost_a_curve_is_at_the_loss_of_its_baseline():
    whole = curve("8 layers", [(10, 5.0), (20, 4.0)], phases=[{"steps": 20, "flops": 5e12, "wire_bytes": 4e9}])
    grown = curve("stacking, 8 layers", [(10, 5.0), (30, 3.0)], phases=PHASES)
    first, second = curves.lines([whole, grown], {})
    assert (first["steps"], first["tera_flops"], first["behind"]) == (20, 100, 0)
    assert (second["steps"], second["tera_flops"], second["wire_gb"]) == (20, 40, 50)
    assert second["behind"] == -1
    old = curve("int8", [(10, 5.0)], wire_bytes=1e9)
    (line,) = curves.lines([old], {})
    assert line["behind"] is None
    assert line["wire_gb"] == 10


def test_seeds_become_one_line_once_all_are_there_and_losses_are_compared_with_what_was_judged_alike():
    seeds, losses = ("", ", seed 2", ", seed 3"), {"8 layers": (4.0, 5.0, 6.0), "stacking, 8 layers": (3.9, 4.8, 5.7)}
    trained = [
        curve(name + seed, [(10, 9.0)], wire_bytes=1e9, judged={"loss": loss, "accuracy": 0.4})
        for name, of_seeds in losses.items()
        for seed, loss in zip(seeds, of_seeds, strict=True)
    ]
    first, second = curves.over_seeds(curves.lines(trained, {}))
    assert (first["configuration"], first["loss"], first["spread"]) == ("8 layers", 5.0, 1.0)
    assert second["behind"] == pytest.approx(-0.2)
    assert len(curves.over_seeds(curves.lines(trained[:5], {}))) == 3  # of the second curve a seed is missing
    del trained[0]["judged"]  # an older curve: its baseline's loss is of other masks
    rows = curves.lines(trained, {})
    assert [row["behind"] for row in rows if row["configuration"] == "stacking, 8 layers"] == [0.0]


def test_a_curve_that_fails_leaves_the_others_alone(monkeypatch, tmp_path):
    tried = []

    def train(curve: Curve, *_: object) -> None:
        tried.append(curve.name)
        raise RunError(f"{curve.name}: it diverged")

    monkeypatch.setattr(curves, "train", train)
    monkeypatch.setattr(curves, "open_stores", lambda _: {"": None})
    monkeypatch.setattr(curves, "dataset_of", lambda *_: SimpleNamespace(hash="of toys"))
    words = ["--data_dir", "store", "--work", str(tmp_path), "--curve", "float16", "--curve", "int8"]
    monkeypatch.setattr("sys.argv", ["curves.py", *words])
    assert curves.main() == RunError.exit_code
    assert tried == ["float16", "int8"]


# Of the stores on which the kept curves were trained: the books in format 2 and in format 3, and quickstart's text.
STORES = (
    "84ebd8d113bcf5287662da0848caaf56bedd485542f4277a4321fe7659161921",
    "a4e807c48523d0bf31c6bbf77af3490011b5c94262b11be697946acc6cdd580b",
    "34465f2376b447bf0673f9f774fad104a144fe96783d9dcbc9c453c0377ee947",
)


def test_curves_that_were_trained_are_found_under_the_keys_of_their_recipes_of_today():
    curves = kept()
    trained = {curve["name"]: CURVES[curve["name"]] for curve in curves.values()}
    fresh = {name: curve for name, curve in trained.items() if not curve.begin and "16 MB" not in name}
    keys = {name: {key_of(curve.recipe, store, ranks=curve.ranks) for store in STORES} for name, curve in fresh.items()}
    assert {name for name, of_name in keys.items() if of_name & curves.keys()} == set(fresh)
    for curve in curves.values():
        assert f'"name": "{curve["name"]}"' in CURVES[curve["name"]].results.read_text(encoding="utf-8")


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
