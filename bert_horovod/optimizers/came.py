"""CAME: Adafactor's second moment, a number a row and a number a column, with confidence in each update (2023).

Luo et al. 2023 (arXiv 2307.02047), as its authors' code has it. Of a matrix [out, in] only m is of its shape, so that
the state takes about half of Adam's memory.

    g divided by max(1, ||g||_global / max_grad_norm) beforehand, by the caller; the authors' code has no such clipping
    g2 = g^2 + 1e-30
    matrices:  R = b2 R + (1 - b2) mean of g2's rows ;  C = b2 C + (1 - b2) mean of its columns       R [out], C [in]
               u_ij = g_ij / sqrt(R_i / mean(R)) / sqrt(C_j)
    vectors:   v = b2 v + (1 - b2) g2 ;  u = g / sqrt(v)
    u /= max(1, rms(u)) ;  m = b1 m + (1 - b1) u                                     rms = ||u|| / sqrt(numbers of u)
    matrices:  s = (u - m)^2 + 1e-16 ;  Rs, Cs = the same averages of s with b3
               d_ij = m_ij / sqrt(Rs_i / mean(Rs)) / sqrt(Cs_j)
    vectors:   d = m
    x -= lr (d + wd x)                                                               wd x is the old x's

There is no bias correction, and `optimizer.epsilon` is not used. s is an average that begins at 0, so that step t is
1 / sqrt(1 - b3^t) times too long: with b3 = 0.9999 10 times at t = 100, 3.2 times at 1,000. Short runs need a smaller
`optimizer.beta_3`, such as 0.999, or a longer warm-up. Slots: R and C are `v_rows` and `v_columns`, Rs and Cs `s_rows`
and `s_columns`.
"""

import tensorflow as tf

from bert_horovod.optimizers.base import SLOTS, Rule
from bert_horovod.optimizers.moments import moving_average
from bert_horovod.recipe.sections import Optimizer

_LEAST_SQUARE = 1e-30  # is added to squared gradients; float32 holds its averages, float16 would not
_LEAST_INSTABILITY = 1e-16  # is added to squared differences of update and momentum
_MOST_RMS = 1.0  # of an update


def next_slots(g: tf.Tensor, slots: dict[str, tf.Tensor], settings: Optimizer) -> dict[str, tf.Tensor]:
    """See `base.Rule`."""
    square = tf.square(g) + _LEAST_SQUARE
    if len(g.shape) == 2:  # n vectors
        found = {"v": moving_average(slots["v"], square, settings.beta_2)}
        u = g * tf.math.rsqrt(found["v"])
        return {"m": moving_average(slots["m"], _limited(u), settings.beta_1)} | found
    found = _next_factors("v", square, slots, settings.beta_2)
    u = _limited(_scaled("v", g, found))
    m = moving_average(slots["m"], u, settings.beta_1)
    return {"m": m} | found | _next_factors("s", tf.square(u - m) + _LEAST_INSTABILITY, slots, settings.beta_3)


def directions(
    x: tf.Tensor, g: tf.Tensor, slots: dict[str, tf.Tensor], t: tf.Tensor, decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, ...]:
    """See `base.Rule`."""
    direction = slots["m"] if len(x.shape) == 2 else _scaled("s", slots["m"], slots)
    return (direction + settings.weight_decay * x if decay else direction,)


def rates(
    learning_rate: tf.Tensor, norms: tuple[tf.Tensor, ...], decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, ...]:
    """See `base.Rule`."""
    return (learning_rate,)


def _next_factors(kind: str, square: tf.Tensor, slots: dict[str, tf.Tensor], beta: float) -> dict[str, tf.Tensor]:
    """The slots of rows [n, out] and columns [n, in] after squares [n, out, in]."""
    means = {f"{kind}_rows": tf.reduce_mean(square, 2), f"{kind}_columns": tf.reduce_mean(square, 1)}
    return {slot: moving_average(slots[slot], mean, beta) for slot, mean in means.items()}


def _scaled(kind: str, numbers: tf.Tensor, slots: dict[str, tf.Tensor]) -> tf.Tensor:
    """Numbers [n, out, in] over the square root that the slots of rows and columns stand for."""
    rows, columns = slots[f"{kind}_rows"], slots[f"{kind}_columns"]
    # Not rsqrt(rows / mean): of a row without gradients that quotient may be too small for float32.
    of_rows = tf.math.rsqrt(rows) * tf.sqrt(tf.reduce_mean(rows, 1, keepdims=True))
    return numbers * of_rows[:, :, None] * tf.math.rsqrt(columns)[:, None, :]


def _limited(u: tf.Tensor) -> tf.Tensor:
    """Each of n tensors [n, ...] over its root mean square, if that is above _MOST_RMS."""
    rms = tf.sqrt(tf.reduce_mean(tf.square(u), range(1, len(u.shape)), keepdims=True))
    return u / tf.maximum(1.0, rms / _MOST_RMS)


RULE = Rule("came", SLOTS["came"], next_slots, directions, rates)
