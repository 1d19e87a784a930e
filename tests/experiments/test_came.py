"""CAME: its slots, and the memory and bytes of them."""

import dataclasses
import math

import pytest

from bert_horovod.costs.exchanges import stages
from bert_horovod.costs.memory_estimate import memory_bytes
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.optimizers.base import slot_numbers, slot_shapes
from bert_horovod.recipe.sections import Model
from tests.costs.test_exchanges import LOCAL, RARE, STEPS
from tests.costs.test_memory_estimate import RECIPE, ROWS, WITHOUT_KERNELS
from tests.toys import optimizer_of, toy_recipe


def test_came_keeps_rows_and_columns_of_matrices_and_v_of_vectors():
    shapes = {"a.weight": (5, 3), "a.bias": (5,)}
    assert slot_shapes(toy_recipe(optimizer={"name": "came"}), shapes) == {
        "m": shapes,
        "v": {"a.bias": (5,)},
        "v_rows": {"a.weight": (5,)},
        "v_columns": {"a.weight": (3,)},
        "s_rows": {"a.weight": (5,)},
        "s_columns": {"a.weight": (3,)},
    }


@pytest.mark.parametrize(("layers", "hidden", "came_mib", "adam_mib"), [(12, 768, 422, 840), (24, 1024, 1288, 2565)])
def test_came_keeps_little_more_than_one_moment(layers, hidden, came_mib, adam_mib):
    model = Model(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=16, intermediate_size=4 * hidden)
    shapes = pretraining_shapes(model, True)
    numbers = sum(map(math.prod, shapes.values()))

    def of(name: str) -> tuple[int, int]:
        recipe = dataclasses.replace(RECIPE, model=model, optimizer=optimizer_of(name))
        memory = memory_bytes(recipe, shapes, ROWS, 1, WITHOUT_KERNELS)
        return 4 * slot_numbers(recipe, shapes), memory

    (came, came_memory), (adam, adam_memory) = of("came"), of("adamw")
    beside_m = sum(2 * sum(shape) if len(shape) == 2 else shape[0] for shape in shapes.values())
    assert came == 4 * (numbers + beside_m)
    assert (round(came / 2**20), round(adam / 2**20)) == (came_mib, adam_mib)
    assert adam_memory - came_memory == adam - came  # activations are the peak either way


def test_averages_of_slots_count_their_own_numbers():
    recipe = toy_recipe(execution=RARE, phase={"steps": STEPS}, optimizer={"name": "came"}, exchange=LOCAL)
    [stage] = stages(recipe, recipe.phase[0])
    shapes = pretraining_shapes(recipe.model, recipe.objective.pairs)
    parameters = sum(map(math.prod, shapes.values()))
    factors = sum(2 * sum(shape) if len(shape) == 2 else shape[0] for shape in shapes.values())
    assert stage.after == pytest.approx((2 * parameters + factors) / parameters / 4)  # parameters, m, and factors or v
