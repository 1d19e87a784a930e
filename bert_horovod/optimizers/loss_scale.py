"""The dynamic loss scale of float16 training, on the host and on the device."""

from __future__ import annotations

from bert_horovod.recipe.settings import Numerics
from bert_horovod.runtime import lazy_tensorflow as tf

INITIAL = 32768.0
GROWTH_STEPS = 2000  # steps with finite gradients after which the scale doubles


def first_loss_scale(numerics: Numerics) -> float:
    """The loss scale of a run's first step; 1: it has none."""
    return INITIAL if numerics.precision == "float16" else 1.0


def next_loss_scale(scale: float, good_steps: int, finite: bool) -> tuple[float, int]:
    """The loss scale, and the count of good steps since it last changed, after one optimizer step.

    A step whose reduced gradients are not finite halves the scale, never below 1; GROWTH_STEPS good steps double it.
    """
    if not finite:
        return max(scale / 2, 1.0), 0
    if good_steps + 1 >= GROWTH_STEPS:
        return scale * 2, 0
    return scale, good_steps + 1


def next_loss_scale_on_device(
    scale: tf.Tensor, good_steps: tf.Tensor, finite: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """next_loss_scale in a graph: float32 scalars, and `finite` a bool one."""
    grows = good_steps + 1 >= GROWTH_STEPS
    grown = tf.where(grows, scale * 2, scale)
    good_steps = tf.where(finite & ~grows, good_steps + 1, 0.0)
    return tf.where(finite, grown, tf.maximum(scale / 2, 1.0)), good_steps
