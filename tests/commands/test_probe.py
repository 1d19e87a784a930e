"""The command `probe`: each checkpoint of a run is fine-tuned once, and what is asked wrongly is said."""

import json

import pytest

from tests.horovod_runs import run_script
from tests.toy_glue import write_glue, write_labels
from tests.toy_ner import write_ner
from tests.toy_runs import train

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
