"""What is said of a run: hours and tokens, pauses, costs, and who is no run."""

import itertools
import json
import math
import time
from pathlib import Path

import pytest

from bert_horovod.__main__ import open_values, parse
from bert_horovod.costs.clusters import read_cluster
from bert_horovod.errors import UserError
from bert_horovod.reporting.page import content, find_runs, names_of, page
from bert_horovod.reporting.run_record import MOST_POINTS, points_of_each, read_run, schema
from bert_horovod.runs import reference_curves
from bert_horovod.runs.reference_curves import curve_settings
from bert_horovod.runs.status_files import Sign
from tests.reporting.test_run_status import HOSTILE
from tests.reporting.toy_record import write_run
from tests.toys import toy_recipe

HOURS = (30 + 99 * 0.5) / 3600  # of 100 steps


def test_hours_and_tokens_are_those_of_steps_and_pauses_are_told(tmp_path):
    record = read_run(write_run(tmp_path / "run"))
    curves, points = record["curves"], record["points"]
    assert curves["step"][:3] == [1, 2, 4]
    assert curves["hours"][-1] == pytest.approx(HOURS)
    assert curves["tokens"][-1] == pytest.approx(2000 * 3600 * HOURS)
    assert curves["bytes"][:3] == [1e6, 2e6, 4e6]
    assert points["step"] == [20, 40, 60, 80, 100]
    assert points["hours"][0] == pytest.approx((30 + 19 * 0.5) / 3600)
    assert len(points["held_out_mlm_loss"]) == 5
    assert [(each["step"], round(each["seconds"])) for each in record["pauses"]] == [(32, 3600)]
    assert record["incidents"] == [{"step": 50, "text": "the loss is not a number: <b>rank 1</b>"}]
    last = points["held_out_mlm_loss"][-1]
    assert record["tiles"] == [
        ["step", "100", "of 100"],
        ["training loss", f"{last - 0.1:.3f}", f"{curves['loss'][0]:.2f} at first"],
        ["held-out mlm loss", f"{last:.3f}", ""],
        ["training time", "1 min 19 s", ""],
        ["tokens", "159 k", "2,000 a second"],
        ["sent by a rank", "100 MB", ""],
    ]
    figures = dict(record["figures"])
    assert figures["pauses"] == "1, 1 h 00 min"
    assert "hours left" not in figures
    totals = record["totals"]
    assert (totals["step"], totals["steps"], totals["done"], totals["bytes"]) == (100, 100, True, 100e6)
    assert totals["held_out_mlm_loss"] == last
    assert record["recipe"]["phase.0.steps"] == "100"
    json.dumps(record, allow_nan=False)


def test_what_is_left_and_what_it_costs(tmp_path):
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(
        '[hosts]\ncount = 2\n[device]\nname = "T4"\n[between]\nrate = "10Gb/s"\n'
        '[costs]\ndevice_hour = 3600.0\ncurrency = "EUR"\ndevice_w = 1000.0\n',
        encoding="utf-8",
    )
    prices = read_cluster(cluster).costs
    record = read_run(write_run(tmp_path / "run", steps=50), prices, ranks=2)
    summary = dict(record["figures"])
    done_s, left_s = 30 + 49 * 0.5, 25.0
    assert summary["hours left"] == f"{left_s / 3600:.2f}"
    assert record["tiles"][-1] == ["cost so far", f"{2 * done_s:,.2f} EUR", ""]
    assert record["tiles"][3] == ["training time", "54 s", "25 s left"]
    assert summary["cost so far"] == f"{2 * done_s:,.2f} EUR"
    assert summary["cost at the end"] == f"{2 * (done_s + left_s):,.2f} EUR"
    assert summary["energy at the end"] == f"{2 * (done_s + left_s) / 3600:,.1f} kWh"


@pytest.mark.parametrize(("steps", "expected"), [(10, [1, 10]), (50, [1, 20, 50]), (100, [1, 20, 60, 80])])
def test_a_band_reaches_from_the_first_step_to_the_last_that_it_knows(tmp_path, monkeypatch, steps, expected):
    monkeypatch.setattr(reference_curves, "DIRECTORY", tmp_path)
    band = {"seeds": 2, "window": 40, "means": [7.0, 6.0], "spreads": [0.1, 0.1], "noises": [0.1, 0.1]}
    about = {"name": "toy", "runs": "", "command": "", "settings": curve_settings(toy_recipe(phase={"steps": 100}))}
    (tmp_path / "toy.json").write_text(json.dumps(about | band), encoding="utf-8")
    (drawn,) = read_run(write_run(tmp_path / "run", steps=steps))["bands"]
    assert drawn["step"] == expected
    falls = [a > b for name in ("low", "high") for a, b in itertools.pairwise(drawn[name])]
    assert all(falls)
    assert len(drawn["low"]) == len(drawn["high"]) == len(drawn["hours"]) == len(expected)


