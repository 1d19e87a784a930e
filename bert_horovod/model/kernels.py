"""The elementwise operations and reductions between matrix products, and their gradients: one XLA kernel each.

Arithmetic inside a kernel is float32, whatever the dtype of arguments and results. layers.py calls the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bert_horovod.model.forward import ComputePolicy, dropped, keep_scale, kept
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import compiled

REDUCTION_LANES = 32  # fastest of 8 to 64 on a CPU with AVX-512


def fused(function: Callable, policy: ComputePolicy) -> Callable:
    """Compile the function to one XLA kernel; if the policy's xla is "off", return it unchanged.

    XLA is faster because TensorFlow's own operations read and write memory once for each term of a formula. The kernel
    has no gradient, because its caller has one: else a tape would make it return, and so write to memory, what
    TensorFlow's gradient of it reads, arguments too.
    """
    if policy.xla == "off":
        return function
    program = compiled(function)
    return lambda *arguments: program(*tf.nest.map_structure(_unrecorded, arguments))


def _unrecorded(argument: Any) -> Any:
    return tf.stop_gradient(argument) if tf.is_tensor(argument) else argument


def gelu(x: tf.Tensor, approximate: bool) -> tf.Tensor:
    """gelu of x, exact or in its tanh form."""
    return tf.cast(tf.nn.gelu(tf.cast(x, tf.float32), approximate), x.dtype)


def gelu_gradient(x: tf.Tensor, dy: tf.Tensor, approximate: bool) -> tf.Tensor:
    """The gradient of gelu's argument x, from `dy`, the gradient of its result."""
    wide = tf.cast(x, tf.float32)
    if approximate:
        c, cubic = math.sqrt(2 / math.pi), 0.044715
        tanh = tf.tanh(c * (wide + cubic * wide * wide * wide))
        slope = 0.5 * (1 + tanh) + 0.5 * wide * (1 - tanh * tanh) * c * (1 + 3 * cubic * wide * wide)
    else:
        slope = _gelu_slope(wide)
    return tf.cast(tf.cast(dy, tf.float32) * slope, x.dtype)


def _gelu_slope(wide: tf.Tensor) -> tf.Tensor:
    """The derivative of exact gelu, float32."""
    density = tf.exp(-0.5 * wide * wide) * (1 / math.sqrt(2 * math.pi))
    return 0.5 * (1 + tf.math.erf(wide * math.sqrt(0.5))) + wide * density


def geglu(x: tf.Tensor) -> tf.Tensor:
    """gelu(a) g of the two halves of x [n, 2 c]: [n, c]."""
    inner, gate = tf.split(tf.cast(x, tf.float32), 2, -1)
    return tf.cast(tf.nn.gelu(inner) * gate, x.dtype)


