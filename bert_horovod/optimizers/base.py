"""What an update rule is: the names of its slots, and its arithmetic as functions. Imports no TensorFlow."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bert_horovod.recipe.sections import Optimizer, Recipe

if TYPE_CHECKING:
    import tensorflow as tf

    Tensors = tuple[tf.Tensor, ...]
    Slots = dict[str, tf.Tensor]

# Slots of each rule by its name, here because estimates of memory need them without TensorFlow.
SLOTS: dict[str, tuple[str, ...]] = {"adamw": ("m", "v"), "lamb": ("m", "v"), "lans": ("m", "v"), "sgd": ()}
# What an exchange keeps beside them per tensor, equal on all ranks: by exchange.method.
EXCHANGE_SLOTS: dict[str, tuple[str, ...]] = {"onebit_lamb": ("v_fresh",)}


def state_slots(recipe: Recipe) -> tuple[str, ...]:
    """The names of all that a run keeps per tensor beside the parameters, in the order of its hashes."""
    return SLOTS[recipe.optimizer.name] + EXCHANGE_SLOTS.get(recipe.exchange.method, ())


@dataclass(frozen=True)
class Rule:
    """An update rule: x - sum over i of rates[i] directions[i]; `applying.update` computes it.

    Functions get n tensors of one shape at once, [n, ...]; norms and rates are per tensor, a tensor being one of
    Hugging Face's. `decay` says whether weight decay applies to these tensors, `settings` are the recipe's.
    """

    name: str  # optimizer.name of the recipe
    slots: tuple[str, ...]  # what the rule remembers per tensor; each starts as zeros of the parameter's shape
    # (g, slots, settings): the slots after the gradient g; elementwise, float32 of g's shape each
    next_slots: "Callable[[tf.Tensor, Slots, Optimizer], Slots]"
    # (x, g, new slots, or old ones, t, decay, settings): what x moves along; elementwise, float32 of x's shape each
    directions: "Callable[[tf.Tensor, tf.Tensor, Slots, tf.Tensor, bool, Optimizer], Tensors]"
    # (learning_rate, norms, decay, settings): how far x moves along each direction, float32 scalars, or [n] where the
    # rule is adaptive; norms: [n] of x and of each direction, or () where it is not
    rates: "Callable[[tf.Tensor, Tensors, bool, Optimizer], Tensors]"
    adaptive: bool = False  # rates depend on norms
    normalized: bool = False  # each tensor's gradient is first divided by its norm
    from_old_slots: bool = False  # directions get the slots of before the gradient; not with adaptive
    clips: bool = True  # gradients are clipped to optimizer.max_grad_norm before the rule
