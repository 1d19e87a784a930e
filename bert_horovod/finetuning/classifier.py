"""Fine-tuning of a classifier: the job that the loop trains, its recipe, and its last word."""

from functools import partial
from pathlib import Path

import numpy as np

from bert_horovod.batches.labelled import LabelledDataset, LabelledRows
from bert_horovod.errors import UserError
from bert_horovod.finetuning.dev_scores import DevScores
from bert_horovod.finetuning.glue import TASKS, read_split
from bert_horovod.finetuning.initialisation import finetuning_recipe, open_checkpoint
from bert_horovod.interchange.tokenizer_files import read_json
from bert_horovod.recipe.sections import Model
from bert_horovod.storage.reading import shown
from bert_horovod.tasks.classification import Classification
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.job import Job
from bert_horovod.training.start import check_size

PHASE = {"sequence_length": 64, "global_batch": 32, "learning_rate": 3e-5, "warmup": 0.1}


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
        checkpoint: a Hugging Face BERT directory, or a run's output_dir; it gives sizes, vocabulary and lower-casing.
        output_dir: the run's.
        epochs: over the train examples.
        overrides: settings of the recipe, as `section.key=value`.
        world_size: ranks.
        options: further fields of Job.

    Raises:
        ReportedError: checkpoint, data or a setting is not what it should be, or they do not fit together.
    """
    glue = TASKS[task_name]
    task = Classification(tuple(glue.labels.values()))
    directory, found = open_checkpoint(checkpoint)
    _refuse_other_labels(directory, task)
    train, dev = (read_split(data_dir, glue, split) for split in ("train", "dev"))
    rows = len(train.labels), len(dev.labels)
    recipe = finetuning_recipe(directory, found.model, PHASE, *rows, epochs, overrides, world_size)
    check_size(recipe, task.parameters(recipe.model), world_size)
    dataset = LabelledDataset(data_dir, found.vocabulary, found.lowercase, recipe, train, dev)
    return Job(
        recipe,
        task,
        dataset,
        output_dir,
        init_checkpoint=directory,
        evaluator=partial(DevScores, accuracy),
        hooks=(DevAccuracy,),
        **options,
    )


def accuracy(source: LabelledRows, outputs: dict[str, np.ndarray]) -> dict[str, float]:
    """The share of examples whose label has the highest score."""
    labels = source.labels[source.examples(np.arange(source.count))]
    return {"accuracy": float(np.mean(outputs["logits"].argmax(-1) == labels))}


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
    config = read_json(directory / "config.json")
    if config.get("architectures") != task.configuration(Model())["architectures"]:
        return
    if (theirs := config.get("id2label")) != (ours := task.configuration(Model())["id2label"]):
        raise UserError(
            f"--checkpoint {directory} is a classifier of other labels, {shown(theirs)}, the task has {shown(ours)}; "
            "start from a pre-trained checkpoint"
        )
