"""best.json names the best checkpoint; a damaged one counts as none, and ends nothing."""

import json

import pytest

from bert_horovod.runs.checkpoint import BEST, Best, best_record

RECORD = {"metric": "f1", "score": 0.5, "step": 3, "evaluations_since": 0, "last_step": 3, "ended": False}


def test_a_whole_record_is_read_while_its_checkpoint_is_there(tmp_path):
    (tmp_path / BEST).write_text(json.dumps(RECORD))
    assert best_record(tmp_path) is None
    (tmp_path / "checkpoints" / "step-00000003").mkdir(parents=True)
    assert best_record(tmp_path) == Best(**RECORD)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"step": 3}',
        json.dumps(RECORD | {"more": 1}),
        json.dumps(RECORD | {"score": "0.5"}),
        json.dumps(RECORD | {"step": "3"}),
        json.dumps(RECORD | {"last_step": None}),
    ],
)
def test_a_damaged_record_counts_as_none(tmp_path, text):
    (tmp_path / "checkpoints" / "step-00000003").mkdir(parents=True)
    (tmp_path / BEST).write_text(text)
    assert best_record(tmp_path) is None
