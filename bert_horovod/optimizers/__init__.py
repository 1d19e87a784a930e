"""Update rules, schedules and the loss scale: arithmetic only, no communication and no files.

Each rule is a module with

    SLOTS: names of what the rule remembers per tensor; every slot starts as zeros of the parameter's shape
    update(x, g, slots, t, learning_rate, decay, settings) -> (new x, new slots)

A rule returns new values and assigns nothing. Norms are per tensor, a tensor being one of Hugging Face's.
"""

from types import ModuleType

import tensorflow as tf

from bert_horovod.optimizers import adamw, lamb, lans

_RULES = {"adamw": adamw, "lamb": lamb, "lans": lans}


def rule(name: str) -> ModuleType:
    """The module of the update rule `name` (`optimizer.name` of the recipe); raises ValueError if there is none."""
    if name not in _RULES:
        raise ValueError(f"optimizer.name = {name!r}: expected one of {', '.join(_RULES)}")
    return _RULES[name]


def decays(name: str) -> bool:
    """Whether weight decay applies to the parameter of this Hugging Face name: not to biases and LayerNorm."""
    return not name.endswith((".bias", "LayerNorm.weight"))


def uses_clipping(name: str) -> bool:
    """Whether gradients go through `clip_factor` before this rule; LANS normalises them itself."""
    return name != "lans"


def clip_factor(global_norm: tf.Tensor, max_grad_norm: float) -> tf.Tensor:
    """What all gradients are multiplied by, once, before the rule: 1 / max(1, global_norm / max_grad_norm).

    Args:
        global_norm: float32 scalar, L2 norm over the gradients of all tensors after averaging.
        max_grad_norm: the largest norm let through; 0 means no clipping.

    Returns:
        float32 scalar in (0, 1]; not finite, or 0, where the norm is not finite: such a step must be skipped.
    """
    if max_grad_norm == 0:
        return tf.constant(1.0, tf.float32)
    return 1.0 / tf.maximum(1.0, tf.cast(global_norm, tf.float32) / max_grad_norm)
