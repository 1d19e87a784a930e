"""Reads a run's checkpoint back, to go on from it: parameters, the optimizer's slots, progress, recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bert_horovod.errors import DamagedData, ReportedError, UserError
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.interchange.safetensors_file import map_file
from bert_horovod.model.parameters import trained_shapes
from bert_horovod.optimizers.base import slot_shapes
from bert_horovod.optimizers.loss_scale import first_loss_scale
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import differences, load_recipe, recipe_from_table, recipe_of_record
from bert_horovod.runs.checkpoint import (
    OPTIMIZER,
    all_damaged,
    damaged_files,
    path_of,
    paths,
    recorded,
    say_damaged,
    state_of,
    whole_checkpoints,
)
from bert_horovod.runs.state import Progress
from bert_horovod.storage.reading import check_type

if TYPE_CHECKING:
    from bert_horovod.tasks.base import Task


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back, as NumPy arrays."""

    path: Path
    parameters: dict[str, np.ndarray]
    slots: dict[str, dict[str, np.ndarray]]
    progress: Progress


def recorded_recipe(directory: Path) -> Recipe | None:
    """The recipe of the run that saved the checkpoint; None if this program did not write the checkpoint."""
    return recorded(directory, lambda state: recipe_of_record(state["recipe"]))


def load_newest(output_dir: Path, task: Task) -> Checkpoint | None:
    """Load the newest undamaged checkpoint: its hashes are right, and its content is a state of recipe.toml's run.

    Damaged checkpoints are named on stderr. Returns None if there are no checkpoints; raises DamagedData if all are
    damaged.
    """
    for path in whole_checkpoints(output_dir):
        try:
            return _load(path, task, output_dir)
        except (OSError, ValueError, LookupError, TypeError, ReportedError) as error:
            say_damaged(path, [str(getattr(error, "strerror", None) or error)])
    if paths(output_dir):
        raise all_damaged(output_dir)
    return None


def load_to_continue(path: Path, recipe: Recipe, task: Task, flag: str, name: str) -> Checkpoint:
    """The state with which a new run goes on behind a checkpoint of another run; `name`: the path, for people.

    The progress counts from 0, and knows the phases and steps before it. It has no mean of losses and no plan of
    buckets, because these are of the rows before: with other texts a loss far above that mean is no divergence. Raises
    UserError if the new run's update rule, exchange or tensors are not those of the checkpoint, DamagedData if a file
    of it does not match its hash.
    """
    instead = f"--init_checkpoint {name} begins with its parameters alone"
    before = recorded_recipe(path)
    if before is None:
        raise UserError(f"{flag} {name} is no checkpoint of a run, and has no optimizer state; {instead}")
    if damaged := damaged_files(path):  # who needs the parameters alone has not looked at training/
        raise DamagedData(f"{flag} {name} is damaged: {', '.join(damaged)}; take another checkpoint, or {instead}")
    if before.optimizer.name != recipe.optimizer.name:
        raise UserError(
            f"{flag} {name} was trained with optimizer.name = {before.optimizer.name!r}, the recipe has "
            f"{recipe.optimizer.name!r}, whose state is another; expected the same, or {instead}"
        )
    try:
        loaded = _load(path, task)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{flag} {name} cannot be continued by this recipe: {error}; {instead}") from error
    old = loaded.progress
    for method, wire in ((each.exchange.method, each.numerics.wire) for each in (before, recipe)):
        if method != "gradients" or old.ranks_with_parts:
            raise UserError(
                f"{flag} {name} with exchange.method = {method!r}, numerics.wire = {wire!r}: each rank keeps a state "
                "of its own, or the ranks a common one, that belongs to the phases of its run; expected 'gradients' "
                f"without such a state, or {instead}"
            )
    model = recipe.in_phase(recipe.phase[0]).model
    trained = trained_shapes(task.parameters(model), model, recipe.phase[0].trained_layers)
    shapes = {slot: {name: array.shape for name, array in of.items()} for slot, of in loaded.slots.items()}
    if shapes != slot_shapes(recipe, trained):
        raise UserError(f"{flag} {name}: other tensors train in the recipe's first phase; expected the same: {instead}")
    half, was_half = (each.numerics.precision == "float16" for each in (recipe, before))
    progress = Progress(
        updates=old.updates,
        loss_scale=old.loss_scale if half == was_half else first_loss_scale(recipe.numerics),
        good_steps=old.good_steps if half == was_half else 0,
        wire_maxima=old.wire_maxima if before.numerics.wire == recipe.numerics.wire else {},
        products=old.products,
        phases_before=old.phases_before + (before.phase_at(old.step) + 1 if old.step else 0),
        steps_before=old.steps_before + old.step,
    )
    return Checkpoint(path, loaded.parameters, loaded.slots, progress)


def _load(path: Path, task: Task, output_dir: Path | None = None) -> Checkpoint:
    """Load a checkpoint with right hashes; raises an error of many types if it is not the state of a run.

    `output_dir`: the run's; None: it may be of any run, and at any place.
    """
    record = state_of(path)
    check_type(record["progress"], Progress, "progress")
    recipe, progress = recipe_from_table(record["recipe"]), Progress(**record["progress"])
    if output_dir is not None:
        of_the_run = output_dir / "recipe.toml"
        if of_the_run.exists() and (changed := differences(load_recipe(of_the_run), recipe)):
            raise ValueError(f"it is of another recipe: {'; '.join(changed)}"[:500])
        if path != path_of(output_dir, progress.step):
            raise ValueError(f"its state is that of step {progress.step}")
    phase = recipe.phase[recipe.phase_at(progress.step)]
    model = recipe.in_phase(phase).model
    shapes = task.parameters(model)
    trained = trained_shapes(shapes, model, phase.trained_layers)
    parameters = read_directory(path, task).parameters  # read_directory has checked shapes by config.json
    _check_tensors("model.safetensors", parameters, shapes)
    slots = {
        slot: {f"{slot}/{name}": shape for name, shape in of_slot.items()}
        for slot, of_slot in slot_shapes(recipe, trained).items()
    }
    mapped = map_file(path / OPTIMIZER, inside=path)
    _check_tensors(OPTIMIZER, mapped, {key: shape for keys in slots.values() for key, shape in keys.items()})
    return Checkpoint(
        path,
        parameters,
        {slot: {key.removeprefix(f"{slot}/"): mapped[key].copy() for key in keys} for slot, keys in slots.items()},
        progress,
    )


def _check_tensors(file: str, tensors: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless the tensors have these names and shapes, are float32 and finite."""
    if different_names := tensors.keys() ^ shapes.keys():
        raise ValueError(
            f"{file}: {min(different_names)[:200]} is {'missing' if min(different_names) in shapes else 'unknown'}"
        )
    for name, array in tensors.items():
        if array.shape != shapes[name] or array.dtype != np.float32:
            raise ValueError(f"{file}: {name} is {array.dtype} {list(array.shape)}, expected {list(shapes[name])}")
        if not np.isfinite(array).all():
            raise ValueError(f"{file}: {name} has values that are not finite")
