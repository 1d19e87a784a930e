"""A classifier is fine-tuned by the real loop: layouts agree, resume is exact, the result loads in transformers."""

import argparse
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import torch
from transformers import AutoModelForSequenceClassification

from bert_horovod.collectives.world import World
from bert_horovod.commands.finetune import add_arguments
from bert_horovod.errors import UserError
from bert_horovod.finetuning.classifier import PHASE, DevAccuracy, classification_job
from bert_horovod.finetuning.glue import TASKS
from bert_horovod.finetuning.initialisation import finetuning_recipe
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.model.forward import Forward
from bert_horovod.model.policy import ComputePolicy
from bert_horovod.model.weights import cast_weights
from bert_horovod.runs.checkpoint import path_of
from bert_horovod.tasks.classification import Classification
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.job import Job
from bert_horovod.training.loop import train
from tests.horovod_runs import run_ranks
from tests.toy_glue import DEV, MODEL, TRAIN, WORDS, write_checkpoint, write_glue
from tests.toy_runs import metrics, newest

EPOCHS = 4
FAST = (
    "phase.0.learning_rate=8e-3",
    "execution.xla='off'",
    "execution.log_steps=1",
    "execution.keep_checkpoints=9",
    "execution.tensorboard=false",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("toy")
    return {"data_dir": write_glue(directory / "glue"), "checkpoint": write_checkpoint(directory / "checkpoint")}


def classification_recipe(*sizes, epochs=3.0, **options):
    return finetuning_recipe(Path("checkpoint"), sizes[0], PHASE, *sizes[1:], epochs, **options)


def job_of(files: dict[str, Path], output_dir: Path, *overrides: str, **options) -> Job:
    return classification_job(
        "sst2", output_dir=output_dir, epochs=EPOCHS, overrides=FAST + overrides, **files, **options
    )


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory) -> Path:
    """All epochs, one micro-batch of 32."""
    output_dir = tmp_path_factory.mktemp("whole")
    train(job_of(files, output_dir), World())
    return output_dir


def own_values(output_dir: Path) -> list[tuple]:
    names = ("step", "epoch", "loss", "accuracy", "learning_rate", "gradient_norm")
    return [tuple(line[name] for name in names) for line in metrics(output_dir)]


def evaluations(output_dir: Path) -> list[dict]:
    lines = map(json.loads, (output_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "held_out_accuracy" in line]


def test_it_learns_and_the_dev_set_is_evaluated_once_an_epoch(whole):
    lines, found = metrics(whole), evaluations(whole)
    assert [line["step"] for line in found] == [10, 20, 30, 40]
    assert lines[-1]["step"] == EPOCHS * TRAIN // 32
    assert found[-1]["held_out_accuracy"] > 0.8 > 0.6 > found[0]["held_out_accuracy"]
    assert all(math.isclose(line["loss"], line["label_loss"]) for line in lines)


def test_four_micro_batches_of_8_give_the_losses_of_one_of_32(files, whole, tmp_path):
    train(job_of(files, tmp_path, "execution.micro_batch=8", max_steps=12), World())
    pairs = list(zip(own_values(whole)[:12], own_values(tmp_path), strict=True))
    assert len(pairs) == 12
    for (_, _, loss, *_), (_, _, other, *_) in pairs:
        assert math.isclose(loss, other, rel_tol=1e-5)


def test_a_resumed_run_equals_one_that_was_not_stopped_bit_for_bit(files, whole, tmp_path):
    train(job_of(files, tmp_path, max_steps=5), World())
    assert own_values(tmp_path) == own_values(whole)[:5]
    train(job_of(files, tmp_path, max_steps=20), World())
    assert own_values(tmp_path) == own_values(whole)[:20]
    for file in ("model.safetensors", "training/optimizer.safetensors"):
        assert (path_of(tmp_path, 20) / file).read_bytes() == (path_of(whole, 20) / file).read_bytes()


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_dev_accuracy_is_equal_to_the_last_digit_for_any_number_of_ranks(files, whole, ranks):
    script = f"""
from pathlib import Path
from bert_horovod.collectives.launched import launch
from bert_horovod.collectives.world import connect
from bert_horovod.finetuning.classifier import classification_job
from bert_horovod.finetuning.glue import TASKS
from bert_horovod.finetuning.initialisation import finetuning_recipe
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.model.policy import ComputePolicy
from bert_horovod.training.hooks.evaluation import Evaluator
world = connect(launch())
job = classification_job("sst2", Path({str(files["data_dir"])!r}), Path({str(files["checkpoint"])!r}), Path("unused"))
parameters = read_directory(Path({str(path_of(whole, 20))!r}), job.task).parameters
held_out = job.dataset.open(0, "held_out")
evaluator = Evaluator(job.task, job.recipe.model, ComputePolicy(), held_out, held_out.count, 4, world)
print("ACCURACY", repr(evaluator.evaluate(parameters)["accuracy"]), flush=True)
world.shutdown()
"""
    done = run_ranks(ranks, script)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line.split()[-1] for line in done.stdout.splitlines() if "ACCURACY" in line]
    expected = evaluations(whole)[1]
    assert expected["step"] == 20
    assert 0.5 < expected["held_out_accuracy"] < 1  # so that an example counted twice would show
    assert found == [repr(expected["held_out_accuracy"])] * ranks


