"""The command fine-tunes alone and under horovodrun alike, resumes, and says each mistake once."""

import json
import math
from pathlib import Path

import pytest

from bert_horovod.commands.shared.parser import parse
from bert_horovod.errors import UserError
from tests.horovod_runs import run_script
from tests.toy_glue import DEV, write_checkpoint, write_glue
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


@pytest.mark.full
def test_another_runs_directory_is_refused(files, tmp_path):
    finetune(1, *words(files, tmp_path / "out", "--max_steps", "1"))
    arguments = parse(["bert-horovod", *words(files, tmp_path / "out", "--epochs", "1")])
    with pytest.raises(UserError, match=r"another recipe: phase\.0\.steps: 29 -> 10"):
        arguments.run(arguments)
