"""Makes the state of a phase that has more layers than the phase before, or trains other layers.

    new layers          copies of old ones: model.parameters.grown_from
    all other tensors   stay as they are
    m, v and t          zero, for every tensor that trains

m and v start at zero for all tensors, because the optimizer has one t for all of them, and t must start at zero for the
new layers. The published code of progressive stacking does the same (Gong et al. 2019). If only the new layers train
(Yang et al. 2020, arXiv 2011.13635), only the heads could keep their m and v; the phase's warm-up lets them settle.
"""

from bert_horovod.exchange.base import Exchange
from bert_horovod.model.parameters import grown_from, trained_shapes
from bert_horovod.optimizers.base import slot_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.state import TrainingState
from bert_horovod.tasks.base import Task


def grown_state(
    state: TrainingState, exchange: Exchange | None, task: Task, recipe: Recipe, number: int
) -> tuple[TrainingState, str] | None:
    """The state with which a phase begins, and a line about it for people; None if it begins as the last one ended.

    The same on all ranks.

    Args:
        state: at the end of the phase before; its progress goes on in the new state.
        exchange: of the phase before, if it took a step; it must not be used any more if there is a new state.
        task: the task.
        recipe: the run's.
        number: the phase's.
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
