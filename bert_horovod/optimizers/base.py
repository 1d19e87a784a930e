"""The interface of an update rule, slots and arithmetic as functions, and what several rules share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from bert_horovod.recipe.sections import Optimizer, Recipe, Shape
from bert_horovod.runtime import lazy_tensorflow as tf

Tensors = tuple["tf.Tensor", ...]
Slots = dict[str, "tf.Tensor"]


def optimizer_slot_shapes(recipe: Recipe, shapes: dict[str, Shape]) -> dict[str, dict[str, Shape]]:
    """Shapes of the optimizer's slots by slot, then by parameter; `shapes` are the parameters'.

    A slot may lack some parameters.
    """
    return _without_none(
        {
            slot: {name: recipe.optimizer.slot_shape(slot, name, shape) for name, shape in shapes.items()}
            for slot in recipe.optimizer.slots
        }
    )


def slot_shapes(recipe: Recipe, shapes: dict[str, Shape]) -> dict[str, dict[str, Shape]]:
    """Shapes of the slots that are equal on all ranks: numbers that a run keeps per tensor beside the parameters.

    By slot, in the order of the run's hashes, then by parameter; a slot may lack some parameters.
    """
    own = recipe.exchange.trains_copies  # then the optimizer's slots are in each rank's copy
    of_optimizer = {} if own else optimizer_slot_shapes(recipe, shapes)
    exchange = recipe.exchange
    return of_optimizer | _without_none(
        {
            slot: {name: exchange.slot_shape(slot, name, shape) for name, shape in shapes.items()}
            for slot in exchange.slots
        }
    )


def _without_none(shapes_by_slot: dict[str, dict[str, Shape | None]]) -> dict[str, dict[str, Shape]]:
    return {
        slot: {name: shape for name, shape in shapes.items() if shape is not None}
        for slot, shapes in shapes_by_slot.items()
    }


def slot_numbers(recipe: Recipe, shapes: dict[str, Shape]) -> int:
    """How many numbers all slots of a rank hold; `shapes` are the parameters'."""
    slots = optimizer_slot_shapes(recipe, shapes) | slot_shapes(recipe, shapes)
    return sum(math.prod(shape) for shapes_by_name in slots.values() for shape in shapes_by_name.values())


def _rate_is_learning_rate(learning_rate: tf.Tensor, norms: Tensors, decay: bool, settings: Optimizer) -> Tensors:
    return (learning_rate,)


@dataclass(frozen=True)
class Rule:
    """An update rule: x - sum over i of rates[i] * directions[i]; `applying.update` computes it.

    Functions get n tensors of one shape at once, [n, ...]. Norms and rates are per tensor; a tensor is a parameter of
    Hugging Face's model. `decay`: whether weight decay applies to these tensors; `settings`: the recipe's.
    """

    name: str  # for people
    slots: tuple[str, ...]  # names of the rule's state per tensor; a slot starts as zeros
    # (g, slots, settings): the slots after the gradient g, float32 [n, ...] of their shapes; one that stays is left out
    next_slots: Callable[[tf.Tensor, Slots, Optimizer], Slots]
    # (x, g, slots, t, decay, settings): the directions along which x moves, float32 of x's shape each; the slots are
    # the new ones, or with from_old_slots the old ones
    directions: Callable[[tf.Tensor, tf.Tensor, Slots, tf.Tensor, bool, Optimizer], Tensors]
    # (learning_rate, norms, decay, settings): how far x moves along each direction. If the rule is adaptive, norms are
    # [n] of x and of each direction, and rates may be [n]; else norms are () and rates float32 scalars. By default
    # there is one direction, and x moves along it by the learning rate
    rates: Callable[[tf.Tensor, Tensors, bool, Optimizer], Tensors] = _rate_is_learning_rate
    adaptive: bool = False  # rates depend on norms
    normalized: bool = False  # each tensor's gradient is first divided by its norm
    from_old_slots: bool = False  # directions get the slots before this gradient's update; not for an adaptive rule
    clips: bool = True  # gradients are clipped to optimizer.max_grad_norm before the rule


def next_moments(g: tf.Tensor, slots: dict[str, tf.Tensor], settings: Optimizer) -> dict[str, tf.Tensor]:
    """First and second moment, m and v, after the gradient g."""
    return {
        "m": moving_average(slots["m"], g, settings.beta_1),
        "v": moving_average(slots["v"], tf.square(g), settings.beta_2),
    }


def moving_average(old: tf.Tensor, new: tf.Tensor, beta: float) -> tf.Tensor:
    """beta old + (1 - beta) new, computed as old + (1 - beta) (new - old), because float32 cannot hold beta exactly."""
    return old + (1.0 - beta) * (new - old)


def bias_corrected(average: tf.Tensor, beta: float, t: tf.Tensor) -> tf.Tensor:
    """average / (1 - beta^t) for the float32 scalar t = 1, 2, ...

    1 - beta^t is computed in float64, because in float32 1 - 0.999^t has lost four digits at t = 1.
    """
    correction = 1.0 - tf.pow(tf.constant(beta, tf.float64), tf.cast(t, tf.float64))
    return average / tf.cast(correction, average.dtype)


def adam_direction(slots: dict[str, tf.Tensor], settings: Optimizer, t: tf.Tensor) -> tf.Tensor:
    """m_hat / (sqrt(v_hat) + epsilon), both moments bias-corrected."""
    v = bias_corrected(slots["v"], settings.beta_2, t)
    return bias_corrected(slots["m"], settings.beta_1, t) / (tf.sqrt(v) + settings.epsilon)


def trust_ratio(x_norm: tf.Tensor, direction_norm: tf.Tensor) -> tf.Tensor:
    """x_norm / direction_norm, or 1 where either is 0; float32 scalars."""
    both_positive = tf.logical_and(x_norm > 0, direction_norm > 0)
    return tf.where(both_positive, tf.math.divide_no_nan(x_norm, direction_norm), 1.0)
