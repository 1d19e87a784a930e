"""metrics.jsonl: a line at once, null for what is unknown, cut back on resume."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from bert_horovod.errors import RunError, UserError
from bert_horovod.runs.metrics_lines import Journal
from bert_horovod.runs.trackers import Trackers
from tests.horovod_runs import PATIENCE_S

METRICS = {"loss": 7.25, "mlm_accuracy": 0.125, "rows_per_s": 33.0}


def line(step: int, **values) -> str:
    return json.dumps({"step": step, "loss": 1.5, **values}) + "\n"


def reopened(tmp_path, text: str, step: int) -> str:
    """What is left of metrics.jsonl when a run resumes from `step`."""
    path = tmp_path / "metrics.jsonl"
    path.write_text(text, encoding="utf-8")
    Journal(tmp_path, step, print).close()
    return path.read_text(encoding="utf-8")


def test_metrics_are_one_object_a_line_and_there_at_once(tmp_path):
    journal = Journal(tmp_path, 0, print)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""
    journal.record({"step": 1, **METRICS})
    journal.record({"step": 2, **METRICS})
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(text) for text in lines] == [{"step": 1, **METRICS}, {"step": 2, **METRICS}]
    journal.close()


def test_resuming_cuts_back_what_was_logged_after_the_checkpoint_and_ends_the_last_line(tmp_path):
    kept = line(10) + line(20) + line(20, held_out_loss=2.5)
    assert reopened(tmp_path, kept + line(30) + line(40), 20) == kept
    assert reopened(tmp_path, kept, 25) == reopened(tmp_path, kept.rstrip("\n"), 25) == kept
    assert reopened(tmp_path, kept, 0) == ""


@pytest.mark.parametrize(
    "half", ['{"step": 3', '{"step": 30, "lo', "{", '"step"', "3", "null", "\0\0", '{"loss": 1}', "[" * 99999]
)
def test_a_half_written_line_is_dropped_alone(tmp_path, half):
    assert reopened(tmp_path, line(10) + half, 100) == line(10)
    assert reopened(tmp_path, line(10) + half + "\n" + line(20), 100) == line(10) + line(20)


def test_what_a_resumed_run_logs_follows_what_was_kept(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(line(10) + line(20) + line(30), encoding="utf-8")
    journal = Journal(tmp_path, 20, print)
    journal.record({"step": 30, "loss": 1.5})
    journal.close()
    assert (tmp_path / "metrics.jsonl").read_text(encoding="utf-8") == line(10) + line(20) + line(30)


@pytest.mark.full
def test_tensorboard_serves_the_numbers(tmp_path):
    trackers = Trackers(("tensorboard",), tmp_path, {}, print)
    trackers.log({"step": 1, **METRICS})
    trackers.close(failed=False)
    words = ["-m", "tensorboard.main", "--logdir", str(tmp_path / "tensorboard"), "--port", "0"]
    server = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        address = next(found[1] for line in server.stderr if (found := re.search(r"at (http://localhost:\d+/)", line)))
        deadline, tags = time.monotonic() + PATIENCE_S, {}
        while "." not in tags and time.monotonic() < deadline:  # it reads the files beside serving
            with urllib.request.urlopen(f"{address}data/plugin/scalars/tags", timeout=PATIENCE_S) as page:
                tags = json.load(page)
            time.sleep(0.2)
        assert set(METRICS) <= set(tags["."])
    finally:
        server.terminate()
        server.communicate()


def test_what_is_unknown_is_null_in_the_metrics_and_absent_from_tensorboard(tmp_path):
    trackers = Trackers(("tensorboard",), tmp_path, {}, print)
    journal = Journal(tmp_path, 0, print, trackers.log)
    journal.record({"step": 1, **METRICS, "flops_share": None, "gradient_norm": float("nan")})
    journal.close()
    trackers.close(failed=False)
    line = json.loads((tmp_path / "metrics.jsonl").read_text(encoding="utf-8"))
    assert (line["flops_share"], line["gradient_norm"], line["loss"]) == (None, None, 7.25)
    events = b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").iterdir())
    assert [name.encode() in events for name in ("flops_share", *METRICS)] == [False, True, True, True]


def test_metrics_that_are_missing_on_resume_are_said_to_be_lost(tmp_path):
    messages = []
    Journal(tmp_path, 0, messages.append).close()
    (tmp_path / "metrics.jsonl").unlink()
    assert messages == []
    Journal(tmp_path, 20, messages.append).close()
    assert messages == [f"warning: {tmp_path / 'metrics.jsonl'} is missing: the lines of the steps before 21 are lost"]


def test_lines_that_a_full_disk_did_not_take_are_told_before_a_checkpoint_and_written_later(tmp_path):
    messages = []
    journal = Journal(tmp_path, 0, messages.append)
    journal.flush()
    file = journal._file
    with Path("/dev/full").open("ab", buffering=0) as journal._file:
        for step in (1, 2):
            journal.record({"step": step, "loss": 1.5})
        with pytest.raises(RunError, match=r"cannot write the checkpoint before the lines of .*metrics\.jsonl: "):
            journal.flush()
    journal._file, journal._torn_at = file, 0
    journal.flush()
    assert (tmp_path / "metrics.jsonl").read_text() == line(1) + line(2)
    assert len(messages) == 1
    journal.close()


def test_a_log_that_cannot_be_cut_back_says_so_and_is_closed_as_any_other(tmp_path):
    journal = Journal(tmp_path, 0, print)
    journal.record({"step": 1})
    (tmp_path / ".metrics.jsonl.partial").mkdir()  # as little to be written as on a full disk
    with pytest.raises(UserError, match="cannot write"):
        journal.cut_back(0)
    journal.close()


def test_metrics_that_are_removed_under_a_run_are_begun_anew_and_that_is_said(tmp_path):
    messages = []
    journal = Journal(tmp_path, 0, messages.append)
    journal.record({"step": 1, "loss": 1.5})
    (tmp_path / "metrics.jsonl").unlink()
    journal.record({"step": 2, "loss": 1.5})
    journal.close()
    assert (tmp_path / "metrics.jsonl").read_text() == line(2)
    assert messages == [f"warning: {tmp_path / 'metrics.jsonl'} was removed: its lines up to here are lost"]
