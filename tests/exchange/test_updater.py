"""The norm that clips: equal gradients must give equal bits on every rank, whatever the timing."""

import numpy as np
import tensorflow as tf

from bert_horovod.exchange.updater import Updater
from bert_horovod.model.weights import CastWeights
from bert_horovod.recipe.sections import Optimizer

SHAPES = {"table": (40, 6), "a": (7, 3), "b": (7, 3), "bias": (5,), "d": (11,)}


def updater(fused: bool) -> Updater:
    parameters = {name: tf.Variable(tf.zeros(shape), trainable=False) for name, shape in SHAPES.items()}
    return Updater(parameters, {}, CastWeights(parameters, tf.float32), Optimizer(name="sgd"), fused)


def test_the_norm_is_that_of_all_gradients_and_no_sum_in_it_depends_on_timing():
    gradients = {name: np.random.default_rng(1).standard_normal(shape).astype("f") for name, shape in SHAPES.items()}
    exact = np.sqrt(sum(np.square(gradient.astype("d")).sum() for gradient in gradients.values()))
    for fused in (False, True):
        one = updater(fused)
        norm = tf.function(lambda values, one=one: one.norm(one.grouped(values)), autograph=False)
        tensors = {name: tf.constant(gradient) for name, gradient in gradients.items()}
        np.testing.assert_allclose(norm(tensors).numpy(), exact, rtol=1e-6)
        operations = norm.get_concrete_function(tensors).graph.get_operations()
        # AddN begins with whichever term's memory it may overwrite; of the squares each has its own.
        assert not [each.name for each in operations if each.type == "AddN" and each.outputs[0].shape.rank == 0]
