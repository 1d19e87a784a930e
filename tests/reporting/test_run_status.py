"""What a run's directory tells of it, from outside."""

import dataclasses
import json
import os
import re
import time

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.errors import UserError
from bert_horovod.recipe_files.loading import recipe_to_toml
from bert_horovod.reporting.run_status import run_status
from bert_horovod.runs.status_files import Sign, process_identity, read_sign
from tests.toys import toy_recipe


@pytest.fixture
def sign():
    """Of a run of two phases, whose process is this one."""
    now = time.time()
    return Sign(8, 30, "reading rows", now - 4, now - 100, now, 2)


@pytest.fixture
def run(tmp_path, sign):
    """The run's directory: 20 steps of 32 rows, then 10 of a quarter of the tokens, a step 2 s at step 5."""
    recipe = toy_recipe()
    second = dataclasses.replace(recipe.phase[0], sequence_length=16, global_batch=16, steps=10)
    (tmp_path / "recipe.toml").write_text(recipe_to_toml(dataclasses.replace(recipe, phase=(*recipe.phase, second))))
    (tmp_path / "run.json").write_text("{}")
    lines = [{"step": 4, "loss": 9.0, "step_s": 99.0}, {"step": 5, "loss": 3.25, "step_s": 2.0}, {"step": 5, "held": 1}]
    text = "\n".join(map(json.dumps, lines))
    (tmp_path / "metrics.jsonl").write_text(text + '\n{"step": 6, "lo')
    for name in ("step-00000004", "step-00000008", "step-00000009-best"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    sign.write(tmp_path)
    return tmp_path


def said(run, capsys) -> str:
    assert dispatch(parse(["bert-horovod", "status", str(run)])) == 0
    return capsys.readouterr().out


def test_a_run_that_lives_is_described_with_the_time_that_is_left(run, sign, capsys):
    status = run_status(run)
    assert (status.state, status.step, status.loss) == ("running", 8, 3.25)
    assert status.last_checkpoint == str(run / "checkpoints" / "step-00000008")
    state = run / "checkpoints" / "step-00000008" / "training" / "state.json"
    state.parent.mkdir()
    written = {"progress": {}, "position": {}, "recipe": {}, "store": "", "version": "", "time": time.time() - 3600}
    state.write_text(json.dumps(written))  # its files are young, as those of a copy
    assert run_status(run).checkpoint_age_s == pytest.approx(3600, abs=60)
    assert status.left_s == pytest.approx(12 * 2.0 + 10 * 2.0 / 4)
    text = said(run, capsys)
    assert f"running on {sign.host} with 2 ranks, for 1 min 40 s" in text
    assert "step 8 of 30, loss 3.2500, about 29 s left" in text
    assert "doing: reading rows, for 4 s" in text


def test_whom_it_waits_for_is_told(run, sign, capsys):
    dataclasses.replace(sign, waits=["so rank 0 waits for rank 1"]).write(run)
    assert "  so rank 0 waits for rank 1\n" in said(run, capsys)


def test_a_killed_run_is_known_where_it_ran_and_elsewhere_it_is_silent(run, sign, capsys):
    boot, _, since = sign.process.split()
    dataclasses.replace(sign, process=f"{boot} {os.getpid()} {int(since) + 1}").write(run)  # the id was given anew
    text = said(run, capsys)
    assert re.search(r"ended without a word \(killed\?\), at most \d+ s ago; ", text)
    assert f"go on with: bert-horovod resume {run}" in text
    other = dataclasses.replace(sign, process="another-system 7 8")
    other.write(run)
    assert run_status(run).state == "running"
    dataclasses.replace(other, time=time.time() - 300).write(run)
    text = said(run, capsys)
    assert re.search(r"no sign of life for 5 min \d\d s: stopped, dead or cut off", text)  # seconds may have passed


@pytest.mark.parametrize("ended", ["finished", "stopped, as it was asked to", "ended by an error"])
def test_how_a_run_ended_is_told(run, sign, capsys, ended):
    dataclasses.replace(sign, ended=ended).write(run)
    text = said(run, capsys)
    assert f"{run}: {ended}" in text
    assert ("bert-horovod resume" in text) == (ended != "finished")
    assert run_status(run).left_s is None


def test_a_run_that_would_fail_again_is_told_with_its_error_and_without_advice_to_resume(run, sign, capsys):
    error = "step 8: the loss is 1e+09. The same command would diverge again"
    dataclasses.replace(sign, ended="ended by an error", error=error, again=False).write(run)
    text = said(run, capsys)
    assert error in text
    assert "resume" not in text
    dataclasses.replace(sign, ended="ended by an error", error="the disk is full").write(run)
    assert f"; the disk is full; go on with: bert-horovod resume {run}\n" in said(run, capsys)


def test_what_the_files_say_cannot_steer_the_terminal(run, sign, capsys):
    evil = "node\x1b]0;owned\x07\x1b[2J\nforged line\u202e"
    for ended in ("", evil):
        dataclasses.replace(sign, host=evil, doing=evil, waits=[evil], ended=ended, error=evil).write(run)
        text = said(run, capsys)
        assert not any(c in text for c in "\x1b\x07\u202e")
        assert "\nforged" not in text
        assert "node\\x1b]0;owned" in text


def test_a_step_is_not_older_than_what_came_after_the_sign(run, sign):
    old = dataclasses.replace(sign, time=time.time() - 9)
    old.write(run)
    (run / "checkpoints" / "step-00000012").mkdir()
    assert run_status(run).step == 12
    with open(run / "metrics.jsonl", "w", encoding="utf-8") as file:
        file.write(json.dumps({"step": 14, "loss": 3.0, "step_s": 1.0, "time": time.time()}) + "\n")
    assert run_status(run).step == 14
    sign.write(run)
    (run / "checkpoints" / "step-00000012").rename(run / "checkpoints" / "step-00000020")  # damaged, from before
    os.utime(run / "checkpoints" / "step-00000020", (time.time() - 99,) * 2)
    (run / "metrics.jsonl").write_text("")
    assert run_status(run).step == 8


def test_the_first_step_which_compiles_gives_no_estimate(run):
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 9.0, "step_s": 600.0}\n')
    assert run_status(run).left_s is None
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 3, "loss": 9.0, "step_s": 2.0}\n')
    assert run_status(run).left_s == pytest.approx(29)


