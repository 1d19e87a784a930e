"""metrics.jsonl, cut back on resume; lines for people."""

import json

import pytest

from bert_horovod.runtime.devices import peak_memory_bytes
from bert_horovod.training.hooks.metrics import Interval, Telemetry, duration

METRICS = {"loss": 7.25, "mlm_accuracy": 0.125, "rows_per_s": 33.0}


def line(step: int, **values) -> str:
    return json.dumps({"step": step, "loss": 1.5, **values}) + "\n"


def reopened(tmp_path, text: str, step: int) -> str:
    """What is left of metrics.jsonl when a run resumes from `step`."""
    path = tmp_path / "metrics.jsonl"
    path.write_text(text, encoding="utf-8")
    Telemetry(tmp_path, step, 100, tensorboard=False).close()
    return path.read_text(encoding="utf-8")


def test_a_new_run_has_an_empty_metrics_file(tmp_path):
    Telemetry(tmp_path, 0, 100, tensorboard=False).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_metrics_are_one_object_a_line_and_there_at_once(tmp_path):
    telemetry = Telemetry(tmp_path, 0, 100, tensorboard=False)
    telemetry.record({"step": 1, **METRICS})
    telemetry.record({"step": 2, **METRICS})
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(text) for text in lines] == [{"step": 1, **METRICS}, {"step": 2, **METRICS}]
    telemetry.close()


def test_resuming_cuts_back_what_was_logged_after_the_checkpoint(tmp_path):
    kept = line(10) + line(20) + line(20, held_out_loss=2.5)
    assert reopened(tmp_path, kept + line(30) + line(40), 20) == kept
    assert reopened(tmp_path, kept, 25) == kept


def test_starting_again_from_the_beginning_cuts_everything(tmp_path):
    assert reopened(tmp_path, line(10) + line(20), 0) == ""


@pytest.mark.parametrize(
    "half", ['{"step": 3', '{"step": 30, "lo', "{", '"step"', "3", "null", "\0\0", '{"loss": 1}', "[" * 99999]
)
def test_a_half_written_last_line_is_dropped(tmp_path, half):
    assert reopened(tmp_path, line(10) + half, 100) == line(10)


def test_a_last_line_without_its_end_is_ended(tmp_path):
    assert reopened(tmp_path, line(10) + line(20).rstrip("\n"), 100) == line(10) + line(20)


def test_what_a_resumed_run_logs_follows_what_was_kept(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(line(10) + line(20) + line(30), encoding="utf-8")
    telemetry = Telemetry(tmp_path, 20, 100, tensorboard=False)
    telemetry.record({"step": 30, "loss": 1.5})
    telemetry.close()
    assert (tmp_path / "metrics.jsonl").read_text(encoding="utf-8") == line(10) + line(20) + line(30)


def test_tensorboard_gets_the_numbers_too(tmp_path):
    telemetry = Telemetry(tmp_path, 0, 100, tensorboard=True)
    telemetry.record({"step": 1, **METRICS})
    telemetry.close()
    events = b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").iterdir())
    assert all(name.encode() in events for name in METRICS)


def test_what_is_unknown_is_null_in_the_metrics_and_absent_from_tensorboard(tmp_path):
    telemetry = Telemetry(tmp_path, 0, 100, tensorboard=True)
    telemetry.record({"step": 1, **METRICS, "flops_share": None, "gradient_norm": float("nan")})
    telemetry.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text(encoding="utf-8"))
    assert (line["flops_share"], line["gradient_norm"], line["loss"]) == (None, None, 7.25)
    assert b"flops_share" not in b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").iterdir())


def test_the_share_of_the_peak_is_that_of_all_ranks_and_null_where_the_peak_is_unknown(monkeypatch):
    clock = iter([100.0, 104.0, 104.0])
    monkeypatch.setattr("bert_horovod.training.hooks.metrics.time.monotonic", lambda: next(clock))
    interval = Interval()
    for _ in range(2):
        interval.add(rows=32, input_wait_s=0.5, reduce_wait_s=0.25, tokens=100.0)
    rates = interval.rates(800.0, flops_per_row=1e6, peak_flops_per_s=64e6)
    assert rates == {
        "rows_per_s": 16.0,
        "tokens_per_s": 200.0,
        "flops_per_s": 16e6,
        "flops_share": 0.25,
        "step_s": 2.0,
        "input_wait_s": 0.5,
        "reduce_wait_s": 0.25,
    }
    assert interval.rates(800.0, flops_per_row=1e6, peak_flops_per_s=None)["flops_share"] is None


def test_without_a_terminal_a_plain_line_shows_step_loss_and_the_time_left(tmp_path, capsys, monkeypatch):
    clock = iter([100.0, 130.0])
    monkeypatch.setattr("bert_horovod.training.hooks.metrics.time.monotonic", lambda: next(clock))
    telemetry = Telemetry(tmp_path, 40, 100, tensorboard=False)
    telemetry.advance(49, None)
    telemetry.advance(50, METRICS)  # 10 of the 60 steps that were left took 30 s
    telemetry.close()
    assert capsys.readouterr() == ("step 50/100  loss 7.2500  mlm_accuracy 0.125  33.0 rows/s  2 min 30 s left\n", "")


def test_on_a_terminal_a_bar_shows_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    telemetry = Telemetry(tmp_path, 40, 100, tensorboard=False)
    telemetry.advance(50, METRICS)
    telemetry.say("a line above it")
    telemetry.close()
    shown = capsys.readouterr()
    assert "50/100" in shown.err
    assert "loss 7.2500" in shown.err
    assert "a line above it\n" in shown.out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (41.6, "42 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (7800, "2 h 10 min"),
        (86399, "23 h 59 min"),
        (86400, "1 d 00 h"),
        (273600, "3 d 04 h"),
    ],
)
def test_durations_read_as_people_say_them(seconds, text):
    assert duration(seconds) == text


def test_peak_memory_is_in_bytes():
    assert 50 << 20 < peak_memory_bytes() < 1 << 40
