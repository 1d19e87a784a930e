"""What commands share: none writes over what it reads, or over a file of a run; texts whose bytes are not all UTF-8."""

import os
from pathlib import Path

import pytest

from bert_horovod.commands.shared.flags import whole_text
from bert_horovod.runs.directory import claim
from tests.commands.conftest import command, write_checkpoint
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store

PREDICT = ["predict", "--checkpoint", "model", "--input"]
TUNE = ["tune", "--recipe", "r.toml", "--data_dir", "store", "--output"]


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A directory with a run, a checkpoint, a token store and some files, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PBS_NODEFILE", "nodes")
    os.close(claim(tmp_path / "run", toy_recipe(), "ab" * 32))
    write_checkpoint(tmp_path / "model")
    write_checkpoint(tmp_path / "run" / "checkpoints" / "step-00000008")
    (tmp_path / "run" / "model").symlink_to("checkpoints/step-00000008")
    for name in ("answers", "run/probe"):
        (tmp_path / name).mkdir()
    write_toy_store(tmp_path / "store", vocabulary=SMALL_VOCABULARY)
    for name in ("a.txt", "nodes", "b.csv", "c.toml", "answers/predictions.json"):
        (tmp_path / name).write_text("text\n")
    (tmp_path / "r.toml").write_text((tmp_path / "run" / "recipe.toml").read_text())
    (tmp_path / "link.toml").symlink_to("run/recipe.toml")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "owner"),
    [
        (["report", "run", "--output", "link.toml"], "is a file of the run"),
        (["report", "run", "--output", "run/metrics.jsonl"], "is a file of the run"),  # not there yet
        (["report", "run", "--output", "run/checkpoints/step-00000008/page.html"], "is a file of the run"),
        (["report", "run", "--output", "run/model/page.html"], "is a file of the run"),
        (["report", "run", "--output", "run/probe/scores.json"], "is a file of the run"),
        (["report", "run", "--output", "run/page.html"], "is in the run"),
        (["report", "run", "--cluster", "c.toml", "--output", "c.toml"], "is the input c.toml"),
        (["report", "run", "--output", "."], "is a directory; expected the name of a file"),
        (["report", "run", "--output", "none/page.html"], "there is no directory none; make it"),
        (["hosts", "--output", "nodes"], "is the input nodes"),
        ([*TUNE, "r.toml"], "is the input r.toml"),
        (["vocab", "--input", "a.txt", "--size", "50", "--output", "a.txt"], "is the input a.txt"),
        (["vocab", "--input", "a.txt", "--size", "50", "--output", "model/vocab.txt"], "is a file of the checkpoint"),
        (["vocab", "--input", "a.txt", "--size", "50", "--output", "store/vocab.txt"], "is a file of the token store"),
        ([*PREDICT, "b.csv", "--output", "b.csv"], "is the input b.csv"),
        ([*PREDICT, "b.csv", "--output", "run"], "is a file of the run"),
        ([*PREDICT, "answers/predictions.json", "--output", "answers"], "is the input answers/predictions.json"),
        (["bench", "scaling", "-H", "localhost:2", "--cluster", "c.toml", "--output", "c.toml"], "is the input c.toml"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_an_output_that_would_replace_something_is_refused(place, words, owner, capsys):
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert command(*words) == 2
    assert owner in capsys.readouterr().err
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_the_page_of_a_run_may_stand_in_it_and_be_renewed(place):
    (place / "run" / "metrics.jsonl").write_text('{"step": 1, "phase": 0, "loss": 2.0}\n')
    for _ in range(2):
        assert command("report", "run", "--output", "run/report.html") == 0


def test_several_runs_do_not_go_into_the_directory_of_one(place, capsys):
    words = ["finetune", "--task", "classification", "--checkpoint", "model", "--train_file", "b.csv", "--seeds", "2"]
    assert command(*words, "--output_dir", "run") == 2
    assert "--output_dir run is that of one run, and this makes several" in capsys.readouterr().err


def test_an_argument_is_text_whatever_its_bytes():
    assert whole_text(os.fsdecode(b"caf\xe9 [MASK]")) == "caf\ufffd [MASK]"
    assert whole_text("café 北京 \U0001f600") == "café 北京 \U0001f600"
