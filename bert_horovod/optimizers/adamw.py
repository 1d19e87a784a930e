"""AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101).

    m = b1 m + (1 - b1) g ;  v = b2 v + (1 - b2) g^2 ;  mh = m / (1 - b1^t) ;  vh = v / (1 - b2^t)
    x -= lr (mh / (sqrt(vh) + eps) + wd x)

Google's BERT leaves the bias correction out: mh = m, vh = v with `bias_correction = false`.
"""

import tensorflow as tf

from bert_horovod.config import Optimizer
from bert_horovod.optimizers.moments import adam_direction, moving_average

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
        settings: betas, epsilon, weight decay, bias correction.

    Returns:
        The new parameter and the new slots.
    """
    m = moving_average(slots["m"], g, settings.beta_1)
    v = moving_average(slots["v"], tf.square(g), settings.beta_2)
    if settings.bias_correction:
        direction = adam_direction(m, v, settings.beta_1, settings.beta_2, settings.epsilon, t)
    else:
        direction = m / (tf.sqrt(v) + settings.epsilon)
    if decay:
        direction += settings.weight_decay * x
    return x - learning_rate * direction, {"m": m, "v": v}
