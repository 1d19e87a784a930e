"""lab/finetuning_gain.py: what is measured, and its name; lab/finetuning_pace.py: contestants in turn."""

import pytest

from tests.lab.scripts import cells, load_script, run_script
from tests.toy_glue import write_checkpoint, write_glue
from tests.toy_ner import write_ner
from tests.toy_squad import write_squad


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sst2", "ner"])
def test_all_starts_are_trained_once_and_told(tmp_path, task):
    (tmp_path / "glue").mkdir()
    write_glue(tmp_path / "glue" / "SST-2")
    words = ["--checkpoint", write_checkpoint(tmp_path / "checkpoint"), "--data", tmp_path / "glue"]
    words += ["--ner", write_ner(tmp_path / "ner")] if task == "ner" else []
    words += ["--work", tmp_path / "work", "--results", tmp_path / "results.jsonl", "--task", task, "--max_steps", 2]
    done = run_script("finetuning_gain", *words)
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[1]
    assert cells(line)[:2] == {"sst2": ["sst2, 1 epoch", "accuracy"], "ner": ["ner, 5 epochs", "f1"]}[task]
    assert line.count(" +- ") == 3
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 3
    again = run_script("finetuning_gain", *words)
    assert again.stdout == done.stdout
    assert "on core" in done.stderr
    assert "on core" not in again.stderr


THEIRS = [f"transformers, {kind}, {how}" for kind in ("float32", "bfloat16") for how in ("eager", "compiled")]


def test_a_ratio_is_the_median_of_each_rounds():
    report = load_script("finetuning_pace").report({"packed rows": [0.1, 0.2, 0.1], "transformers": [0.3, 0.4, 0.2]})
    _, packed, theirs = (line.split() for line in report.splitlines())
    assert packed[-3:] == ["10.0", "1.00", "x"]
    assert theirs[-3:] == ["3.3", "2.00", "x"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "write", "told", "peers"),
    [
        ("sst2", write_glue, "sst2, 320 examples of ", THEIRS),
        ("ner", write_ner, "ner, ", THEIRS),
        ("squad", write_squad, "squad, 375 windows; packed ", []),
    ],
)
def test_all_contestants_take_their_turns(tmp_path, task, write, told, peers):
    words = ["--data_dir", write(tmp_path / "data"), "--checkpoint", write_checkpoint(tmp_path / "checkpoint")]
    done = run_script("finetuning_pace", *words, "--task", task, "--rounds", 1, "--steps", 1, "--threads", 1)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(told)
    assert [cells(line)[0] for line in lines[2:]] == ["packed rows", "padded to the maximum", *peers]
