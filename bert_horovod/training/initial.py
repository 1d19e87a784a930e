"""The checkpoint that a run starts from: its parameters are read once, and must fit the recipe and the data."""

import os
from functools import cached_property
from itertools import zip_longest

import numpy as np

from bert_horovod.batches.source import Dataset
from bert_horovod.errors import ReportedError, RunError, UserError, file_error
from bert_horovod.model.architectures.families import family_of
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.runs.checkpoint import is_removed
from bert_horovod.runs.directory import Start
from bert_horovod.runs.opening import OpenCheckpoint
from bert_horovod.runs.resuming import Checkpoint, load_to_continue
from bert_horovod.tasks.base import Task

CONTINUE = "--continue_from"  # the flag of a checkpoint whose optimizer state and counters are taken too


class Initial:
    """A checkpoint to start from; rank 0 reads its parameters once, before it joins the others if `load` is called."""

    def __init__(self, checkpoint: OpenCheckpoint) -> None:
        self.checkpoint = checkpoint
        self._loaded: dict[str, np.ndarray] | None = None
        self._begun: Checkpoint | None = None

    @cached_property
    def start(self) -> Start:
        """What run.json records of the checkpoint; raises ReportedError if its files cannot be read."""
        checkpoint = self.checkpoint
        try:
            place = str(checkpoint) if checkpoint.url else os.path.abspath(checkpoint.directory)
            return Start(checkpoint.flag, place, checkpoint.weights_hash())
        except OSError as error:
            raise file_error(error, f"{checkpoint.flag} {checkpoint}: {error.filename}: {error.strerror}") from error

    def load(self, recipe: Recipe, task: Task, dataset: Dataset) -> None:
        """Read the parameters for a run that will `take` them; raises the errors of load_initial."""
        self._loaded = load_initial(self.checkpoint, recipe.in_phase(recipe.phase[0]).model, task, dataset)
        if (flag := self.checkpoint.flag) == CONTINUE:
            self._begun = load_to_continue(self.checkpoint.directory, recipe, task, flag, str(self.checkpoint))

    def take(self, recipe: Recipe, task: Task, dataset: Dataset) -> dict[str, np.ndarray]:
        """The parameters to start from, which are not kept here; raises ReportedError."""
        try:
            if self._loaded is None:
                self.load(recipe, task, dataset)
            return self._loaded or {}
        except ReportedError as error:
            directory = self.checkpoint.directory
            if not is_removed(directory):
                raise
            raise RunError(
                f"the checkpoint {directory} was removed, by the run that made it, before this run had started from "
                "it; run the same command again"
            ) from error
        finally:
            self.drop()

    def begun(self, recipe: Recipe, task: Task, dataset: Dataset) -> Checkpoint | None:
        """The state to go on with, of --continue_from; None for another flag. Raises as `take`, before which it is."""
        if self.checkpoint.flag == CONTINUE and self._loaded is None:
            self.load(recipe, task, dataset)
        return self._begun

    def drop(self) -> None:
        """Let the parameters go: no run will take them."""
        self._loaded = self._begun = None


def load_initial(start: OpenCheckpoint, model: Model, task: Task, dataset: Dataset) -> dict[str, np.ndarray]:
    """The parameters of a checkpoint of any format, to start from; heads that the checkpoint lacks are left out.

    Raises UserError if the checkpoint's sizes or vocabulary differ from the run's, ReportedError if it is damaged.
    """
    pretrained = start.reader.read(task)
    theirs, ours = family_of(pretrained.model), family_of(model)
    shapes = task.parameters(model)
    of_checkpoint = "leave [model] out, which is then the checkpoint's"
    if theirs is not ours:
        settings = [f"model.{name} = {getattr(model, name)}" for name in (ours.chosen_by or theirs.chosen_by)]
        raise UserError(
            f"{start.flag} {start} is {theirs.title}, the recipe's {' and '.join(settings)} make "
            f"{ours.title}; start from {ours.title}, or {of_checkpoint}"
        )
    if pretrained.vocabulary is not None and pretrained.vocabulary != dataset.vocabulary:
        pairs = enumerate(zip_longest(pretrained.vocabulary, dataset.vocabulary))
        first = next(i for i, (theirs, ours) in pairs if theirs != ours)
        raise UserError(
            f"{start.flag} {start} has another vocabulary than the data in {dataset.path} "
            f"(they first differ at id {first}); prepare the data with --vocab {start}"
        )
    if pretrained.vocabulary is not None and pretrained.tokenizer_settings != dataset.tokenizer_settings:
        raise UserError(
            f"{start.flag} {start} has another tokenizer ({pretrained.tokenizer_settings}) than the data in "
            f"{dataset.path} ({dataset.tokenizer_settings}); prepare the data with --vocab {start}"
        )
    for name, array in pretrained.parameters.items():
        if name in shapes and shapes[name] != array.shape:
            raise UserError(
                f"{start.flag} {start}: {name} has shape {list(array.shape)}, the recipe's [model] "
                f"makes it {list(shapes[name])}; {of_checkpoint}"
            )
    groups, depth = pretrained.model.layer_groups, pretrained.model.num_hidden_layers
    if groups != model.layer_groups and depth == model.num_hidden_layers:
        raise UserError(
            f"{start.flag} {start} has {groups} layers with parameters, the recipe has "
            f"model.shared_layers = {model.shared_layers}; {of_checkpoint}"
        )
    for key in family_of(model).unseen_in_shapes:
        theirs, ours = getattr(pretrained.model, key), getattr(model, key)
        if theirs != ours:
            raise UserError(
                f"{start.flag} {start} has {key} = {theirs!r}, the recipe has model.{key} = {ours!r}; {of_checkpoint}"
            )
    return {name: array for name, array in pretrained.parameters.items() if name in shapes}
