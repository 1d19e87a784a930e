"""What holds between the ranks of a real run."""

from types import SimpleNamespace

import pytest

from bert_horovod.collectives.world import World
from bert_horovod.errors import ReportedError
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.state import Progress, ranks_that_differ
from bert_horovod.training.agreement import require_same_data, require_same_state
from tests.toy_runs import new_state
from tests.toys import toy_recipe


def compare_unequal_states(world: World, recipe: Recipe) -> dict[str, list[int]]:
    """The ranks that differ, before and after the broadcast, where each begins with parameters of its own."""
    parameters = initial_values(pretraining_shapes(recipe.model, True), 0.02, seed=world.rank)
    state = new_state(parameters, Progress(), rule="lamb")
    before = ranks_that_differ(world, state.hash(), "before")
    state.broadcast(world)
    return {"before": before, "after": ranks_that_differ(world, state.hash(), "after")}


def refuse_unequal_data_and_state(world: World, recipe: Recipe) -> list[tuple[str, str]]:
    """Class and text of the errors where each rank has data and parameters of its own."""
    parameters = initial_values(pretraining_shapes(recipe.model, True), 0.02, seed=world.rank)
    state = new_state(parameters, Progress())
    dataset = SimpleNamespace(hash=f"{world.rank:064x}")
    errors = []
    for check, subject in ((require_same_data, dataset), (require_same_state, state)):
        with pytest.raises(ReportedError) as caught:
            check(subject, world)
        errors.append((caught.type.__name__, str(caught.value)))
    return errors


@pytest.mark.full
def test_ranks_with_other_parameters_are_noticed_and_mended_by_the_broadcast(two_ranks):
    for answer in two_ranks.run(compare_unequal_states, toy_recipe()):
        assert answer.value == {"before": [1], "after": []}


@pytest.mark.full
def test_ranks_with_other_data_or_another_state_are_refused_on_all_ranks_alike(two_ranks):
    for data, state in (answer.value for answer in two_ranks.run(refuse_unequal_data_and_state, toy_recipe())):
        assert data[0] == "UserError"
        assert data[1].startswith("the data of ranks [1] are not those of rank 0")
        assert state[0] == "RunError"
        assert state[1].startswith("the parameters of ranks [1] are not those of rank 0")
