"""The interface of an update rule: its slots by name and shape, and its arithmetic as functions."""

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

    Args:
        recipe: its optimizer and its exchange determine the slots.
        shapes: of the parameters, by name.

    Returns: by slot, in the order of the run's hashes, then by parameter; a slot may lack some parameters.
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


def _rate_is_learning_rate(learning_rate: "tf.Tensor", norms: "Tensors", decay: bool, settings: Optimizer) -> "Tensors":
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
    next_slots: "Callable[[tf.Tensor, Slots, Optimizer], Slots]"
    # (x, g, slots, t, decay, settings): the directions along which x moves, float32 of x's shape each; the slots are
    # the new ones, or with from_old_slots the old ones
    directions: "Callable[[tf.Tensor, tf.Tensor, Slots, tf.Tensor, bool, Optimizer], Tensors]"
    # (learning_rate, norms, decay, settings): how far x moves along each direction. If the rule is adaptive, norms are
    # [n] of x and of each direction, and rates may be [n]; else norms are () and rates float32 scalars. By default
    # there is one direction, and x moves along it by the learning rate
    rates: "Callable[[tf.Tensor, Tensors, bool, Optimizer], Tensors]" = _rate_is_learning_rate
    adaptive: bool = False  # rates depend on norms
    normalized: bool = False  # each tensor's gradient is first divided by its norm
    from_old_slots: bool = False  # directions get the slots before this gradient's update; not for an adaptive rule
    clips: bool = True  # gradients are clipped to optimizer.max_grad_norm before the rule