def test_a_band_of_one_text_is_drawn_for_runs_on_it_and_named_for_others(tmp_path, monkeypatch):
    monkeypatch.setattr(reference_curves, "DIRECTORY", tmp_path)
    band = {"seeds": 2, "window": 40, "means": [7.0, 6.0], "spreads": [0.1, 0.1], "noises": [0.1, 0.1], "texts": ["ab"]}
    settings = curve_settings(toy_recipe(phase={"steps": 100}))
    about = {"name": "toy", "runs": "2 seeds on Python 3.9", "command": "", "settings": settings}
    (tmp_path / "toy.json").write_text(json.dumps(about | band), encoding="utf-8")
    run = write_run(tmp_path / "run")
    other = read_run(run)
    assert (other["bands"], other["without_band"]) == (
        [],
        "no band of normal losses: that of this recipe is for 2 seeds on Python 3.9",
    )
    (run / "run.json").write_text(json.dumps({"store": "x", "format": 1, "text_key": "ab"}), encoding="utf-8")
    own = read_run(run)
    assert (len(own["bands"]), own["without_band"]) == (1, "")
    start = {"flag": "--init_checkpoint", "checkpoint": "bert", "weights": "cd"}
    (run / "run.json").write_text(json.dumps({"store": "x", "start": start, "text_key": "ab"}), encoding="utf-8")
    started = read_run(run)
    assert (started["bands"], started["without_band"]) == ([], "")


def test_long_curves_are_thinned_to_their_means(tmp_path):
    curves = read_run(write_run(tmp_path / "run", steps=8000))["curves"]
    assert len(curves["step"]) <= MOST_POINTS
    assert curves["bytes_reduced"][7] == 1e6
    assert curves["step"][0] == 2  # of the lines 1, 2 and 4
    losses = [4 + 6 * math.exp(-step / 30) for step in (1, 2, 4)]
    assert curves["loss"][0] == pytest.approx(sum(losses) / 3)


def test_a_run_that_has_not_begun_has_no_curves(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    assert read_run(run)["tiles"] == [["step", "0", "of 100"]]


def test_a_last_loss_that_is_not_finite_and_lines_that_no_run_writes_are_told(tmp_path):
    run = write_run(tmp_path / "run")
    with open(run / "metrics.jsonl", "a", encoding="utf-8", errors="surrogateescape") as file:
        file.write("\n" + "\n".join(HOSTILE) + '\n{"step": 100, "loss": null, "step_s": 0.5, "time": null}\n')
        file.write('{"step": 100, "held_out_mlm_loss": null}\n')
    record = read_run(run)
    tiles = {label: value for label, value, _ in record["tiles"]}
    assert tiles["training loss"] == tiles["held-out mlm loss"] == "not finite"
    assert (
        dict(record["figures"])["unreadable lines"] == f"{len(HOSTILE) + 1} of metrics.jsonl"
    )  # and the one that was cut short
    page(content([record | {"name": "run"}], schema()))


def test_before_the_second_line_nothing_is_said_of_the_time_that_is_left(tmp_path):
    cluster = tmp_path / "cluster.toml"
    cluster.write_text('[hosts]\ncount = 2\n[device]\nname = "T4"\n[between]\nrate = "10Gb/s"\n', encoding="utf-8")
    summary = dict(read_run(write_run(tmp_path / "run", steps=1), read_cluster(cluster).costs, ranks=2)["figures"])
    assert "hours left" not in summary
    assert "device-hours so far" in summary
    assert "device-hours at the end" not in summary


def test_names_tell_runs_apart():
    assert names_of([Path("/a/one"), Path("/a/two")]) == ["one", "two"]
    assert names_of([Path("/a/one/seed-0"), Path("/a/two/seed-0")]) == ["one/seed-0", "two/seed-0"]


def test_runs_below_a_directory_are_found_once_and_not_inside_a_run(tmp_path):
    for name in ("b", "a/seed-1", "a/seed-0"):
        (tmp_path / name).mkdir(parents=True)
        write_run(tmp_path / name)
    write_run(tmp_path / "b" / "copy")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    expected = [tmp_path / name for name in ("a/seed-0", "a/seed-1", "b")]
    assert find_runs([tmp_path]) == expected
    assert find_runs([tmp_path / "b", tmp_path]) == [expected[2], *expected[:2]]
    assert find_runs([tmp_path / "link"]) == [tmp_path / "link" / name for name in ("seed-0", "seed-1")]
    with pytest.raises(UserError, match=r"tensorboard is not a run's directory, and there is none below it"):
        find_runs([tmp_path / "b" / "tensorboard"])


def test_notes_of_any_kind_are_told_as_far_as_they_go(tmp_path):
    run = write_run(tmp_path / "run")
    assert read_run(run)["notes"] == ""
    (run / "notes.txt").write_bytes(b" a try\r\nwith a smaller rate\n")
    assert read_run(run)["notes"] == "a try\nwith a smaller rate"
    (run / "notes.txt").write_text("x" * 5000)
    assert read_run(run)["notes"] == "x" * 2000 + "..."
    (run / "notes.txt").write_bytes(b"\xff\xfe")
    assert read_run(run)["notes"] == ""
    (run / "notes.txt").unlink()
    (run / "notes.txt").symlink_to("/etc/hostname")
    assert read_run(run)["notes"] == ""


def test_curves_of_many_runs_have_fewer_points(tmp_path):
    assert points_of_each(1) == points_of_each(6) == MOST_POINTS
    assert points_of_each(60) == points_of_each(10**6) == 150
    assert len(read_run(write_run(tmp_path / "run", steps=2000), most_points=150)["curves"]["loss"]) <= 150


def test_an_accuracy_stands_below_its_loss_and_a_score_alone(tmp_path):
    run = write_run(tmp_path / "run")
    newest = {"step": 100, "held_out_nsp_loss": 0.5, "held_out_nsp_accuracy": 0.75, "probe_sst2_accuracy": 0.8}
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(newest) + "\n")
    tiles = read_run(run)["tiles"]
    assert ["held-out nsp loss", "0.500", "75.0% right"] in tiles
    assert ["probe sst2 accuracy", "80.0%", ""] in tiles
    assert len(tiles) == 8


