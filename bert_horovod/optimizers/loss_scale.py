"""The dynamic loss scale of float16 training."""

from __future__ import annotations

from bert_horovod.runtime import lazy_tensorflow as tf


def next_loss_scale(scale: float, good_steps: int, finite: bool, growth_steps: int) -> tuple[float, int]:
    """The loss scale after one optimizer step.

    Args:
        scale: the factor of this step's loss: a power of two, at least 1.
        good_steps: steps with finite gradients since the scale last changed.
        finite: whether this step's reduced gradients were finite on all ranks.
        growth_steps: good steps after which the scale doubles.

    Returns:
        The scale and the count of good steps for the next step. A non-finite step halves the scale, never below 1.
    """
    if not finite:
        return max(scale / 2, 1.0), 0
    if good_steps + 1 >= growth_steps:
        return scale * 2, 0
    return scale, good_steps + 1


def next_loss_scale_on_device(
    scale: tf.Tensor, good_steps: tf.Tensor, finite: tf.Tensor, growth_steps: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """next_loss_scale in a graph: float32 scalars, and `finite` a bool one."""
    grows = good_steps + 1 >= growth_steps
    grown = tf.where(grows, scale * 2, scale)
    good_steps = tf.where(finite & ~grows, good_steps + 1, 0.0)
    return tf.where(finite, grown, tf.maximum(scale / 2, 1.0)), good_steps
