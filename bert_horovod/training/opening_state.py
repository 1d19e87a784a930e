"""The state with which a run begins, and a phase.

A phase that has more layers than the phase before, or trains other layers, begins with a state of its own:

    new layers          copies of old ones: model.parameters.grown_from
    all other tensors   stay as they are
    m, v and t          zero, for every tensor that trains

m and v start at zero for all tensors, because the optimizer has one t for all of them, and t must start at zero for the
new layers. The published code of progressive stacking does the same (Gong et al. 2019). If only the new layers train
(Yang et al. 2020, arXiv 2011.13635), only the heads could keep their m and v; the phase's warm-up lets them settle.
"""

from dataclasses import asdict
from functools import partial
from pathlib import Path

from bert_horovod.collectives.world import World, from_rank_0
from bert_horovod.exchange.base import Exchange
from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.parameters import grown_from, initial_values, trained_shapes
from bert_horovod.optimizers.base import slot_shapes
from bert_horovod.optimizers.loss_scale import first_loss_scale
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.resuming import load_newest
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.tasks.base import Task
from bert_horovod.training.job import Job


def first_state(job: Job, world: World) -> tuple[TrainingState, Path | None]:
    """The first state, equal on all ranks, and the path of the checkpoint that the run resumes from, if any.

    It is from rank 0's newest checkpoint, else from job.initial, else of fresh parameters.
    """
    recipe = job.recipe
    newest = load_newest(job.output_dir, job.task) if world.rank == 0 else None
    begun = newest or (job.initial.begun(recipe, job.task, job.dataset) if job.initial and world.rank == 0 else None)
    progress = begun.progress if begun else Progress(loss_scale=first_loss_scale(recipe.numerics))
    progress = Progress(**from_rank_0(asdict(progress), world, "progress"))
    phase = recipe.phase[recipe.phase_at(progress.step)]
    model = recipe.in_phase(phase).model
    shapes = job.task.parameters(model)
    if newest is None:
        deviation = partial(family_of(model).deviation, model)
        parameters = initial_values(shapes, deviation, recipe.data.seed)
        if job.initial and world.rank == 0:
            parameters |= job.initial.take(job.recipe, job.task, job.dataset)
    elif job.initial:
        job.initial.drop()
    trained = trained_shapes(shapes, model, phase.trained_layers)
    state = TrainingState(
        newest.parameters if newest else parameters,
        slot_shapes(recipe, trained),
        progress,
        begun.slots if begun else None,
        trained,
    )
    state.broadcast(world)
    return state, newest.path if newest else None


def grown_state(
    state: TrainingState, exchange: Exchange | None, task: Task, recipe: Recipe, number: int
) -> tuple[TrainingState, str] | None:
    """The state with which a phase begins, and a line about it for people; None if it begins as the last one ended.

    The same on all ranks. `state` is that at the end of the phase before; its progress goes on in the new state. The
    exchange of the phase before, if it took a step, must not be used any more if there is a new state.
    """
    if number == recipe.phase_at(state.progress.step):
        return None
    settings = recipe.phase[number]
    recipe_of_phase = recipe.in_phase(settings)
    model = recipe_of_phase.model
    shapes = task.parameters(model)
    trained = trained_shapes(shapes, model, settings.trained_layers)
    if shapes.keys() == state.parameters.keys() and trained.keys() == state.trained.keys():
        return None
    if exchange is not None:
        exchange.to_progress()
    layers_before = recipe.in_phase(recipe.phase[number - 1]).model.num_hidden_layers
    copied = {name: grown_from(name, layers_before, model.num_hidden_layers, settings.grow) for name in shapes}
    state.progress.updates, state.progress.mean_loss = 0, None
    grown = TrainingState(
        {name: state.parameters[source].numpy() for name, source in copied.items()},
        slot_shapes(recipe_of_phase, trained),
        state.progress,
        trained=trained,
    )
    return grown, (
        f"phase {number}: {layers_before} -> {model.num_hidden_layers} layers"
        + (f" (grow = {settings.grow!r})" if model.num_hidden_layers > layers_before else "")
        + f", {len(trained)} of {len(shapes)} tensors train; the optimizer's state starts anew"
    )
