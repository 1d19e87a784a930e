"""Rare labels weigh more in the loss, as scikit-learn and torch define it; elsewhere the setting is refused.

Weak heads end, the same ones on every rank and after a resume; one head is the plain classifier.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.texts import MOST, Texts, balanced, survivors
from bert_horovod.finetuning.text_data import OwnOptions, glue_data, own_data
from bert_horovod.inference.options import Options
from bert_horovod.inference.text_predictor import TextPredictor
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.model.parameters import CLASSIFIER, MORE_CLASSIFIERS
from bert_horovod.runs.checkpoint import path_of
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.runs.status_files import Command
from bert_horovod.tasks.text_head import Classification
from bert_horovod.training.loop import train
from tests.finetuning.test_classifier import job_of
from tests.toy_glue import FAST, numbered, write_labels
from tests.toy_runs import metrics

WEIGHTED = "objective.class_weights='balanced'"


def test_of_one_label_a_text_the_mean_weight_is_1():
    labels = np.random.default_rng(0).choice(4, 200, p=[0.6, 0.3, 0.1, 0])
    weights = balanced(labels, 4)
    assert weights[3] == 1
    assert np.mean(np.array(weights)[labels]) == pytest.approx(1)
    for label in range(3):  # each label has the same share of the loss
        assert weights[label] * np.sum(labels == label) == pytest.approx(len(labels) / 3)


def test_of_any_number_of_labels_it_is_the_ratio_without_to_with_and_has_a_limit():
    labels = np.zeros((400, 3), np.uint8)
    labels[:100, 0] = labels[0, 1] = 1
    assert balanced(labels, 3) == (3, MOST, 1)


def test_the_task_of_a_run_has_the_weights_of_its_train_examples(files, tmp_path):
    one = Finetuning(Texts(glue_data("sst2", Files(files["data_dir"]))), find_checkpoint(files["checkpoint"]))
    assert one.job(Path("unused"), overrides=[WEIGHTED]).task.class_weights == (1, 1)
    assert one.job(Path("unused")).task.class_weights == ()
    data = own_data("multilabel", write_labels(tmp_path / "files"), ("text",), "labels")
    task = Finetuning(Texts(data), find_checkpoint(files["checkpoint"])).job(Path("unused"), overrides=[WEIGHTED]).task
    assert task.class_weights == balanced(data.train.examples.label_array(), 4)


def test_they_are_refused_where_they_have_no_meaning(files, tmp_path):
    one = Finetuning(Texts(glue_data("sst2", Files(files["data_dir"]))), find_checkpoint(files["checkpoint"]))
    with pytest.raises(UserError, match=r"class_weights = 'balanced': it is read only with objective.heads = 1"):
        one.job(Path("unused"), overrides=[WEIGHTED, "objective.heads=2"])
    (tmp_path / "a.csv").write_text("text,label\ngood,1\nbad,2\n")
    numbers = own_data("regression", Files(None, tmp_path / "a.csv", (tmp_path / "a.csv",)), ("text",), "label")
    with pytest.raises(UserError, match="a regression does not read it; expected 'none'"):
        Finetuning(Texts(numbers), find_checkpoint(files["checkpoint"])).job(Path("unused"), overrides=[WEIGHTED])
    data = own_data("multilabel", write_labels(tmp_path / "files"), ("text",), "labels")
    with pytest.raises(UserError, match=r"objective.heads = 2: a multilabel classification does not read it"):
        Finetuning(Texts(data), find_checkpoint(files["checkpoint"])).job(
            Path("unused"), overrides=["objective.heads=2"]
        )


HEADS = "objective.heads=6"
STRICT = "objective.elimination=0.0"


def remembered(output_dir: Path, step: int) -> dict[str, list[float]]:
    text = (path_of(output_dir, step) / "training" / "state.json").read_text(encoding="utf-8")
    return json.loads(text)["progress"]["task"]


def test_heads_above_the_mean_end_but_never_the_first():
    assert survivors([1, 1, 1, 1], [2.0, 1.0, 1.0, 1.2], 0.0) == [1, 1, 1, 1]
    assert survivors([1, 1, 1, 1], [2.0, 1.0, 1.0, 1.4], 0.0) == [1, 1, 1, 0]
    assert survivors([1, 1, 0, 1], [2.0, 1.0, 0.1, 1.4], 0.0) == [1, 1, 0, 1]
    assert survivors([1, 1, 1], [1.0, 1.0, 1.1], 0.05) == [1, 1, 0]
    assert survivors([1, 1, 1], [1.0, 1.0, 1.1], 0.1) == [1, 1, 1]


@pytest.mark.full
def test_heads_become_orthogonal_and_some_end(files, tmp_path):
    train(job_of(files, tmp_path, HEADS, STRICT, max_steps=20), World())
    lines = metrics(tmp_path)
    assert lines[-1]["similarity"] < lines[0]["similarity"] / 2
    alive = [line["heads"] for line in lines]
    assert alive[0] == 6 > alive[-1] >= 1
    assert alive == sorted(alive, reverse=True)
    predictor = TextPredictor(find_checkpoint(path_of(tmp_path, 20)), Options())
    assert predictor.predict_line("the film is good").startswith("positive")
    kept = read_directory(path_of(tmp_path, 20), Classification(("negative", "positive"))).parameters
    assert f"{CLASSIFIER}.weight" in kept
    assert not any(name.startswith(MORE_CLASSIFIERS) for name in kept)


def train_heads(world: World, data_dir: Path, checkpoint: Path, output_dir: Path, *steps: int) -> None:
    """Train until each of these steps; a job for two_ranks too."""
    output_dir.mkdir(exist_ok=True)
    files = {"data_dir": data_dir, "checkpoint": checkpoint}
    for last in steps:
        train(job_of(files, output_dir, HEADS, STRICT, max_steps=last, world_size=world.size), world)


@pytest.mark.slow
def test_a_resumed_run_keeps_the_choice_bit_for_bit_and_two_ranks_end_the_same_heads(files, two_ranks, tmp_path):
    for name, steps in (("whole", (14,)), ("cut", (9, 14)), ("one", (12,))):
        train_heads(World(), *files.values(), tmp_path / name, *steps)
    assert sum(remembered(tmp_path / "cut", 9)["alive_heads"]) < 6
    assert remembered(tmp_path / "cut", 14) == remembered(tmp_path / "whole", 14)
    weights = [(path_of(tmp_path / name, 14) / "model.safetensors").read_bytes() for name in ("cut", "whole")]
    assert weights[0] == weights[1]
    two_ranks.run(train_heads, *files.values(), tmp_path / "two", 12)
    one, two = (remembered(tmp_path / name, 12) for name in ("one", "two"))
    assert one["alive_heads"] == two["alive_heads"]
    np.testing.assert_allclose(one["head_losses"], two["head_losses"], rtol=1e-5)


def test_one_head_is_the_plain_classifier(files):
    job = job_of(files, Path("unused"), "objective.heads=1")
    assert type(job.task) is Classification
    assert len(job.hooks) == len(job_of(files, Path("unused")).hooks)


def test_only_a_classification_has_several_heads(files, tmp_path):
    several = Files(None, numbered(tmp_path / "numbers", 40), (numbered(tmp_path / "numbers", 20),))
    regression = Finetuning(
        Texts(own_data("regression", several, ("text",), "score")), find_checkpoint(files["checkpoint"])
    )
    with pytest.raises(UserError, match=r"objective.heads = 6: a regression does not read it; expected 1"):
        regression.job(tmp_path, overrides=[HEADS])
    for setting in ("orthogonality=0.5", "elimination=0.5"):
        with pytest.raises(UserError, match=r"it is read only with objective.heads above 1"):
            job_of(files, tmp_path, f"objective.{setting}")
    with pytest.raises(UserError, match=r"objective.heads = 0: expected at least 1"):
        job_of(files, tmp_path, "objective.heads=0")


@pytest.mark.parametrize(
    ("words", "before", "now", "message"),
    [
        ([], 0.5, None, "--threshold dev: .*run was begun with 0.5, .*give --threshold 0.5"),
        (["--threshold", "0.30"], 0.3, None, "--threshold dev: .*run was begun with 0.30, "),
        (["--threshold=dev"], None, 0.3, "--threshold 0.3: .*run was begun with dev, "),
    ],
    ids=["usual", "fixed", "dev"],
)
def test_a_run_goes_on_with_its_threshold_alone(files, tmp_path, words, before, now, message):
    def job(threshold: float | None) -> None:
        options = OwnOptions(threshold=threshold)
        data = own_data("multilabel", files_of_labels, ("text",), "labels", options)
        Finetuning(Texts(data), find_checkpoint(files["checkpoint"])).job(tmp_path / "run", 4, FAST)

    files_of_labels = write_labels(tmp_path / "files")
    (tmp_path / "run").mkdir()
    Command(["finetune", *words], "/", str(tmp_path / "run"), None, 1).write(tmp_path / "run")
    job(before)
    with pytest.raises(UserError, match=message):
        job(now)
