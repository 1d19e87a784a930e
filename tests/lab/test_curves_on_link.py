"""Curves on a real link: where runs stop, and what is compared with what."""

import pytest

from bert_horovod.errors import RunError
from lab.curves_on_link import compared, main, stop_at


def test_a_run_stops_where_its_ranks_are_equal():
    assert stop_at("float16", 230) == 230
    assert stop_at("continued 400, local AdamW, 8", 230) == 232
    assert stop_at("continued, DreamDDP, 8", 230) == 240


def test_losses_bytes_and_seconds_are_those_of_the_steps_that_were_made():
    metrics = [
        {"step": 1, "loss": 10.0, "wire_bytes": 100.0, "step_s": 30.0},
        {"step": 20, "loss": 9.0, "wire_bytes": 100.0, "step_s": 2.0},
        {"step": 20, "held_out_mlm_loss": 9.1},
        {"step": 30, "loss": 8.5, "wire_bytes": 20.0, "step_s": 1.0},
        {"step": 50, "loss": 8.0, "wire_bytes": 20.0, "step_s": 4.0},
    ]
    curve = [[1, 10.0], [20, 9.25], [30, 8.5], [50, 8.0], [60, 7.0]]
    line = compared(metrics, 0, curve, 2640)
    assert (line["steps"], line["loss"], line["apart"], line["step_s"]) == (50, 8.0, 0.25, 3.0)
    assert line["wire_gb"] == pytest.approx((20 * 100 + 30 * 20) / 1e9)
    assert line["counted"] == pytest.approx(2640 / 2600)
    with pytest.raises(RunError, match="no step of the run"):
        compared(metrics, 0, [[7, 10.0]], 0)


def test_of_a_run_that_went_on_only_the_steps_on_the_link_count():
    metrics = [
        {"step": 20, "loss": 9.0, "wire_bytes": 100.0, "step_s": 2.0},
        {"step": 30, "loss": 8.5, "wire_bytes": 20.0, "step_s": 30.0},
        {"step": 50, "loss": 8.0, "wire_bytes": 20.0, "step_s": 4.0},
    ]
    line = compared(metrics, 20, [[20, 7.0], [30, 8.5], [50, 8.25]], 1200)
    assert (line["steps"], line["loss"], line["apart"], line["step_s"]) == (30, 8.0, 0.25, 4.0)
    assert line["counted"] == pytest.approx(1200 / (30 * 20))


@pytest.mark.full
def test_a_store_that_is_not_there_is_one_message(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("lab.curves_on_link.why_not", lambda: None)
    monkeypatch.setattr("sys.argv", ["", "--data_dir", str(tmp_path), "--work", str(tmp_path), "--curve", "float16"])
    assert main() == 2
    assert capsys.readouterr().err.startswith("error: ")
