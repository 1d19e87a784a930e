"""Curves: that they are found again, what their steps take, what a line tells."""

import pytest

from lab import curves
from lab.curve_recipes import CURVES


def curve(name: str, held_out: list[tuple[int, float]], **more) -> dict:
    return {"name": name, "settings": [], "held_out": held_out, **more}


PHASES = [
    {"steps": 10, "flops": 1e12, "wire_bytes": 4e9},
    {"steps": 20, "flops": 3e12, "wire_bytes": 1e9},
]


def test_a_curve_whose_ranks_compute_what_one_does_needs_one_rank_on_a_gpu():
    enough = [name for name, curve in CURVES.items() if curves.one_rank_is_enough(curve.recipe)]
    assert {"float32", "ALBERT-mini, seed 2", "MSLT, 8 layers", "continued 400, LAMB"} <= set(enough)
    assert not {"float16", "int8", "continued, 1-bit Adam", "continued 400, bucket clipping"} & set(enough)


def test_a_continued_curve_without_a_start_is_refused(capsys):
    with pytest.raises(SystemExit):
        curves.parse(["--data_dir", "s", "--work", "w", "--curve", "continued, int8"])
    assert "--curve 'continued, int8': expected --start" in capsys.readouterr().err


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
    assert line["tera_flops"] is None
