"""Makes the state of a phase that has more layers than the phase before, or trains other layers.

    new layers          copies of old ones: model.parameters.grown_from
    all other tensors   stay as they are
    m, v and t          zero, for every tensor that trains

m and v start at zero for all tensors, because the optimizer has one t for all of them, and t must start at zero for the
new layers. The published code of progressive stacking does the same (Gong et al. 2019). If only the new layers train
(Yang et al. 2020, arXiv 2011.13635), only the heads could keep their m and v; the phase's warm-up lets them settle.
"""

from typing import TYPE_CHECKING

from bert_horovod.model.parameters import grown_from, trained_shapes
from bert_horovod.optimizers.base import slot_shapes
from bert_horovod.runs.state import TrainingState

if TYPE_CHECKING:
    from bert_horovod.training.run import Run


def grow(run: "Run") -> None:
    """Make the state with which the run's open phase begins, unless the phase has begun; the same on all ranks."""
    phase, state, recipe = run.phase, run.state, run.phase.recipe
    if phase.number == run.recipe.phase_at(state.progress.step):
        return
    model = recipe.model
    shapes = run.task.parameters(model)
    trained = trained_shapes(shapes, model, phase.settings.trained_layers)
    if shapes.keys() == state.parameters.keys() and trained.keys() == state.trained.keys():
        return
    if run.exchange is not None:
        run.exchange.remember()
        run.exchange = None  # the exchange holds the variables of the phase before
    layers_before = run.recipe.in_phase(run.recipe.phase[phase.number - 1]).model.num_hidden_layers
    copied = {name: grown_from(name, layers_before, model.num_hidden_layers, phase.settings.grow) for name in shapes}
    state.progress.updates, state.progress.mean_loss = 0, None
    run.state = TrainingState(
        {name: state.parameters[source].numpy() for name, source in copied.items()},
        slot_shapes(recipe, trained),
        state.progress,
        trained=trained,
    )
    run.say(
        f"phase {phase.number}: {layers_before} -> {model.num_hidden_layers} layers"
        + (f" (grow = {phase.settings.grow!r})" if model.num_hidden_layers > layers_before else "")
        + f", {len(trained)} of {len(shapes)} tensors train; the optimizer's state starts anew"
    )