def geglu_gradient(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """The gradient of geglu's argument, [n, 2 c], from `dy` [n, c], the gradient of its result."""
    inner, gate = tf.split(tf.cast(x, tf.float32), 2, -1)
    dy = tf.cast(dy, tf.float32)
    return tf.cast(tf.concat([dy * gate * _gelu_slope(inner), dy * tf.nn.gelu(inner)], -1), x.dtype)


def rotate(x: tf.Tensor, cosines: tf.Tensor, sines: tf.Tensor) -> tf.Tensor:
    """See layers.rotated."""
    first, second = tf.split(tf.cast(x, tf.float32), 2, -1)
    return tf.cast(tf.concat([first * cosines - second * sines, second * cosines + first * sines], -1), x.dtype)


def add(x: tf.Tensor, branch: tf.Tensor, rate: float, draws: tf.Tensor) -> tf.Tensor:
    """x + dropout(branch), [n, c] each."""
    return tf.cast(tf.cast(x, tf.float32) + dropped(tf.cast(branch, tf.float32), rate, draws), x.dtype)


def norm(
    x: tf.Tensor,
    branch: tuple[tf.Tensor, ...],
    draws: tf.Tensor | None,
    rate: float,
    weight: tf.Tensor,
    bias: tf.Tensor | None,
    epsilon: float,
    dtype: tf.DType,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """LayerNorm of x + dropout(branch), and for backward: the normalised sum [n, c], 1 / standard deviation [n, 1].

    The normalised sum is the result before weight and bias. `branch` holds one tensor or none.
    """
    wide = tf.cast(x, tf.float32)
    for each in branch:
        wide += dropped(tf.cast(each, tf.float32), rate, draws)
    centred = wide - tf.reduce_mean(wide, -1, keepdims=True)  # (n, c)
    inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + epsilon)  # (n, 1)
    normal = centred * inverse
    y = normal * weight if bias is None else normal * weight + bias
    return tf.cast(y, dtype), tf.cast(normal, dtype), inverse


def norm_gradient(
    dy: tf.Tensor,
    normal: tf.Tensor,
    inverse: tf.Tensor,
    weight: tf.Tensor,
    draws: tf.Tensor | None,
    rate: float,
    dtype: tf.DType,
    branch: bool,
) -> tuple[tf.Tensor, tuple[tf.Tensor, ...], tf.Tensor]:
    """Gradients of x and of the branch (empty without a branch), and dy * normal.

    The column sums of dy * normal are the gradient of the LayerNorm's weight.
    """
    dy, normal = tf.cast(dy, tf.float32), tf.cast(normal, tf.float32)
    scaled = dy * weight
    dx = scaled - tf.reduce_mean(scaled, -1, keepdims=True)
    dx = inverse * (dx - normal * tf.reduce_mean(scaled * normal, -1, keepdims=True))
    dbranch = (tf.cast(dropped(dx, rate, draws), dtype),) if branch else ()
    return tf.cast(dx, dtype), dbranch, tf.cast(dy * normal, dtype)


def split_heads(x: tf.Tensor, rows: int, parts: int, heads: int) -> tf.Tensor:
    """[rows * length, parts * hidden] to [parts, rows, heads, length, head size]."""
    length, head_size = x.shape[0] // rows, x.shape[1] // (parts * heads)
    return tf.transpose(tf.reshape(x, [rows, length, parts, heads, head_size]), [2, 0, 3, 1, 4])


def softmax(
    scores: tf.Tensor, bias: tf.Tensor, draws: tf.Tensor | None, scale: float, rate: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """The probabilities, with a minus sign where dropout drops them, and the attention weights: dropout(probabilities).

    Arguments and results are [rows, heads, queries, length]; the bias is [rows, 1, queries, length].
    """
    wide = tf.cast(scores, tf.float32) * scale + bias
    exponents = tf.exp(wide - _over_keys(tf.reduce_max, wide))
    probabilities = exponents * (1 / _over_keys(tf.reduce_sum, exponents))
    signed = probabilities if draws is None else tf.where(kept(rate, draws), probabilities, -probabilities)
    return tf.cast(signed, scores.dtype), tf.cast(dropped(probabilities, rate, draws), scores.dtype)


def _over_keys(reduce: Callable, x: tf.Tensor) -> tf.Tensor:
    """Reduce over the last axis and keep it with size 1: [..., length] to [..., 1].

    In two stages, because on CPU XLA vectorises only the first: it reduces over the axis before the last.
    """
    if x.shape[-1] % REDUCTION_LANES == 0:
        x = reduce(tf.reshape(x, [*x.shape[:-1], -1, REDUCTION_LANES]), -2)  # (..., REDUCTION_LANES)
    return reduce(x, -1, keepdims=True)


def softmax_gradient(
    signed: tf.Tensor, dweights: tf.Tensor, context: tf.Tensor, dcontext: tf.Tensor, scale: float, rate: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradient of the scores, and the attention weights again, computed from `signed`: see `softmax`."""
    # (rows, heads, queries, 1)
    total = tf.reduce_sum(tf.cast(context, tf.float32) * tf.cast(dcontext, tf.float32), -1, keepdims=True)
    probabilities = tf.cast(signed, tf.float32)
    keep = tf.cast(keep_scale(rate), tf.float32)
    dprobabilities = tf.where(probabilities > 0, tf.cast(dweights, tf.float32) * keep, 0.0)
    dscores = tf.abs(probabilities) * (dprobabilities - total) * scale
    return tf.cast(dscores, signed.dtype), tf.cast(tf.nn.relu(probabilities) * keep, signed.dtype)


def cross_entropy(
    logits: tf.Tensor, bias: tf.Tensor, labels: tf.Tensor, vocabulary: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Losses [n], hits [n] and normalizer [n, 1] of logits [n, padded vocabulary].

    A hit is 1 where the label has the largest score, and is the first entry with this score; else 0. The normalizer is
    log(sum(exp(scores))); backward reads it.
    """
    scores, entries = _scores(logits, bias, vocabulary)
    # The label's score, (n, 1).
    mine = tf.reduce_sum(tf.where(entries == labels[:, None], scores, 0.0), -1, keepdims=True)
    largest = tf.reduce_max(scores, -1, keepdims=True)
    normalizer = largest + tf.math.log(tf.reduce_sum(tf.exp(scores - largest), -1, keepdims=True))
    better = (scores > mine) | ((scores == mine) & (entries < labels[:, None]))
    hits = 1.0 - tf.reduce_max(tf.cast(better, tf.float32), -1)
    return (normalizer - mine)[:, 0], hits, normalizer


def cross_entropy_gradient(
    logits: tf.Tensor, bias: tf.Tensor, labels: tf.Tensor, normalizer: tf.Tensor, scales: tf.Tensor, vocabulary: int
) -> tf.Tensor:
    """The gradient of the logits; `scales` [n] are the gradients of the losses."""
    scores, entries = _scores(logits, bias, vocabulary)
    label = tf.cast(entries == labels[:, None], tf.float32)
    return tf.cast((tf.exp(scores - normalizer) - label) * scales[:, None], logits.dtype)


def _scores(logits: tf.Tensor, bias: tf.Tensor, vocabulary: int) -> tuple[tf.Tensor, tf.Tensor]:
    entries = tf.range(logits.shape[1])[None]  # (1, padded vocabulary)
    return tf.where(entries < vocabulary, tf.cast(logits, tf.float32) + bias, -1e9), entries
