"""The memory estimate: differences that are known exactly."""

import dataclasses
import math

from bert_horovod.costs.memory_estimate import memory_bytes
from bert_horovod.model.parameters import pretraining_shapes
from bert_horovod.recipe.loading import recipe_from_table
from bert_horovod.recipe.sections import Optimizer

RECIPE = recipe_from_table({"execution": {"micro_batch": 64}, "numerics": {"precision": "bfloat16"}})
PARAMETERS = sum(math.prod(shape) for shape in pretraining_shapes(RECIPE.model, True).values())


def estimate(name: str) -> int:
    recipe = dataclasses.replace(RECIPE, optimizer=Optimizer(name=name))
    return memory_bytes(recipe, PARAMETERS, 128, 19, 1, 1, 1, gpu=True)


def test_slots_are_what_rules_differ_by():
    assert estimate("adamw") == estimate("lamb") == estimate("lans")
    assert estimate("adamw") - estimate("sgd") == 2 * 4 * PARAMETERS  # m and v; activations are the peak either way


def test_the_int8_wire_keeps_what_it_owes_on_each_rank():
    def of(world_size: int, wire: str, error_feedback: bool = True) -> int:
        numerics = dataclasses.replace(RECIPE.numerics, wire=wire)
        exchange = dataclasses.replace(RECIPE.exchange, error_feedback=error_feedback)
        recipe = dataclasses.replace(RECIPE, numerics=numerics, exchange=exchange)
        return memory_bytes(recipe, PARAMETERS, 128, 19, 1, 1, world_size, gpu=True)

    assert of(4, "int8") - of(4, "float16") == 4 * PARAMETERS * (1 + 1 / 4)
    assert of(4, "int8", error_feedback=False) == of(4, "float16")
    assert of(1, "int8") == of(1, "float32")