def test_the_checkpoint_gives_the_same_logits_in_transformers(files, whole):
    directory = newest(whole)
    theirs, loading = AutoModelForSequenceClassification.from_pretrained(directory, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    job = job_of(files, whole)
    rows = job.dataset.open(0, "held_out").assemble(np.arange(DEV))
    with torch.no_grad():
        expected = theirs.eval()(
            input_ids=torch.tensor(rows["input_ids"], dtype=torch.long),
            token_type_ids=torch.tensor(rows["token_type_ids"], dtype=torch.long),
            attention_mask=torch.tensor(rows["sequence_ids"], dtype=torch.long),
        ).logits.numpy()
    parameters = {name: tf.constant(value) for name, value in read_directory(directory, job.task).parameters.items()}
    forward = Forward(MODEL, cast_weights(parameters, tf.float32), ComputePolicy())
    logits = job.task.logits(forward, {name: tf.constant(values) for name, values in rows.items()})
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert (expected.argmax(-1) == rows["labels"]).mean() == evaluations(whole)[-1]["held_out_accuracy"]


def test_a_run_may_start_from_a_classifier_of_the_same_labels(files, whole, tmp_path):
    from_itself = files | {"checkpoint": whole}
    assert job_of(from_itself, tmp_path).init_checkpoint == newest(whole)


def verdict(accuracy: float | None, labels: list[int], evaluate_rows: int = 1024) -> list[str]:
    """What the hook says at the end of a run with this last dev accuracy."""
    said: list[str] = []
    recipe = classification_recipe(MODEL, TRAIN, DEV, overrides=[f"execution.evaluate_rows={evaluate_rows}"])
    run = argparse.Namespace(
        held_out={} if accuracy is None else {"held_out_accuracy": accuracy},
        job=argparse.Namespace(dataset=argparse.Namespace(held_out=argparse.Namespace(labels=labels))),
        task=Classification(("negative", "positive")),
        recipe=recipe,
        say=said.append,
    )
    DevAccuracy(run).finish()
    return said


def test_the_last_word_is_the_dev_accuracy_and_whether_the_model_has_collapsed():
    labels = [1] * 444 + [0] * 428
    assert verdict(765 / 872, labels) == ["dev accuracy 87.73% of 872 examples"]
    for correct, label in ((444, "positive"), (428, "negative")):
        first, second = verdict(correct / 872, labels)
        assert first == f"dev accuracy {correct / 872:.2%} of 872 examples"
        assert second.startswith(f"collapsed: that is exactly the accuracy of predicting {label!r} for every example")
    assert len(verdict(445 / 872, labels)) == 1
    assert verdict(0.5, labels, evaluate_rows=100) == ["dev accuracy 50.00% of 100 examples"]
    assert verdict(None, labels) == []


def test_the_tasks_of_the_command_are_those_of_the_table():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    (action,) = (action for action in parser._actions if action.dest == "task")
    assert tuple(action.choices) == tuple(TASKS)


def test_steps_follow_from_epochs_and_batch_and_overrides_come_last():
    recipe = classification_recipe(MODEL, 67349, 872)
    assert (recipe.phase[0].steps, recipe.phase[0].global_batch) == (6314, 32)
    assert (recipe.execution.evaluate_rows, recipe.execution.evaluate_steps) == (872, 2105)
    assert recipe.phase[0].sequence_length == MODEL.max_position_embeddings == 32
    other = classification_recipe(MODEL, 67349, 872, epochs=1, overrides=["phase.0.global_batch=128"], world_size=8)
    assert (other.phase[0].steps, other.execution.micro_batch) == (527, 16)
    assert classification_recipe(MODEL, 67349, 872, overrides=["phase.0.steps=7"]).phase[0].steps == 7
    large = replace(MODEL, max_position_embeddings=512)
    assert classification_recipe(large, 67349, 872).phase[0].sequence_length == 64


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["model.hidden_size=32"], r"--set model\.hidden_size=32: the checkpoint .* has 16; only hidden_dropout_prob"),
        (["model.vocab_size=30"], r"--set model\.vocab_size=30: the checkpoint .* has 20"),
        (["phase.0.sequence_length=64"], r"sequence_length = 64: expected at most model.max_position_embeddings = 32"),
        (["phase.0.steps=0"], "steps = 0: expected at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(files, tmp_path, overrides, match):
    with pytest.raises(UserError, match=match):
        job_of(files, tmp_path, *overrides)


def test_dropout_may_differ_from_the_checkpoints(files, tmp_path):
    job = job_of(files, tmp_path, "model.hidden_dropout_prob=0.3")
    assert job.recipe.model == replace(MODEL, hidden_dropout_prob=0.3)


@pytest.mark.parametrize("epochs", [0.0, -1.0, math.inf, math.nan])
def test_epochs_that_are_none_are_refused(files, tmp_path, epochs):
    with pytest.raises(UserError, match=r"--epochs .*expected more than 0"):
        classification_job("sst2", output_dir=tmp_path, epochs=epochs, **files)


def test_a_batch_that_the_ranks_cannot_share_is_refused(files, tmp_path):
    with pytest.raises(UserError, match=r"global_batch = 32 .* there are 64"):
        job_of(files, tmp_path, world_size=64)


def test_checkpoints_that_cannot_serve_are_refused(files, tmp_path):
    with pytest.raises(UserError, match="--checkpoint: there is none at"):
        job_of(files | {"checkpoint": tmp_path / "absent"}, tmp_path)
    other = write_checkpoint(tmp_path / "other", Classification(("good", "bad")))
    with pytest.raises(UserError, match=r"classifier of other labels, .*good.*, the task has .*negative"):
        job_of(files | {"checkpoint": other}, tmp_path)
    without = tmp_path / "without"
    shutil.copytree(files["checkpoint"], without)
    (without / "vocab.txt").unlink()
    with pytest.raises(UserError, match=r"has no vocabulary; expected vocab\.txt"):
        job_of(files | {"checkpoint": without}, tmp_path)


def test_a_checkpoint_without_pooler_serves_and_vocabulary_and_case_are_its_own(files, tmp_path):
    without = write_checkpoint(tmp_path / "model", Pretraining(False))
    job = job_of(files | {"checkpoint": without}, tmp_path)
    assert (job.dataset.vocabulary, job.dataset.lowercase) == (WORDS, True)
    assert job.recipe.model == MODEL
