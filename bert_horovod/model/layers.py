"""The operations of a transformer layer, each with its own gradient function.

An operation keeps for backward only the tensors that its gradient reads, in the dtype of matrix products. It computes
all elementwise work between two matrix products in one kernel (kernels.py), forward and backward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from bert_horovod.model import kernels
from bert_horovod.model.forward import ComputePolicy, DropoutState, dropped, keep, random_bytes
from bert_horovod.model.kernels import fused
from bert_horovod.runtime import lazy_tensorflow as tf


def dense(x: tf.Tensor, weight: tf.Tensor, bias: tf.Tensor | None = None) -> tf.Tensor:
    """x W^T + b, all of one dtype: x [n, in], weight [out, in], bias [out] or None to [n, out]."""
    return tf.matmul(x, weight, transpose_b=True) if bias is None else _with_bias(x, weight, bias)


@tf.custom_gradient
def _with_bias(x: tf.Tensor, weight: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    y = tf.nn.bias_add(tf.matmul(x, weight, transpose_b=True), bias)  # (n, out)

    def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tf.matmul(dy, weight), tf.matmul(dy, x, transpose_a=True), column_sums(dy)  # (n, in), (out, in), (out,)

    return y, gradient


@tf.custom_gradient
def rows_at(x: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """The rows of x [n, c] at `places`, int32 [m]: [m, c].

    Its gradient is dense, because TensorFlow would add a sparse one to that of the other readers of x as a long list.
    """
    return tf.gather(x, places), lambda dy: (tf.scatter_nd(places[:, None], dy, x.shape), None)


def column_sums(x: tf.Tensor) -> tf.Tensor:
    """Sums over the first axis, [n, c] to [c].

    A matrix product with ones, because it accumulates in float32 and is the fastest way.
    """
    return tf.reshape(tf.matmul(tf.ones([1, x.shape[0]], x.dtype), x), [-1])


def geglu(x: tf.Tensor, policy: ComputePolicy) -> tf.Tensor:
    """gelu(a) g of the two halves (a, g) of x (Shazeer 2020, arXiv 2002.05202), gelu exact: [n, 2 c] to [n, c].

    Backward keeps only the argument x.
    """

    @tf.custom_gradient
    def apply(x: tf.Tensor) -> tf.Tensor:
        x = keep(x)
        y = keep(fused(kernels.geglu, policy)(x))  # the next product's gradient reads it
        return y, lambda dy: fused(kernels.geglu_gradient, policy)(x, dy)

    return apply(x)


def rotated(x: tf.Tensor, cosines: tf.Tensor, sines: tf.Tensor, policy: ComputePolicy) -> tf.Tensor:
    """Rotary positions (Su et al. 2021, arXiv 2104.09864): turn each pair (x[j], x[j + head size / 2]) by its angle.

    `x`: queries or keys, [rows, heads, length, head size]; cosines and sines: float32 [rows, 1, length, head size / 2].
    """

    @tf.custom_gradient
    def apply(x: tf.Tensor) -> tf.Tensor:
        rotate = fused(kernels.rotate, policy)
        return rotate(x, cosines, sines), lambda dy: rotate(dy, cosines, -sines)

    return apply(x)


def add(x: tf.Tensor, branch: tf.Tensor, rate: float, draws: tf.Tensor | None, policy: ComputePolicy) -> tf.Tensor:
    """x + dropout(branch), [n, c] each; `rate`, `draws`: see `dropped`."""
    if draws is None:
        return x + branch
    draws = keep(draws)

    @tf.custom_gradient
    def apply(x: tf.Tensor, branch: tf.Tensor) -> tf.Tensor:
        drop = fused(dropped, policy)
        return fused(kernels.add, policy)(x, branch, rate, draws), lambda dy: (dy, drop(dy, rate, draws))

    return apply(x, branch)


def gelu(x: tf.Tensor, approximate: bool, policy: ComputePolicy) -> tf.Tensor:
    """gelu, exact or in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415); backward keeps only the argument x."""

    @tf.custom_gradient
    def apply(x: tf.Tensor) -> tf.Tensor:
        x = keep(x)
        y = keep(fused(kernels.gelu, policy)(x, approximate))  # the next product's gradient reads it
        return y, lambda dy: fused(kernels.gelu_gradient, policy)(x, dy, approximate)

    return apply(x)


def layer_norm(
    x: tf.Tensor,
    weight: tf.Tensor,
    bias: tf.Tensor | None,
    epsilon: float,
    policy: ComputePolicy,
    branch: tf.Tensor | None = None,
    rate: float = 0.0,
    draws: tf.Tensor | None = None,
) -> tf.Tensor:
    """LayerNorm (Ba et al. 2016, arXiv 1607.06450) of x [n, c], or of x + dropout(branch), over the last axis: [n, c].

    `weight`, `bias`: float32 [c]; the bias may be None. The policy's dtype is that of the result. `branch`: [n, c], the
    other summand of a residual connection; `rate`, `draws`: its dropout, see `dropped`.
    """
    draws, biased = None if draws is None else keep(draws), bias is not None

    @tf.custom_gradient
    def apply(x: tf.Tensor, weight: tf.Tensor, *others: tf.Tensor) -> tf.Tensor:
        bias, branch = (others[0], others[1:]) if biased else (None, others)
        y, normal, inverse = fused(kernels.norm, policy)(x, branch, draws, rate, weight, bias, epsilon, policy.dtype)
        normal, inverse = keep(normal), keep(inverse)

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
            dx, dbranch, scaled = fused(kernels.norm_gradient, policy)(
                dy, normal, inverse, weight, draws, rate, x.dtype, bool(branch)
            )
            sums = [tf.cast(column_sums(each), tf.float32) for each in (scaled, dy)[: 1 + biased]]
            return dx, *sums, *dbranch

        return y, gradient

    return apply(x, weight, *(each for each in (bias, branch) if each is not None))


def split_heads(x: tf.Tensor, rows: int, parts: int, heads: int, policy: ComputePolicy) -> list[tf.Tensor]:
    """Split [rows * length, parts * hidden] into `parts` tensors of [rows, heads, length, head size]."""

    @tf.custom_gradient
    def apply(x: tf.Tensor) -> list[tf.Tensor]:
        by_part = tf.unstack(fused(kernels.split_heads, policy)(x, rows, parts, heads))
        return by_part, lambda *gradients: tf.concat([merge_heads(gradient) for gradient in gradients], 1)

    return apply(x)


def merge_heads(x: tf.Tensor) -> tf.Tensor:
    """[..., rows, heads, length, head size] to [rows * length, hidden]; axes before the rows have size 1."""
    *_, rows, heads, length, head_size = x.shape
    x = tf.transpose(tf.reshape(x, [rows, heads, length, head_size]), [0, 2, 1, 3])  # (rows, length, heads, head_size)
    return tf.reshape(x, [rows * length, heads * head_size])  # (rows * length, hidden)


def attention_bias(query_ids: tf.Tensor, key_ids: tf.Tensor) -> tf.Tensor:
    """The bias that attention adds to its scores: 0 within a sequence, -1e9 across sequences.

    Float32 [rows, 1, queries, keys], from the sequence_ids of queries, [rows, queries], and of keys, [rows, keys].
    """
    # Floats, because TensorFlow compares int32 on the host, where there is a GPU too.
    query_ids, key_ids = tf.cast(query_ids, tf.float32), tf.cast(key_ids, tf.float32)
    same = tf.equal(query_ids[:, :, None], key_ids[:, None, :])  # (rows, queries, keys)
    return tf.where(same, 0.0, -1e9)[:, None]  # (rows, 1, queries, keys)


def sequences_at(batch: Mapping[str, tf.Tensor], positions: tf.Tensor | None) -> tf.Tensor:
    """The sequence_ids of a batch at these positions, int32 [rows, places]; None: all of them."""
    sequences = batch["sequence_ids"]
    return sequences if positions is None else tf.gather(sequences, positions, batch_dims=1)


def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    bias: tf.Tensor,
    rate: float,
    site: int | tf.Tensor,
    dropout: DropoutState | None,
    policy: ComputePolicy,
) -> tf.Tensor:
    """dropout(softmax(Q K^T / sqrt(head size) + bias)) V (Vaswani et al. 2017, arXiv 1706.03762), of the query's dtype.

    Backward needs each probability and whether dropout dropped it: one number holds both, with a minus sign if dropped.
    The row sum in the softmax's gradient equals sum(output * its gradient) (Dao et al. 2022, arXiv 2205.14135, B.2).
    With the policy's recompute = "attention" it computes the probabilities again, instead of keeping them.

    `query` and result: [rows, heads, queries, head size]; `key`, `value`: [rows, heads, length, head size]; `bias`:
    float32 [rows, 1, queries, length]; `rate`, `site`, `dropout`: see `random_bytes`.
    """
    scale = 1 / math.sqrt(query.shape[-1])
    rate = 0.0 if dropout is None else rate

    def probabilities(query: tf.Tensor, key: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        scores = tf.matmul(query, key, transpose_b=True)  # (rows, heads, queries, length)
        draws = random_bytes(scores.shape, rate, site, dropout)
        return fused(kernels.softmax, policy)(scores, bias, draws, scale, rate)

    @tf.custom_gradient
    def apply(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        query, key, value = keep(query), keep(key), keep(value)
        signed, weights = probabilities(query, key)  # (rows, heads, queries, length) both
        if policy.recompute != "attention":
            signed = keep(signed)
        context = keep(tf.matmul(weights, value))  # (rows, heads, queries, head_size)

        def gradient(dcontext: tf.Tensor) -> tuple[tf.Tensor, ...]:
            signed_probabilities = signed
            if policy.recompute == "attention":
                # Without control dependencies Grappler would merge these operations with those of forward and keep
                # forward's results in memory.
                with tf.control_dependencies([dcontext]):
                    signed_probabilities, _ = probabilities(tf.identity(query), tf.identity(key))
            dweights = tf.matmul(dcontext, value, transpose_b=True)  # (rows, heads, queries, length)
            dscores, weights = fused(kernels.softmax_gradient, policy)(
                signed_probabilities, dweights, context, dcontext, scale, rate
            )
            return (
                tf.matmul(dscores, key),  # (rows, heads, queries, head_size)
                tf.matmul(dscores, query, transpose_a=True),  # (rows, heads, length, head_size)
                tf.matmul(weights, dcontext, transpose_a=True),  # (rows, heads, length, head_size)
            )

        return context, gradient

    return apply(query, key, value)


def vocabulary_loss(
    x: tf.Tensor,
    decoder: tf.Tensor,
    bias: tf.Tensor,
    labels: tf.Tensor,
    counts: tf.Tensor,
    vocabulary: int,
    policy: ComputePolicy,
    groups: tf.Tensor | None = None,
) -> tuple[tf.Tensor, ...]:
    """Softmax cross-entropy with the word embeddings as output matrix; keeps logits in the policy's dtype only.

    Losses in nats and correct predictions, both summed with weights `counts`, 0 for padding: float32 scalars. `x`: [n,
    hidden]; `decoder`: [padded vocabulary, hidden], of x's dtype; `bias`: float32 [padded vocabulary]; `labels`: int32
    [n]; `counts`: float32 [n]. The decoder's rows beyond `vocabulary` are padding.
    `groups`: float32 [n, groups], 1 in a token's group; then the losses summed by group come third, float32 [groups],
    for people: they have no gradient.
    """

    @tf.custom_gradient
    def apply(x: tf.Tensor, decoder: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, ...]:
        logits = tf.matmul(x, decoder, transpose_b=True)  # (n, padded vocabulary)
        # (n,), (n,), (n, 1)
        losses, hits, normalizer = fused(kernels.cross_entropy, policy)(logits, bias, labels, vocabulary)

        def gradient(dloss: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, ...]:
            dlogits = fused(kernels.cross_entropy_gradient, policy)(
                logits, bias, labels, normalizer, counts * dloss, vocabulary
            )
            dbias = tf.cast(column_sums(dlogits), tf.float32)
            # (n, hidden), (padded vocabulary, hidden), (padded vocabulary,)
            return tf.matmul(dlogits, decoder), tf.matmul(dlogits, x, transpose_a=True), dbias

        sums: tuple[tf.Tensor, ...] = tf.reduce_sum(losses * counts), tf.reduce_sum(hits * counts)
        if groups is not None:
            sums += (tf.linalg.matvec(groups, losses * counts, transpose_a=True),)
        return sums, gradient

    return apply(x, decoder, bias)
