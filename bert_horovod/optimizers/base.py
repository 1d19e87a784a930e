"""The interface of an update rule: its slots by name and shape, and its arithmetic as functions. No TensorFlow."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bert_horovod.recipe.sections import Optimizer, Recipe

if TYPE_CHECKING:
    import tensorflow as tf

    Tensors = tuple[tf.Tensor, ...]
    Slots = dict[str, tf.Tensor]

Shape = tuple[int, ...]

# Slots by rule name. They stand here because memory estimates read them without importing TensorFlow.
SLOTS: dict[str, tuple[str, ...]] = {
    "adamw": ("m", "v"),
    "lamb": ("m", "v"),
    "lans": ("m", "v"),
    "sgd": (),
    "came": ("m", "v", "v_rows", "v_columns", "s_rows", "s_columns"),
    "merit": ("m", "v"),
}
# Further slots that an exchange keeps per tensor, equal on all ranks: by exchange.method.
EXCHANGE_SLOTS: dict[str, tuple[str, ...]] = {"onebit_lamb": ("v_fresh",)}


def _of_a_vector(shape: Shape) -> Shape | None:
    return shape if len(shape) == 1 else None


def _a_number_a_row(shape: Shape) -> Shape | None:
    return shape[:1] if len(shape) == 2 else None


def _a_number_a_column(shape: Shape) -> Shape | None:
    return shape[1:] if len(shape) == 2 else None


# Shapes of slots that differ from the parameter's: by rule and slot, a function of the parameter's shape. It returns
# None if a parameter of this shape has no such slot.
SLOT_SHAPES: dict[str, dict[str, Callable[[Shape], Shape | None]]] = {
    "came": {
        "v": _of_a_vector,
        "v_rows": _a_number_a_row,
        "v_columns": _a_number_a_column,
        "s_rows": _a_number_a_row,
        "s_columns": _a_number_a_column,
    }
}


def slot_shapes(recipe: Recipe, shapes: dict[str, Shape]) -> dict[str, dict[str, Shape]]:
    """Shapes of all slots of a run: the numbers that it keeps per tensor beside the parameters.

    Args:
        recipe: optimizer.name and exchange.method determine the slots.
        shapes: of the parameters, by name.

    Returns: by slot, in the order of the run's hashes, then by parameter; a slot may lack some parameters.
    """
    names = SLOTS[recipe.optimizer.name] + EXCHANGE_SLOTS.get(recipe.exchange.method, ())
    shape_rules = SLOT_SHAPES.get(recipe.optimizer.name, {})
    shapes_of = {
        slot: {name: shape_rules[slot](shape) if slot in shape_rules else shape for name, shape in shapes.items()}
        for slot in names
    }
    return {
        slot: {name: shape for name, shape in shapes_by_name.items() if shape is not None}
        for slot, shapes_by_name in shapes_of.items()
    }


def slot_numbers(recipe: Recipe, shapes: dict[str, Shape]) -> int:
    """How many numbers all slots hold; `shapes` are the parameters'."""
    return sum(
        math.prod(shape) for shapes_by_name in slot_shapes(recipe, shapes).values() for shape in shapes_by_name.values()
    )


def _rate_is_learning_rate(learning_rate: "tf.Tensor", norms: "Tensors", decay: bool, settings: Optimizer) -> "Tensors":
    return (learning_rate,)


@dataclass(frozen=True)
class Rule:
    """An update rule: x - sum over i of rates[i] * directions[i]; `applying.update` computes it.

    Functions get n tensors of one shape at once, [n, ...]. Norms and rates are per tensor; a tensor is a parameter of
    Hugging Face's model. `decay`: whether weight decay applies to these tensors; `settings`: the recipe's.
    """

    name: str  # optimizer.name of the recipe
    slots: tuple[str, ...]  # names of the rule's state per tensor; a slot starts as zeros; shapes: see SLOT_SHAPES
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
