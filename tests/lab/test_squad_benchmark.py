"""lab/squad.py: packed rows and rows of one window in turn."""

import pytest

from tests.lab.scripts import cells, imported_by_help, run_here, run_script
from tests.toy_glue import write_checkpoint
from tests.toy_squad import write_squad


def test_help_imports_no_tensorflow():
    assert "tensorflow" not in imported_by_help("squad")


def test_steps_that_are_none_are_refused():
    done = run_here("squad", "--checkpoint", "c", "--steps", 0)
    assert done.returncode == 2
    assert "--steps 0: expected at least 1" in done.stderr


@pytest.mark.slow
def test_both_take_their_turns(tmp_path):
    words = ["--data_dir", write_squad(tmp_path / "squad"), "--checkpoint", write_checkpoint(tmp_path / "checkpoint")]
    done = run_script("squad", *words, "--steps", 1, "--threads", 1, "--set", "execution.xla='off'")
    assert done.returncode == 0, done.stderr
    assert [cells(line)[0] for line in done.stdout.splitlines()[1:]] == ["packed rows", "a window a row"]
