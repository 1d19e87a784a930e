"""A model that grows: what is refused, by the name of the setting."""

import pytest

from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_table


def recipe(layers: int, *phases: dict, **sections: dict) -> Recipe:
    return recipe_from_table({"model": {"num_hidden_layers": layers}, "phase": list(phases), **sections})


def test_stacking_and_staged_training_are_read():
    stacking = recipe(8, {"num_hidden_layers": 2}, {"num_hidden_layers": 4, "grow": "stack"}, {"grow": "stack"})
    assert [stacking.in_phase(phase).model.num_hidden_layers for phase in stacking.phase] == [2, 4, 8]
    assert not stacking.whole
    assert recipe_from_table(recipe_to_table(stacking)) == stacking
    middle = stacking.of_phase(1)
    assert (middle.model.num_hidden_layers, middle.total_steps) == (4, stacking.phase[1].steps)
    assert recipe_from_table(recipe_to_table(middle)) == middle
    staged = recipe(3, {"num_hidden_layers": 2}, {"grow": "top", "trained_layers": 1}, {})
    assert staged.in_phase(staged.phase[2]) is staged
    assert not recipe(3, {"trained_layers": 1}).whole
    assert recipe(3, {"trained_layers": 3}, {"num_hidden_layers": 3}).whole


def test_the_phase_of_a_step_is_the_one_that_does_it():
    three = recipe(6, {"steps": 2}, {"steps": 1}, {"steps": 3})
    assert [three.phase_at(step) for step in range(8)] == [0, 0, 0, 1, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        (({}, {"num_hidden_layers": 3}), "phase.1.num_hidden_layers = 3: a model cannot shrink; expected at least"),
        (({"num_hidden_layers": 3},), "phase.0.num_hidden_layers = 3: the last phase .* model.num_hidden_layers = 6"),
        (({"num_hidden_layers": 8}, {}), "phase.1.num_hidden_layers = 6: a model cannot shrink"),
        (({"num_hidden_layers": 3}, {}), r"phase.1.num_hidden_layers = 6: .* expected phase.1.grow = 'stack' or"),
        (({"num_hidden_layers": 4}, {"grow": "stack"}), "phase.1.grow = 'stack' copies all 4 .* a multiple of 4"),
        (({"num_hidden_layers": 2}, {"grow": "top"}), "phase.1.grow = 'top' copies .* expected at most 4"),
        (({"grow": "stack"},), "phase.0.grow = 'stack': no layers are added, because the first phase"),
        (({}, {"grow": "top"}), "phase.1.grow = 'top': no layers are added, because phase.0 has 6 layers too"),
        (({"trained_layers": 7},), "phase.0.trained_layers = 7: the model has 6 layers in this phase"),
        (({"num_hidden_layers": 3, "trained_layers": 4}, {"grow": "stack"}), "phase.0.trained_layers = 4: .* 3 layers"),
        (({"end_learning_rate": 0.1},), "phase.0.end_learning_rate = 0.1: expected at most phase.0.learning_rate"),
    ],
)
def test_a_growth_that_cannot_be_is_refused(phases, expected):
    with pytest.raises(UserError, match=expected):
        recipe(6, *phases)


@pytest.mark.parametrize(
    "method",
    ["largest_chunks", "powersgd", "onebit_adam", "zero_one_adam", "parameters", "mt_dao", "dreamddp", "diloco"],
)
@pytest.mark.parametrize("phases", [({"num_hidden_layers": 3}, {"grow": "stack"}), ({"trained_layers": 3},)])
def test_exchanges_that_keep_something_of_each_tensor_are_refused(method, phases):
    with pytest.raises(UserError, match=f"exchange.method = {method!r}: .*expected 'gradients'"):
        recipe(6, *phases, exchange={"method": method})


@pytest.mark.parametrize(("name", "value"), [("shared_layers", 1), ("embedding_size", 64)])
@pytest.mark.parametrize("phases", [({"num_hidden_layers": 3}, {"grow": "stack"}), ({"trained_layers": 3},)])
def test_an_albert_is_refused(name, value, phases):
    with pytest.raises(UserError, match=f"model.{name} = {value}: an ALBERT trains as a whole; expected 0 with"):
        recipe_from_table({"model": {"num_hidden_layers": 6, name: value}, "phase": list(phases)})
