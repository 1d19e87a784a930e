"""Fine-tuning of a classifier: the job that the loop trains, its recipe, and its last word."""

import dataclasses
import math
from pathlib import Path

import numpy as np

from bert_horovod.batches.labelled import LabelledDataset
from bert_horovod.errors import UserError
from bert_horovod.finetuning.glue import TASKS, read_split
from bert_horovod.interchange.pretrained import read_pretrained
from bert_horovod.interchange.tokenizer_files import read_json
from bert_horovod.recipe.loading import recipe_from_table
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.runs.checkpoint import find_checkpoint
from bert_horovod.storage.reading import shown
from bert_horovod.tasks.classification import Classification
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.job import Job
from bert_horovod.training.start import check_size

_MAY_DIFFER = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")  # from the checkpoint's
_BATCH, _LENGTH = 32, 64


def classification_job(
    task_name: str,
    data_dir: Path,
    checkpoint: Path,
    output_dir: Path,
    epochs: float = 3.0,
    overrides: list[str] | tuple[str, ...] = (),
    world_size: int = 1,
    **options,
) -> Job:
    """Fine-tuning of a checkpoint on a GLUE task, checked.

    Args:
        task_name: a key of glue.TASKS.
        data_dir: with the task's train.tsv and dev.tsv.
        checkpoint: a checkpoint of any format, or a run's output_dir; it gives sizes, vocabulary and lower-casing.
        output_dir: the run's.
        epochs: over the train examples.
        overrides: settings of the recipe, as `section.key=value`.
        world_size: ranks.
        options: further fields of Job.

    Raises:
        ReportedError: checkpoint, data or a setting is not what it should be, or they do not fit together.
    """
    if not 0 < epochs < math.inf:
        raise UserError(f"--epochs {epochs:g}: expected more than 0")
    glue = TASKS[task_name]
    task = Classification(tuple(glue.labels.values()))
    directory = find_checkpoint(checkpoint)
    found = read_pretrained(directory)
    if found.vocabulary is None:
        raise UserError(
            f"--checkpoint {directory} has no vocabulary; expected vocab.txt or tokenizer.json beside config.json: "
            "copy the vocab.txt there that the model was trained with"
        )
    _refuse_other_labels(directory, task)
    train, dev = (read_split(data_dir, glue, split) for split in ("train", "dev"))
    recipe = classification_recipe(found.model, len(train.labels), len(dev.labels), epochs, overrides, world_size)
    _refuse_other_sizes(directory, found.model, recipe.model)
    check_size(recipe, task.parameters(recipe.model), world_size)
    dataset = LabelledDataset(data_dir, found.vocabulary, found.lowercase, recipe, train, dev)
    return Job(recipe, task, dataset, output_dir, init_checkpoint=directory, hooks=(DevAccuracy,), **options)


def classification_recipe(
    model: Model,
    train_examples: int,
    dev_examples: int,
    epochs: float = 3.0,
    overrides: list[str] | tuple[str, ...] = (),
    world_size: int = 1,
) -> Recipe:
    """The defaults (Google's run_classifier.py, but with bias correction, which small data sets need), overridden.

    Steps follow from epochs and global batch; the whole dev set is evaluated, and a checkpoint saved, once an epoch.
    """
    phase = {
        "sequence_length": min(_LENGTH, model.max_position_embeddings),
        "global_batch": _BATCH,
        "learning_rate": 3e-5,
        "warmup": 0.1,
    }
    table = {
        "model": dataclasses.asdict(model),
        "objective": {"pair": "none"},  # a pre-training's: nothing reads it
        "optimizer": {"name": "adamw", "bias_correction": True},
        "phase": [phase],
        "execution": {"evaluate_rows": dev_examples},
    }
    batch = recipe_from_table(table, overrides).phase[0].global_batch
    phase["steps"] = math.ceil(epochs * train_examples / batch)
    an_epoch = math.ceil(train_examples / batch)
    table["execution"] |= {
        "micro_batch": min(_BATCH, math.ceil(batch / world_size)),
        "evaluate_steps": an_epoch,
        "checkpoint_steps": an_epoch,
    }
    return recipe_from_table(table, overrides)


class DevAccuracy(Hook):
    """Says the last dev accuracy, and whether the model does no better than one answer for all."""

    def finish(self) -> None:
        run = self.run
        accuracy = run.held_out.get("held_out_accuracy")
        if accuracy is None:
            return
        labels = run.job.dataset.held_out.labels
        examples = min(run.recipe.execution.evaluate_rows, len(labels))
        run.say(f"dev accuracy {accuracy:.2%} of {examples:,} examples")
        if examples < len(labels):
            return
        correct = np.bincount(labels, minlength=len(run.task.labels)).tolist()  # of each constant prediction
        if round(accuracy * examples) in correct:
            label = run.task.labels[correct.index(round(accuracy * examples))]
            run.say(
                f"collapsed: that is exactly the accuracy of predicting {label!r} for every example; try another "
                "data.seed, a lower learning rate or more epochs"
            )


def _refuse_other_labels(directory: Path, task: Classification) -> None:
    if not (directory / "config.json").is_file():  # one of Google's, whose labels have no names
        return
    config = read_json(directory / "config.json")
    if config.get("architectures") != task.configuration(Model())["architectures"]:
        return
    if (theirs := config.get("id2label")) != (ours := task.configuration(Model())["id2label"]):
        raise UserError(
            f"--checkpoint {directory} is a classifier of other labels, {shown(theirs)}, the task has {shown(ours)}; "
            "start from a pre-trained checkpoint"
        )


def _refuse_other_sizes(directory: Path, theirs: Model, ours: Model) -> None:
    for field in dataclasses.fields(Model):
        before, after = getattr(theirs, field.name), getattr(ours, field.name)
        if before != after and field.name not in _MAY_DIFFER:
            raise UserError(
                f"--set model.{field.name}={after}: the checkpoint {directory} has {before!r}; only "
                f"{', '.join(_MAY_DIFFER)} may differ from it"
            )
