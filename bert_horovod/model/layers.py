"""What a transformer is made of, as functions with gradients of their own.

Each keeps for backward only what its gradient reads, in the type that products are in, and leaves what lies between
two matrix products to one kernel, forward and backward. Arithmetic inside a kernel is float32.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from bert_horovod.model.dropout import DropoutState, dropped, keep_scale, kept, random_bytes
from bert_horovod.model.policy import ComputePolicy, kernel

REDUCTION_LANES = 32  # fastest of 8 to 64 on a CPU with AVX-512


@tf.custom_gradient
def dense(x: tf.Tensor, weight: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """x W^T + b, all of one dtype: [n, in], [out, in], [out] to [n, out]."""
    y = tf.nn.bias_add(tf.matmul(x, weight, transpose_b=True), bias)

    def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tf.matmul(dy, weight), tf.matmul(dy, x, transpose_a=True), column_sums(dy)

    return y, gradient


def column_sums(x: tf.Tensor) -> tf.Tensor:
    """Sums over the first axis, [n, c] to [c]: as a matrix product, which accumulates in float32 and is the fastest."""
    return tf.reshape(tf.matmul(tf.ones([1, x.shape[0]], x.dtype), x), [-1])


def gelu(x: tf.Tensor, approximate: bool, compute: ComputePolicy) -> tf.Tensor:
    """gelu, exact or in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415); keeps its argument alone."""

    @tf.custom_gradient
    def apply(x: tf.Tensor) -> tf.Tensor:
        y = kernel(_gelu, compute)(x, approximate)
        return y, lambda dy: kernel(_gelu_gradient, compute)(x, dy, approximate)

    return apply(x)


def layer_norm(
    x: tf.Tensor,
    weight: tf.Tensor,
    bias: tf.Tensor,
    epsilon: float,
    compute: ComputePolicy,
    branch: tf.Tensor | None = None,
    rate: float = 0.0,
    draws: tf.Tensor | None = None,
) -> tf.Tensor:
    """LayerNorm (Ba et al. 2016, arXiv 1607.06450) of x, or of x + dropout(branch), over the last axis.

    Args:
      x: [n, c].
      weight, bias: float32 [c].
      epsilon: added to the variance.
      compute: its dtype is the result's.
      branch: [n, c], where there is a residual connection.
      rate, draws: of the branch's dropout.

    Returns:
      [n, c].
    """

    @tf.custom_gradient
    def apply(x: tf.Tensor, weight: tf.Tensor, bias: tf.Tensor, *branch: tf.Tensor) -> tf.Tensor:
        y, normal, inverse = kernel(_norm, compute)(x, branch, draws, rate, weight, bias, epsilon, compute.dtype)

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
            dx, dbranch, scaled = kernel(_norm_gradient, compute)(
                dy, normal, inverse, weight, draws, rate, x.dtype, bool(branch)
            )
            sums = [tf.cast(column_sums(each), tf.float32) for each in (scaled, dy)]
            return dx, *sums, *dbranch

        return y, gradient

    return apply(x, weight, bias, *([] if branch is None else [branch]))


def split_heads(x: tf.Tensor, rows: int, parts: int, heads: int, compute: ComputePolicy) -> list[tf.Tensor]:
    """[rows * length, parts * hidden] to as many parts of [rows, heads, length, head size]."""

    @tf.custom_gradient
    def apply(x: tf.Tensor) -> list[tf.Tensor]:
        found = tf.unstack(kernel(_split_heads, compute)(x, rows, parts, heads))
        return found, lambda *gradients: tf.concat([merge_heads(gradient) for gradient in gradients], 1)

    return apply(x)


def merge_heads(x: tf.Tensor) -> tf.Tensor:
    """[..., rows, heads, length, head size] to [rows * length, hidden]."""
    *_, rows, heads, length, head_size = x.shape
    x = tf.transpose(tf.reshape(x, [rows, heads, length, head_size]), [0, 2, 1, 3])
    return tf.reshape(x, [rows * length, heads * head_size])


def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    bias: tf.Tensor,
    rate: float,
    site: int | tf.Tensor,
    state: DropoutState | None,
    compute: ComputePolicy,
) -> tf.Tensor:
    """softmax(Q K^T / sqrt(head size) + bias), dropout, times V (Vaswani et al. 2017, arXiv 1706.03762).

    Backward needs each probability and whether it was dropped: kept as one number, negative where it was. The sum in
    the softmax's gradient is that of output times its gradient (Dao et al. 2022, arXiv 2205.14135, B.2).

    Args:
      query: [rows, heads, queries, head size].
      key, value: [rows, heads, length, head size].
      bias: float32 [rows, 1, queries, length].
      rate, site, state: of the probabilities' dropout.
      compute: how; with `recompute` nothing but the arguments is kept.

    Returns:
      As query.
    """
    scale = 1 / math.sqrt(query.shape[-1])
    rate = 0.0 if state is None else rate

    def probabilities(query: tf.Tensor, key: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        scores = tf.matmul(query, key, transpose_b=True)  # (rows, heads, queries, length)
        draws = random_bytes(scores.shape, rate, site, state)
        return kernel(_softmax, compute)(scores, bias, draws, scale, rate)

    @tf.custom_gradient
    def apply(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        signed, weights = probabilities(query, key)
        context = tf.matmul(weights, value)

        def gradient(dcontext: tf.Tensor) -> tuple[tf.Tensor, ...]:
            found = signed
            if compute.recompute == "attention":
                with tf.control_dependencies([dcontext]):  # else the graph's optimizer keeps the forward's instead
                    found, _ = probabilities(tf.identity(query), tf.identity(key))
            dweights = tf.matmul(dcontext, value, transpose_b=True)
            dscores, weights = kernel(_softmax_gradient, compute)(found, dweights, context, dcontext, scale, rate)
            return (
                tf.matmul(dscores, key),
                tf.matmul(dscores, query, transpose_a=True),
                tf.matmul(weights, dcontext, transpose_a=True),
            )

        return context, gradient

    return apply(query, key, value)


def _gelu(x: tf.Tensor, approximate: bool) -> tf.Tensor:
    return tf.cast(tf.nn.gelu(tf.cast(x, tf.float32), approximate), x.dtype)


def _gelu_gradient(x: tf.Tensor, dy: tf.Tensor, approximate: bool) -> tf.Tensor:
    wide = tf.cast(x, tf.float32)
    if approximate:
        c, cubic = math.sqrt(2 / math.pi), 0.044715
        tanh = tf.tanh(c * (wide + cubic * wide * wide * wide))
        slope = 0.5 * (1 + tanh) + 0.5 * wide * (1 - tanh * tanh) * c * (1 + 3 * cubic * wide * wide)
    else:
        density = tf.exp(-0.5 * wide * wide) * (1 / math.sqrt(2 * math.pi))
        slope = 0.5 * (1 + tf.math.erf(wide * math.sqrt(0.5))) + wide * density
    return tf.cast(tf.cast(dy, tf.float32) * slope, x.dtype)


def _norm(
    x: tf.Tensor,
    branch: tuple[tf.Tensor, ...],
    draws: tf.Tensor | None,
    rate: float,
    weight: tf.Tensor,
    bias: tf.Tensor,
    epsilon: float,
    dtype: tf.DType,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    wide = tf.cast(x, tf.float32)
    for each in branch:
        wide += dropped(tf.cast(each, tf.float32), rate, draws)
    centred = wide - tf.reduce_mean(wide, -1, keepdims=True)
    inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + epsilon)
    normal = centred * inverse
    return tf.cast(normal * weight + bias, dtype), tf.cast(normal, dtype), inverse


def _norm_gradient(
    dy: tf.Tensor,
    normal: tf.Tensor,
    inverse: tf.Tensor,
    weight: tf.Tensor,
    draws: tf.Tensor | None,
    rate: float,
    dtype: tf.DType,
    branch: bool,
) -> tuple[tf.Tensor, tuple[tf.Tensor, ...], tf.Tensor]:
    dy, normal = tf.cast(dy, tf.float32), tf.cast(normal, tf.float32)
    scaled = dy * weight
    dx = scaled - tf.reduce_mean(scaled, -1, keepdims=True)
    dx = inverse * (dx - normal * tf.reduce_mean(scaled * normal, -1, keepdims=True))
    dbranch = (tf.cast(dropped(dx, rate, draws), dtype),) if branch else ()
    return tf.cast(dx, dtype), dbranch, tf.cast(dy * normal, dtype)


def _split_heads(x: tf.Tensor, rows: int, parts: int, heads: int) -> tf.Tensor:
    length, head_size = x.shape[0] // rows, x.shape[1] // (parts * heads)
    return tf.transpose(tf.reshape(x, [rows, length, parts, heads, head_size]), [2, 0, 3, 1, 4])


def _softmax(
    scores: tf.Tensor, bias: tf.Tensor, draws: tf.Tensor | None, scale: float, rate: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """The probabilities, negative where they are dropped, and what dropout leaves of them."""
    wide = tf.cast(scores, tf.float32) * scale + bias
    exponents = tf.exp(wide - _over_keys(tf.reduce_max, wide))
    probabilities = exponents * (1 / _over_keys(tf.reduce_sum, exponents))
    signed = probabilities if draws is None else tf.where(kept(rate, draws), probabilities, -probabilities)
    return tf.cast(signed, scores.dtype), tf.cast(dropped(probabilities, rate, draws), scores.dtype)


def _over_keys(reduce: Callable, x: tf.Tensor) -> tf.Tensor:
    """A reduction over the last axis, which stays: in two stages, as XLA vectorises the first alone on CPU."""
    if x.shape[-1] % REDUCTION_LANES == 0:
        x = reduce(tf.reshape(x, [*x.shape[:-1], -1, REDUCTION_LANES]), -2)
    return reduce(x, -1, keepdims=True)


def _softmax_gradient(
    signed: tf.Tensor, dweights: tf.Tensor, context: tf.Tensor, dcontext: tf.Tensor, scale: float, rate: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """The scores' gradient, and once more what dropout left of the probabilities."""
    total = tf.reduce_sum(tf.cast(context, tf.float32) * tf.cast(dcontext, tf.float32), -1, keepdims=True)
    probabilities = tf.cast(signed, tf.float32)
    keep = tf.cast(keep_scale(rate), tf.float32)
    dprobabilities = tf.where(probabilities > 0, tf.cast(dweights, tf.float32) * keep, 0.0)
    dscores = tf.abs(probabilities) * (dprobabilities - total) * scale
    return tf.cast(dscores, signed.dtype), tf.cast(tf.nn.relu(probabilities) * keep, signed.dtype)
