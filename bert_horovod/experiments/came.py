"""CAME: Adafactor's second moment (one number a row and one a column) and a confidence in each update.

Luo et al. 2023 (arXiv 2307.02047), as in the authors' code. For a matrix [out, in] only the slot m has the matrix's
shape, so the state takes about half of Adam's memory.

    the caller has clipped g: g / max(1, ||g||_global / max_grad_norm); the authors' code has no such clipping
    g2 = g^2 + 1e-30
    matrices:  R = b2 R + (1 - b2) mean of g2's rows ;  C = b2 C + (1 - b2) mean of its columns       R [out], C [in]
               u_ij = g_ij / sqrt(R_i / mean(R)) / sqrt(C_j)
    vectors:   v = b2 v + (1 - b2) g2 ;  u = g / sqrt(v)
    u /= max(1, rms(u)) ;  m = b1 m + (1 - b1) u                                     rms = ||u|| / sqrt(numbers of u)
    matrices:  s = (u - m)^2 + 1e-16 ;  Rs, Cs = the same averages of s with b3
               d_ij = m_ij / sqrt(Rs_i / mean(Rs)) / sqrt(Cs_j)
    vectors:   d = m
    x -= lr (d + wd x)                                                               wd x is the old x's

There is no bias correction, and `optimizer.epsilon` is not used. Rs and Cs are averages that start at 0, so the update
of step t is 1 / sqrt(1 - b3^t) times too long: with b3 = 0.9999 it is 10 times too long at t = 100, 3.2 times at 1,000.
Short runs need a smaller `optimizer.beta_3`, such as 0.999, or a longer warm-up. Slots: R is `v_rows`, C `v_columns`,
Rs `s_rows`, Cs `s_columns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.optimizers.base import Rule, moving_average
from bert_horovod.recipe.fields import ReadIf, named, setting
from bert_horovod.recipe.sections import Optimizer, Shape
from bert_horovod.runtime import lazy_tensorflow as tf

_LEAST_SQUARE = 1e-30  # added to squared gradients; float32 can hold averages of it, float16 cannot
_LEAST_INSTABILITY = 1e-16  # added to squared differences of update and momentum
_MOST_RMS = 1.0  # largest root mean square of an update


def next_slots(g: tf.Tensor, slots: dict[str, tf.Tensor], settings: Optimizer) -> dict[str, tf.Tensor]:
    """See `base.Rule`."""
    square = tf.square(g) + _LEAST_SQUARE
    if len(g.shape) == 2:  # n vectors
        v = {"v": moving_average(slots["v"], square, settings.beta_2)}
        u = g * tf.math.rsqrt(v["v"])
        return {"m": moving_average(slots["m"], _limited(u), settings.beta_1)} | v
    v = _next_factors("v", square, slots, settings.beta_2)
    u = _limited(_scaled("v", g, v))
    m = moving_average(slots["m"], u, settings.beta_1)
    return {"m": m} | v | _next_factors("s", tf.square(u - m) + _LEAST_INSTABILITY, slots, settings.beta_3)


def directions(
    x: tf.Tensor, g: tf.Tensor, slots: dict[str, tf.Tensor], t: tf.Tensor, decay: bool, settings: Optimizer
) -> tuple[tf.Tensor, ...]:
    """See `base.Rule`."""
    direction = slots["m"] if len(x.shape) == 2 else _scaled("s", slots["m"], slots)
    return (direction + settings.weight_decay * x if decay else direction,)


def _next_factors(kind: str, square: tf.Tensor, slots: dict[str, tf.Tensor], beta: float) -> dict[str, tf.Tensor]:
    """The new slots of rows [n, out] and columns [n, in], given the squares [n, out, in] of this step."""
    means = {f"{kind}_rows": tf.reduce_mean(square, 2), f"{kind}_columns": tf.reduce_mean(square, 1)}
    return {slot: moving_average(slots[slot], mean, beta) for slot, mean in means.items()}


def _scaled(kind: str, numbers: tf.Tensor, slots: dict[str, tf.Tensor]) -> tf.Tensor:
    """Divide numbers [n, out, in] by the square root of rows_i * columns_j / mean(rows), Adafactor's second moment."""
    rows, columns = slots[f"{kind}_rows"], slots[f"{kind}_columns"]
    # Not rsqrt(rows / mean), because for a row without gradients the quotient may be too small for float32.
    of_rows = tf.math.rsqrt(rows) * tf.sqrt(tf.reduce_mean(rows, 1, keepdims=True))
    return numbers * of_rows[:, :, None] * tf.math.rsqrt(columns)[:, None, :]


def _limited(u: tf.Tensor) -> tf.Tensor:
    """Scale each of n tensors [n, ...] down to root mean square _MOST_RMS, if it is above."""
    rms = tf.sqrt(tf.reduce_mean(tf.square(u), range(1, len(u.shape)), keepdims=True))
    return u / tf.maximum(1.0, rms / _MOST_RMS)


@dataclass(frozen=True)
class Came(Optimizer):
    """Adafactor's second moment and a confidence in each update: half of Adam's memory."""

    name: str = named("came")
    epsilon: float = setting(1e-6, above=0, read_if=ReadIf("another rule", lambda _: False))  # not read by CAME
    # Decay of the instability; the paper uses 0.9995 to 0.99995. Runs of fewer than 20,000 steps need a smaller value,
    # such as 0.999: see docs/methods.md
    beta_3: float = setting(0.9999, minimum=0, below=1)

    slots: ClassVar[tuple[str, ...]] = ("m", "v", "v_rows", "v_columns", "s_rows", "s_columns")
    rule: ClassVar[Rule] = Rule("came", slots, next_slots, directions)

    def slot_shape(self, slot: str, name: str, shape: Shape) -> Shape | None:
        if slot == "m" or len(shape) == 1:
            return shape if slot in ("m", "v") else None
        if slot == "v":
            return None
        return shape[:1] if slot.endswith("rows") else shape[1:]  # a number a row, or a column
