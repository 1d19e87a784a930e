"""The norm that clips gives equal bits on every rank, whatever the timing; updates, group by group and all at once."""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.exchange.base import UpdateInputs
from bert_horovod.exchange.updater import Updater
from bert_horovod.model.weights import CastWeights
from bert_horovod.optimizers import applying
from bert_horovod.optimizers.base import slot_shapes
from tests.toys import more_rows, optimizer_of, recipe_of

SHAPES = {"table": (40, 6), "a": (7, 3), "b": (7, 3), "bias": (5,), "d": (11,)}


def updater(fused: bool, at_once: bool = False, optimizer: str = "sgd", dtype: tf.DType = tf.float32) -> Updater:
    random = np.random.default_rng(0)
    parameters = {name: tf.Variable(random.standard_normal(shape).astype("f")) for name, shape in SHAPES.items()}
    recipe = recipe_of(optimizer=optimizer_of(optimizer))
    slots = {
        slot: {name: tf.Variable(tf.zeros(shape)) for name, shape in shapes.items()}
        for slot, shapes in slot_shapes(recipe, SHAPES).items()
    }
    return Updater(parameters, slots, CastWeights(parameters, dtype), recipe.optimizer, fused, at_once)


def values(one: Updater) -> dict[str, np.ndarray]:
    """Parameters and cast weights."""
    cast = {f"cast {name}": tf.cast(tensor, tf.float32) for name, tensor in one.cast.values(one.parameters).items()}
    return {name: tensor.numpy() for name, tensor in {**one.parameters, **cast}.items()}


def steps(one: Updater, finite: list[bool] | None = None) -> dict[str, np.ndarray]:
    """The values after steps with gradients of their own; `finite`: of each step, decided on the device."""

    def step(gradients: dict[str, tf.Tensor], update: tf.Tensor, is_finite: tf.Tensor) -> None:
        grouped = one.grouped(gradients)
        inputs = UpdateInputs(tf.constant(1e-2), update)
        if finite is None:
            one.apply(grouped, one.norm(grouped), inputs)
        else:
            one.apply_if(is_finite, grouped, one.norm(grouped), inputs)

    graph = tf.function(step, autograph=False)
    random, update = np.random.default_rng(2), 0
    for is_finite in finite or [True, True]:
        gradients = {name: random.standard_normal(shape).astype("f") for name, shape in SHAPES.items()}
        if not is_finite:
            gradients = {name: gradient * np.float32(np.nan) for name, gradient in gradients.items()}
        graph(gradients, tf.constant(update + 1.0), tf.constant(is_finite))
        update += is_finite
    return values(one)


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "lans", *more_rows("rows.RULE_RUNS")])
def test_all_at_once_updates_as_group_by_group(optimizer, monkeypatch):
    for dtype in (tf.float32, tf.bfloat16):
        apart = steps(updater(True, False, optimizer, dtype))
        with monkeypatch.context() as patched:
            if dtype == tf.bfloat16:  # norms from sums of rows, as on a GPU
                patched.setattr(applying, "has_gpu", lambda: True)
            together = steps(updater(True, True, optimizer, dtype))
        for name, tensor in apart.items():
            # A cast number next to a border may fall on its other side.
            np.testing.assert_allclose(together[name], tensor, rtol=1e-5 if dtype == tf.float32 else 1e-2, atol=1e-6)


def test_a_step_that_is_not_finite_changes_nothing_where_the_device_decides():
    one = updater(True, True, "adamw", tf.bfloat16)
    before = values(one)
    after = steps(one, [False])
    assert all(np.array_equal(after[name], before[name]) for name in before)
    # Were a slot not as it was, this would not be what fresh slots give.
    fresh = steps(updater(True, True, "adamw", tf.bfloat16), [True, True])
    again = steps(one, [True, True])
    assert all(np.array_equal(again[name], fresh[name]) for name in fresh)
    assert any(not np.array_equal(again[name], before[name]) for name in before)


def test_the_norm_is_that_of_all_gradients_and_no_sum_in_it_depends_on_timing():
    gradients = {name: np.random.default_rng(1).standard_normal(shape).astype("f") for name, shape in SHAPES.items()}
    exact = np.sqrt(sum(np.square(gradient.astype("d")).sum() for gradient in gradients.values()))
    for fused, at_once in ((False, False), (True, False), (True, True)):
        one = updater(fused, at_once)
        norm = tf.function(lambda values, one=one: one.norm(one.grouped(values)), autograph=False)
        tensors = {name: tf.constant(gradient) for name, gradient in gradients.items()}
        np.testing.assert_allclose(norm(tensors).numpy(), exact, rtol=1e-6)
        operations = norm.get_concrete_function(tensors).graph.get_operations()
        # AddN begins with whichever term's memory it may overwrite; of the squares each has its own.
        assert not [each.name for each in operations if each.type == "AddN" and each.outputs[0].shape.rank == 0]
