"""pretrain --stop_when: a command that says when a host will be taken away. Over several hosts: test_spot.py."""

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.cluster.launching import deadline
from bert_horovod.collectives.launched import ATTEMPT
from bert_horovod.errors import UserError
from bert_horovod.runtime.stopping import LEAVING
from tests.toy_runs import metrics, pretrain_arguments


@pytest.mark.parametrize(("attempt", "code"), [(None, 0), ("id", LEAVING)], ids=["alone", "under launch"])
def test_a_run_saves_and_stops_once_the_command_ends_with_0(store, tmp_path, monkeypatch, attempt, code):
    if attempt:
        monkeypatch.setenv(ATTEMPT, attempt)
    monkeypatch.setattr(deadline, "POLL_S", 0.05)
    output_dir = tmp_path / "run"
    arguments = pretrain_arguments(tmp_path, store, output_dir, phase={"steps": 1_000_000})
    words = ["bert-horovod", "pretrain", *arguments, "--stop_when", f"grep -q loss '{output_dir}/metrics.jsonl'"]
    assert dispatch(parse(words)) == code
    (checkpoint,) = (output_dir / "checkpoints").iterdir()
    assert checkpoint.name == f"step-{metrics(output_dir)[-1]['step']:08d}"


def test_a_command_that_cannot_be_run_is_refused():
    with pytest.raises(UserError, match=r"--stop_when no-such-command: the shell cannot run it \(exit code 127\)"):
        deadline.watch("no-such-command", lambda: None)
