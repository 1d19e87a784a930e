"""LAMB: Adam's direction with a trust ratio per tensor (You et al. 2020, arXiv 1904.00962).

    g divided by max(1, ||g||_global / max_grad_norm) beforehand, by the caller (`clip_factor`)
    m = b1 m + (1 - b1) g ;  v = b2 v + (1 - b2) g^2 ;  mh = m / (1 - b1^t) ;  vh = v / (1 - b2^t)
    u = mh / (sqrt(vh) + eps) + wd x ;  ratio = ||x|| / ||u||, or 1 where either norm is 0
    x -= lr ratio u

With `adapt = "decayed"` tensors without weight decay get no ratio, as in older TensorFlow code; with "all" every tensor
gets one, as in NVIDIA's.
"""

import tensorflow as tf

from bert_horovod.config import Optimizer
from bert_horovod.optimizers.moments import adam_direction, moving_average, trust_ratio

SLOTS = ("m", "v")


def update(
    x: tf.Tensor,
    g: tf.Tensor,
    slots: dict[str, tf.Tensor],
    t: tf.Tensor,
    learning_rate: tf.Tensor,
    decay: bool,
    settings: Optimizer,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """One step for one tensor.

    Args:
        x: float32, any shape: the parameter.
        g: float32, shape of x: its averaged gradient, already clipped (`clip_factor`) and free of the loss scale.
        slots: float32 of the shape of x, one for each of SLOTS: first and second moment.
        t: float32 scalar: 1 at the first update; skipped steps do not count.
        learning_rate: float32 scalar.
        decay: whether weight decay applies to this tensor (`decays`).
        settings: betas, epsilon, weight decay, adapt.

    Returns:
        The new parameter and the new slots.
    """
    m = moving_average(slots["m"], g, settings.beta_1)
    v = moving_average(slots["v"], tf.square(g), settings.beta_2)
    direction = adam_direction(m, v, settings.beta_1, settings.beta_2, settings.epsilon, t)
    if decay:
        direction += settings.weight_decay * x
    rate = learning_rate
    if decay or settings.adapt == "all":
        rate *= trust_ratio(tf.norm(x), tf.norm(direction))
    return x - rate * direction, {"m": m, "v": v}
