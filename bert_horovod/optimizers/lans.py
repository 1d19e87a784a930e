"""LANS: LAMB with normalised gradients and Nesterov's momentum (Zheng et al. 2020, arXiv 2006.13484).

    g~ = g / (||g|| + eps), or g where the norm is 0
    m = b1 m + (1 - b1) g~ ;  v = b2 v + (1 - b2) g~^2 ;  mh = m / (1 - b1^t) ;  vh = v / (1 - b2^t)
    den = sqrt(vh) + eps ;  r = mh / den + wd x ;  c = g~ / den + wd x
    x -= lr (b1 ||x|| / ||r|| r + (1 - b1) ||x|| / ||c|| c)       a ratio is 1 where either norm is 0

Both decay terms use the old x. The gradients need no clipping, since their scale cancels.
"""

import tensorflow as tf

from bert_horovod.config import Optimizer
from bert_horovod.optimizers.moments import bias_corrected, moving_average, trust_ratio

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
        g: float32, shape of x: its averaged gradient at any positive scale. The scale cancels only as far as the norm
            is well above epsilon and its square is within float32's range.
        slots: float32 of the shape of x, one for each of SLOTS: first and second moment of the normalised gradient.
        t: float32 scalar: 1 at the first update; skipped steps do not count.
        learning_rate: float32 scalar.
        decay: whether weight decay applies to this tensor (`decays`).
        settings: betas, epsilon, weight decay.

    Returns:
        The new parameter and the new slots.
    """
    g_norm = tf.norm(g)
    g = tf.where(g_norm > 0, g / (g_norm + settings.epsilon), g)
    m = moving_average(slots["m"], g, settings.beta_1)
    v = moving_average(slots["v"], tf.square(g), settings.beta_2)

    denominator = tf.sqrt(bias_corrected(v, settings.beta_2, t)) + settings.epsilon
    momentum_part = bias_corrected(m, settings.beta_1, t) / denominator
    gradient_part = g / denominator
    if decay:
        momentum_part += settings.weight_decay * x
        gradient_part += settings.weight_decay * x

    x_norm = tf.norm(x)
    momentum_rate = learning_rate * settings.beta_1 * trust_ratio(x_norm, tf.norm(momentum_part))
    gradient_rate = learning_rate * (1.0 - settings.beta_1) * trust_ratio(x_norm, tf.norm(gradient_part))
    return x - momentum_rate * momentum_part - gradient_rate * gradient_part, {"m": m, "v": v}
