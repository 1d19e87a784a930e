"""Functions that several rules share: moving averages, their bias correction, and the trust ratio."""

from __future__ import annotations

from bert_horovod.recipe.sections import Optimizer
from bert_horovod.runtime import lazy_tensorflow as tf


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
