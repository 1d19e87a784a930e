"""Rare labels weigh more in the loss, as scikit-learn and torch define it; elsewhere the setting is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.kinds import kind_of_task
from bert_horovod.finetuning.kinds.texts import MOST, Texts, balanced
from bert_horovod.finetuning.text_data import OwnOptions, glue_data, own_data
from bert_horovod.recipe.fields import named
from bert_horovod.recipe.finetuning_heads import HEADS, Head
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.runs.status_files import Command
from tests.toy_glue import FAST, numbered, write_labels

WEIGHTED = "finetuning.class_weights='balanced'"


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


def test_a_run_goes_on_with_its_task_alone(files, tmp_path):
    def job(task: str) -> None:
        kind = kind_of_task(task).read(task, Files(None, path, (path,)), {"text_columns": "query,passage"})
        Finetuning(kind, find_checkpoint(files["checkpoint"])).job(tmp_path / "run", 4, FAST)

    path = tmp_path / "pairs.csv"
    path.write_text("query,passage,label\n" + "".join(f"good {i // 3},bad {i},{i % 3 % 2}\n" for i in range(30)))
    (tmp_path / "run").mkdir()
    Command(["finetune", "--task", "regression"], "/", str(tmp_path / "run"), None, 1).write(tmp_path / "run")
    job("regression")
    with pytest.raises(
        UserError, match=r"--task reranking: .*run was begun with regression, whose head and loss it has"
    ):
        job("reranking")


def test_a_packages_head_of_a_classification_is_refused_elsewhere(files, tmp_path, monkeypatch):
    class Mine(Head):
        head: str = named("mine")

        def task(self, plain: Any) -> Any:
            return plain

    monkeypatch.setitem(HEADS._own, "mine", dataclasses.dataclass(frozen=True)(Mine))
    path = numbered(tmp_path, 9)
    kind = Texts(own_data("regression", Files(None, path, (path,)), ("text",), "score"))
    with pytest.raises(UserError, match=r"finetuning.head = 'mine': it is of a classification; leave it out"):
        Finetuning(kind, find_checkpoint(files["checkpoint"])).settings(["finetuning.head='mine'"])