def test_a_loss_that_is_a_sum_is_shown_as_its_held_out_ones(tmp_path):
    run = write_run(tmp_path / "run", steps=1)
    line = {"step": 1, "loss": 3.5, "mlm_loss": 3.0, "nsp_loss": 0.5, "step_s": 1.0, "new": None}
    held_out = {"step": 1, "held_out_mlm_loss": 3.2, "held_out_nsp_loss": 0.6}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(held_out) + "\n", encoding="utf-8")
    record = read_run(run)
    assert ["training mlm loss", "3.000", "3.00 at first"] in record["tiles"]
    assert record["points"]["held_out_loss"] == [pytest.approx(3.8)]
    assert record["totals"]["mlm_loss"] == 3.0
    assert record["loss_parts"] == ["mlm_loss", "nsp_loss"]
    assert "held_out_loss" not in record["totals"]


@pytest.mark.parametrize(
    ("ended", "last_step", "about", "left"),
    [
        ("", 100, "of 100; training", "25 s left"),
        ("", 60, "of 100; training", "5 s left"),
        ("finished", 50, "of 100; ended at 50 as asked", ""),
        ("stopped", 100, "of 100; stopped", ""),
    ],
)
def test_a_run_that_has_ended_says_so_and_no_time_that_is_left(tmp_path, ended, last_step, about, left):
    run = write_run(tmp_path / "run", steps=50)
    now = time.time()
    Sign(50, last_step, "training", now, now, now, 1, ended=ended).write(run)
    record = read_run(run)
    assert record["tiles"][0] == ["step", "50", about]
    assert record["tiles"][3] == ["training time", "54 s", left]
    assert ("hours left" in dict(record["figures"])) == bool(left)


def test_the_schema_has_units():
    assert schema()["step_s"] == {"unit": "seconds a step"}
    assert schema()["input_wait_s"]["part_of"] == "step_s"


def test_the_command_writes_one_file(tmp_path, capsys):
    run, output = write_run(tmp_path / "run"), tmp_path / "page.html"
    arguments = parse(["bert-horovod", "report", str(run), "--output", str(output)])
    open_values(arguments)
    arguments.run(arguments)
    assert capsys.readouterr().out.startswith(f"{output}: ")
    assert "http" not in output.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")


def test_the_command_compares_all_runs_below_a_directory_and_names_those_it_cannot_read(tmp_path, capsys):
    for name in ("a", "b", "c"):
        write_run(tmp_path / name)
    (tmp_path / "c" / "recipe.toml").write_text("no recipe")
    output = tmp_path / "page.html"
    arguments = parse(["bert-horovod", "report", str(tmp_path), "--output", str(output)])
    open_values(arguments)
    arguments.run(arguments)
    said = capsys.readouterr()
    assert said.out.startswith(f"{output}: 2 runs, ")
    assert said.err.startswith("bert-horovod: warning: left out: c: ")
    assert "left_out" in output.read_text(encoding="utf-8")
    for named in ([str(tmp_path / "c")], [str(tmp_path / "a"), str(tmp_path / "c")]):
        arguments = parse(["bert-horovod", "report", *named])
        open_values(arguments)
        with pytest.raises(UserError, match=r"recipe\.toml"):
            arguments.run(arguments)
