"""`finetune` alone and under horovodrun alike, resumed, and refused; `probe` of each checkpoint of a run, once."""

import json
import math
from pathlib import Path

import pytest

from tests.commands.conftest import command
from tests.horovod_runs import run_script
from tests.toy_glue import DEV, write_checkpoint, write_glue, write_labels
from tests.toy_ner import write_ner
from tests.toy_runs import metrics, train, training_state

FAST = ("--set", "execution.xla='off'", "--set", "execution.log_steps=1", "--set", "execution.trackers=[]")


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


SHORT = ["--set", "phase.0.steps=2", "--set", "execution.evaluate_steps=2", "--set", "execution.xla='off'"]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "write", "decides"), [("sst2", write_glue, "accuracy"), ("ner", write_ner, "f1")])
def test_each_checkpoint_of_a_run_is_probed_once(store, tmp_path, task, write, decides):
    run = train(store, tmp_path / "run", phase={"steps": 4}, execution={"checkpoint_steps": 2})
    data = write(tmp_path / "data", 40, 10)
    words = ("-m", "bert_horovod", "probe", run, "--task", task, "--data_dir", data, *SHORT)
    done = run_script(1, *map(str, words))
    assert done.returncode == 0, done.stderr
    scores = json.loads((run / "probe" / task / "scores.json").read_text())
    assert list(scores) == ["step-00000002", "step-00000004"]
    assert all(0 <= score[decides] <= 1 for score in scores.values())
    assert "step-00000004" in done.stdout
    assert not list((run / "probe").glob("**/optimizer.safetensors"))
    before = {path: path.stat().st_mtime_ns for path in (run / "probe").glob("**/metrics.jsonl")}
    assert run_script(1, *map(str, words)).returncode == 0
    assert before == {path: path.stat().st_mtime_ns for path in (run / "probe").glob("**/metrics.jsonl")}


def test_a_place_where_no_probe_can_be_written_is_told(tmp_path, capsys):
    write_checkpoint(tmp_path / "run" / "checkpoints" / "step-00000001")
    (tmp_path / "file").touch()
    words = ["probe", tmp_path / "run", "--task", "sst2", "--data_dir", write_glue(tmp_path / "glue", 8, 4)]
    assert command(*words, "--output_dir", tmp_path / "file" / "probes") == 2
    assert f"cannot write to --output_dir {tmp_path / 'file' / 'probes'}" in capsys.readouterr().err


@pytest.mark.full
def test_a_task_on_ones_own_files_is_probed(store, tmp_path):
    run = train(store, tmp_path / "run", phase={"steps": 2})
    file = write_labels(tmp_path / "files", 60, 10).train
    words = [*("-m", "bert_horovod", "probe", run, "--task", "multilabel", "--train_file", file), *SHORT]
    done = run_script(1, *map(str, words), "--dev_fraction", "0.2", "--label_column", "labels", "--threshold", "dev")
    assert done.returncode == 0, done.stderr
    scores = json.loads((run / "probe" / "multilabel" / "scores.json").read_text())
    assert 0 <= scores["step-00000002"]["micro_f1"] <= 1
    assert "threshold" in scores["step-00000002"]