HOSTILE = (
    "[" * 100_000,
    '{"step": 7, "loss": "low", "step_s": 1.0}',
    '{"step": 7, "loss": 1e999, "step_s": 1.0}',
    '{"step": 7, "loss": 4.0}',
    '{"step": 7, "loss": 4.0, "step_s": -1.0}',
    '{"step": 7, "loss": 4.0, "step_s": 1.0, "x": [1]}',
    '{"step": 7, "loss": 4.0, "step_s": 1' + "0" * 400 + "}",
    '{"step": "7", "loss": 4.0, "step_s": 1.0}',
    '{"step": -7, "loss": 4.0, "step_s": 1.0}',
    '{"step": true, "incident": 3}',
    "null",
    "\udcff",
)


def test_lines_that_no_run_writes_are_skipped_and_counted(run, capsys):
    lines = [json.dumps({"step": 5, "loss": 3.25, "step_s": 2.0}), *HOSTILE, ""]
    (run / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8", errors="surrogateescape")
    status = run_status(run)
    assert (status.loss, status.left_s) == (3.25, pytest.approx(29))
    assert status.unreadable_lines == len(HOSTILE)
    assert f"metrics.jsonl: {len(HOSTILE)} lines of the newest could not be read\n" in said(run, capsys)


def test_a_loss_that_is_not_finite_is_told(run, capsys):
    (run / "metrics.jsonl").write_text('{"step": 8, "loss": null, "step_s": 2.0}\n')
    assert "step 8 of 30, loss not finite" in said(run, capsys)


def test_a_run_without_signs_metrics_or_checkpoints_is_described_as_far_as_it_goes(tmp_path, capsys):
    (tmp_path / "run.json").write_text("{}")
    assert "it has left no sign of life" in said(tmp_path, capsys)
    for damaged in ("", "[]", '{"step": "x"}'):
        (tmp_path / "status.json").write_text(damaged)
        assert read_sign(tmp_path) is None
    with pytest.raises(UserError, match=r"is not a run's directory.*--output_dir"):
        run_status(tmp_path / "absent")


def test_json_holds_the_same(run, capsys):
    assert dispatch(parse(["bert-horovod", "status", str(run), "--json"])) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["sign"]["doing"], status["left_s"]) == (
        "running",
        "reading rows",
        pytest.approx(29),
    )


def test_a_process_is_told_from_another_that_gets_its_id():
    assert process_identity(os.getpid()) == process_identity(os.getpid()) != process_identity(os.getppid())


def test_a_sign_that_cannot_be_written_ends_nothing_and_makes_no_directory(tmp_path, sign):
    sign.write(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
