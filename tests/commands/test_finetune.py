"""The command fine-tunes alone and under horovodrun alike, resumes, and says each mistake once."""

import argparse
import json
import math
from pathlib import Path

import pytest

from bert_horovod.commands.shared.parser import parse, refuse_unread
from bert_horovod.errors import UserError
from tests.horovod_runs import run_script
from tests.toy_glue import DEV, write_checkpoint, write_glue, write_labels
from tests.toy_runs import metrics, training_state

FAST = ("--set", "execution.xla='off'", "--set", "execution.log_steps=1", "--set", "execution.tensorboard=false")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("toy")
    return {"data_dir": write_glue(directory / "glue"), "checkpoint": write_checkpoint(directory / "checkpoint")}


def words(files: dict[str, Path], output_dir: Path, *more: str) -> list[str]:
    flags = [word for name, path in (files | {"output_dir": output_dir}).items() for word in (f"--{name}", str(path))]
    return ["finetune", "--task", "sst2", *flags, *FAST, *more]


def finetune(ranks: int, *arguments: str) -> str:
    done = run_script(ranks, "-m", "bert_horovod", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_two_ranks_give_the_losses_of_one_and_resume(files, tmp_path):
    output = finetune(1, *words(files, tmp_path / "one", "--max_steps", "4"))
    assert f"of {DEV} examples" in output
    output = finetune(2, *words(files, tmp_path / "two", "--max_steps", "2"))
    assert output.count("dev.tsv: accuracy") == 1
    output = finetune(2, *words(files, tmp_path / "two", "--max_steps", "4"))
    assert "resuming from" in output
    assert training_state(tmp_path / "two")["progress"]["step"] == 4
    lines = list(zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True))
    assert len(lines) == 4
    for one, two in lines:
        assert math.isclose(one["loss"], two["loss"], rel_tol=1e-5)
    last = [
        json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])["held_out_accuracy"]
        for name in ("one", "two")
    ]
    assert last[0] == last[1]


def checked_run(arguments: argparse.Namespace) -> None:
    refuse_unread(arguments)
    arguments.run(arguments)


def refuse(files: dict[str, Path], output_dir: Path, match: str, *more: str) -> None:
    """The command raises UserError with this text and makes no output directory."""
    with pytest.raises(UserError, match=match):
        checked_run(parse(["bert-horovod", *words(files, output_dir, *more)]))
    assert not output_dir.exists()


def test_mistakes_are_refused_before_anything_is_written(files, tmp_path):
    output_dir = tmp_path / "out"
    refuse(files | {"data_dir": tmp_path}, output_dir, r"has no train\.tsv or train\.tsv\.gz")
    refuse(
        files | {"checkpoint": tmp_path},
        output_dir,
        "expected a Hugging Face directory of BERT, ALBERT, RoBERTa or ModernBERT",
    )
    refuse(files, output_dir, "--max_steps 0: expected at least 1", "--max_steps", "0")
    refuse(files, output_dir, "--epochs 0: expected more than 0", "--epochs", "0")
    refuse(files, output_dir, "unknown key phase.0.rate", "--set", "phase.0.rate=1")


def test_flags_that_change_nothing_here_are_refused(files, tmp_path):
    words = "--early_stop", "2", "--set", "execution.evaluate_steps=0"
    refuse(files, tmp_path / "out", "execution.evaluate_steps = 0 has no evaluation before its end", *words)
    named = files | {"data_dir": tmp_path}
    tables = ["--train_file", str(files["data_dir"] / "train.tsv"), "--dev_file", str(files["data_dir"] / "dev.tsv")]
    refuse(named, tmp_path / "out", "train and dev files are named by flags, and it has no test file", *tables)


def test_flags_of_another_task_are_refused(files, tmp_path):
    refuse(files, tmp_path / "out", "--doc_stride 64: it is read only with --task squad", "--doc_stride", "64")
    refuse(files, tmp_path / "out", "takes one --dev_file and no --test_file", "--task", "squad", "--test_file", "t")
    refuse(files, tmp_path / "out", r"has no train-v1\.1\.json", "--task", "squad")
    refuse(
        files,
        tmp_path / "out",
        "only with another --task than squad",
        "--task",
        "squad",
        "--early_stop",
        "2",
    )
    refuse(files, tmp_path / "out", "--early_stop 0: expected at least 1", "--early_stop", "0")
    refuse(files, tmp_path / "out", "--threshold dev: it is read only with --task multilabel", "--threshold", "dev")
    refuse(
        files,
        tmp_path / "out",
        "--dev_fraction 0.1: it is read only with --task classification or reg",
        "--dev_fraction",
        "0.1",
    )
    refuse(files, tmp_path / "out", "--label_columns a: it is read only with --task multilabel", "--label_columns", "a")


@pytest.mark.parametrize(
    ("flag", "value", "match"),
    [
        ("--threshold", "high", "--threshold high: expected a probability between 0 and 1, or dev"),
        ("--threshold", "1", "--threshold 1: expected a probability"),
        ("--label_columns", "a,b", "--label_column and --label_columns: labels stand in one column or in several"),
        ("--dev_fraction", "0.9", "--dev_fraction 0.9: expected more than 0 and at most 0.5"),
        ("--encoding", "latin7x", "--encoding latin7x: no such encoding of text"),
    ],
)
def test_values_of_ones_own_files_are_checked(files, tmp_path, flag, value, match):
    own = write_labels(tmp_path / "files", 40, 10)
    given = ["--train_file", str(own.train), "--label_column", "labels", flag, value]
    given += [] if flag == "--dev_fraction" else ["--dev_file", str(own.dev[0])]
    checkpoint = {"checkpoint": files["checkpoint"]}
    refuse(checkpoint, tmp_path / "out", match, "--task", "multilabel", *given)


def test_a_task_that_is_not_there_is_refused(files, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        parse(["bert-horovod", *(word.replace("sst2", "sst3") for word in words(files, tmp_path))])
    assert end.value.code == 2
    assert "invalid choice: 'sst3'" in capsys.readouterr().err


@pytest.mark.full
def test_another_runs_directory_is_refused(files, tmp_path):
    finetune(1, *words(files, tmp_path / "out", "--max_steps", "1"))
    arguments = parse(["bert-horovod", *words(files, tmp_path / "out", "--epochs", "1")])
    with pytest.raises(UserError, match=r"another recipe: phase\.0\.steps: 29 -> 10"):
        arguments.run(arguments)
