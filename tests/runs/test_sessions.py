"""What a run has taken, over all its starts."""

import dataclasses
import json
import re
import time

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.costs.prices import Prices
from bert_horovod.recipe_files.loading import recipe_to_toml
from bert_horovod.runs.sessions import begin_session, spent
from bert_horovod.runs.status_files import SESSIONS, STATUS, Sign
from tests.toy_runs import train
from tests.toys import toy_recipe

FIRST = 1.7e9  # seconds since the epoch
SECOND = FIRST + 7200


@pytest.fixture
def run(tmp_path):
    """An hour on three GPUs, an hour without a machine, half an hour on another GPU."""
    sign = Sign(50, 100, "saving", FIRST, FIRST, FIRST + 3600, 3)
    begin_session(tmp_path, FIRST, [["node1", "A100"], ["node1", "A100"], ["node2", "A100"]])
    sign.write(tmp_path)
    begin_session(tmp_path, SECOND, [["node3", "H100"]], sign)
    dataclasses.replace(sign, started=SECOND, time=SECOND + 1800).write(tmp_path)
    first_steps = [(1, 600.0, 0.0, FIRST + 700), (50, 20.0, 2.0, FIRST + 3000)]
    later_steps = [(51, 300.0, 0.0, SECOND + 300), (100, 20.0, 0.0, SECOND + 1700)]
    lines = [
        {"step": step, "loss": 3.0, "step_s": step_s, "saving_s": saving_s, "time": at}
        for step, step_s, saving_s, at in first_steps + later_steps
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "recipe.toml").write_text(recipe_to_toml(toy_recipe()))
    return tmp_path


def test_steps_that_count_are_compared_with_the_time_since_the_first_start(run):
    taken = spent(run)
    assert (taken.starts, taken.since_s) == (2, 9000.0)
    assert taken.effective_s == 50 * 18.0 + 50 * 20.0  # without compilation and saving
    assert taken.effective == pytest.approx(1900 / 9000)
    assert taken.device_hours == {"node1: A100": 2.0, "node2: A100": 1.0, "node3: H100": 0.5}
    assert taken.bill(Prices(device_hour=2.0)).price == pytest.approx(7.0)
    assert spent(run, now=SECOND + 3600).since_s == 10800.0


def test_a_start_whose_sign_is_lost_lasts_to_its_last_line_and_earlier_runs_tell_nothing(run):
    (run / STATUS).unlink()
    assert spent(run).since_s == 7200 + 1700
    (run / SESSIONS).write_text('[{"started": "now"}]')
    assert spent(run) is None
    (run / SESSIONS).unlink()
    assert spent(run) is None


def test_a_clock_that_is_behind_ends_no_start(run, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: SECOND - 3600)
    begin_session(run, SECOND - 3600, [["node3", "H100"]])
    assert spent(run).starts == 3
    assert spent(run, now=SECOND - 4000).device_hours["node3: H100"] == 0.0


def said(capsys, *words):
    assert dispatch(parse(["bert-horovod", *map(str, words)])) == 0
    return capsys.readouterr().out


def test_status_and_report_show_it_with_a_price(run, capsys, tmp_path):
    text = said(capsys, "status", run, "--price", "2")
    assert "effective training time: 21.1% of 2.50 h since the first start\nstarts: 2\n" in text
    assert "device-hours so far: 3.50 (node1: A100 2.00; node2: A100 1.00; node3: H100 0.50)\ncost so far: 7.00" in text
    assert "cost" not in said(capsys, "status", run)
    told = json.loads(said(capsys, "status", run, "--json", "--price", "2"))["spent"]
    assert (told["price"], told["starts"], told["effective"]) == (7.0, 2, pytest.approx(1900 / 9000))
    page = tmp_path.parent / f"{tmp_path.name}.html"
    said(capsys, "report", run, "--price", "2", "--output", page)
    for words in ("21.1% of 2.50 h", "node3: H100 0.50", '"cost so far", "7.00'):
        assert words in page.read_text()
    assert dispatch(parse(["bert-horovod", "status", str(run), "--price", "-1"])) == 2


@pytest.mark.full
def test_a_run_and_its_resume_are_two_starts_and_the_summary_tells(store, tmp_path, capsys):
    begun = time.time()
    train(store, tmp_path, max_steps=2, execution={"checkpoint_steps": 1, "log_steps": 1})
    told = capsys.readouterr().out
    assert re.search(r"effective training time [\d.]+% of .* h since the first start; starts 1;", told)
    train(store, tmp_path, max_steps=4, execution={"checkpoint_steps": 1, "log_steps": 1})
    assert "starts 2; device-hours so far" in capsys.readouterr().out
    taken = spent(tmp_path)
    assert taken.starts == 2
    assert 0 < taken.effective_s < taken.since_s <= time.time() - begun
    assert [place.partition(": ")[2] for place in taken.device_hours] == ["CPU"]
