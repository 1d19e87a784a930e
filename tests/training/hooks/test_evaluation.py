"""A run says when its loss leaves the band of other runs."""

import json
from dataclasses import asdict

import pytest

from bert_horovod.runs import reference_curves
from bert_horovod.runs.directory import RunRecord, Start
from bert_horovod.runs.reference_curves import curve_settings
from tests.toy_runs import incidents, losses, train
from tests.toys import toy_recipe


@pytest.fixture
def reference(tmp_path, monkeypatch):
    """A function that makes a reference of these means the only one there is, about all runs; windows of 2 steps."""

    def write(*means: float) -> None:
        curve = {
            "name": "toy",
            "runs": "3 seeds",
            "command": "",
            "settings": curve_settings(toy_recipe()),
            "seeds": 3,
            "window": 2,
        }
        numbers = {"means": means, "spreads": [0.01] * len(means), "noises": [0.01] * len(means)}
        (tmp_path / "toy.json").write_text(json.dumps(curve | numbers), encoding="utf-8")
        monkeypatch.setattr(reference_curves, "DIRECTORY", tmp_path)

    return write


@pytest.mark.full
def test_a_loss_outside_is_told_once_and_so_is_its_return(store, tmp_path, reference, capsys):
    numbers = losses(train(store, tmp_path / "first", 6))
    normal = (numbers[4] + numbers[5]) / 2
    reference(1.0, 1.0, normal)
    messages = incidents(train(store, tmp_path / "second", 6))
    assert len(messages) == 2
    assert messages[0].startswith("at step 2 the loss is ")
    assert "between 0.95 and 1.05 (3 seeds)" in messages[0]
    assert messages[1] == "at step 6 the loss is again as in other runs of this recipe"
    assert messages[0] in capsys.readouterr().out
    (tmp_path / "third").mkdir()
    start = Start("--continue_from", "first", "1" * 64)
    (tmp_path / "third" / "run.json").write_text(json.dumps(asdict(RunRecord(store.hash, start))), encoding="utf-8")
    assert incidents(train(store, tmp_path / "third", 6)) == []
