"""The heads: masked tokens, computed at masked positions only, and the sentence pair's."""

from typing import NamedTuple

import tensorflow as tf

from bert_horovod.model.dropout import DropoutState
from bert_horovod.model.encoder import encode_at
from bert_horovod.model.layers import column_sums, dense, gelu, layer_norm
from bert_horovod.model.policy import ComputePolicy, kernel
from bert_horovod.model.weights import DECODER, DECODER_BIAS
from bert_horovod.recipe.sections import Model


class Sums(NamedTuple):
    """Sums over a micro-batch, float32 scalars; divided by global counts they become means."""

    mlm_loss: tf.Tensor  # nats, over masked tokens
    mlm_correct: tf.Tensor
    nsp_loss: tf.Tensor  # nats, over sentence pairs, whatever their rule; 0 without the pair head
    nsp_correct: tf.Tensor


def masked_token_logits(
    weights: dict[str, tf.Tensor], model: Model, hidden: tf.Tensor, compute: ComputePolicy
) -> tf.Tensor:
    """Scores of every vocabulary entry.

    Args:
      hidden: the last layer's output at the positions that are asked for, [n, hidden].

    Returns:
      float32 [n, vocabulary].
    """
    logits = tf.matmul(_transformed(weights, model, hidden, compute), weights[DECODER], transpose_b=True)
    return (tf.cast(logits, tf.float32) + weights[DECODER_BIAS])[:, : model.vocab_size]


def pair_logits(weights: dict[str, tf.Tensor], hidden: tf.Tensor) -> tf.Tensor:
    """Scores for "B continues A" (0) and "it does not" (1) at each [CLS]: [n, hidden] to float32 [n, 2]."""
    pooled = tf.tanh(dense(hidden, weights["bert.pooler.dense.weight"], weights["bert.pooler.dense.bias"]))
    logits = dense(pooled, weights["cls.seq_relationship.weight"], weights["cls.seq_relationship.bias"])
    return tf.cast(logits, tf.float32)


def loss_sums(
    weights: dict[str, tf.Tensor],
    model: Model,
    pairs: bool,
    batch: dict[str, tf.Tensor],
    compute: ComputePolicy,
    state: DropoutState | None = None,
) -> Sums:
    """Cross-entropies and hits, summed over the masked tokens and the sequences of a micro-batch.

    The last layer is computed at the masked positions and, with `pairs`, at each [CLS]; nothing else of its
    output is read.
    """
    masked, starts = batch["masked_positions"], batch["sequence_starts"]
    slots = masked.shape[1]
    hidden = encode_at(weights, model, batch, tf.concat([masked, starts], 1) if pairs else masked, compute, state)
    x = _transformed(weights, model, _flat(hidden[:, :slots]), compute)
    labels, counts = tf.reshape(batch["masked_ids"], [-1]), tf.reshape(batch["masked_weights"], [-1])
    mlm = _vocabulary_sums(x, weights[DECODER], weights[DECODER_BIAS], labels, counts, model.vocab_size, compute)
    if not pairs:
        return Sums(*mlm, tf.zeros([]), tf.zeros([]))
    logits = pair_logits(weights, _flat(hidden[:, slots:]))
    labels, counts = tf.reshape(batch["next_sentence_labels"], [-1]), tf.reshape(batch["sequence_weights"], [-1])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    hits = tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), labels), tf.float32)
    return Sums(*mlm, tf.reduce_sum(losses * counts), tf.reduce_sum(hits * counts))


def _flat(hidden: tf.Tensor) -> tf.Tensor:
    return tf.reshape(hidden, [-1, hidden.shape[-1]])


def _transformed(weights: dict[str, tf.Tensor], model: Model, hidden: tf.Tensor, compute: ComputePolicy) -> tf.Tensor:
    name = "cls.predictions.transform"
    x = dense(hidden, weights[f"{name}.dense.weight"], weights[f"{name}.dense.bias"])
    x = gelu(x, model.hidden_act == "gelu_new", compute)
    norm = (weights[f"{name}.LayerNorm.weight"], weights[f"{name}.LayerNorm.bias"])
    return layer_norm(x, *norm, model.layer_norm_eps, compute)


def _vocabulary_sums(
    x: tf.Tensor,
    decoder: tf.Tensor,
    bias: tf.Tensor,
    labels: tf.Tensor,
    counts: tf.Tensor,
    vocabulary: int,
    compute: ComputePolicy,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Summed cross-entropy and hits of x [n, hidden] against labels [n]; keeps logits in the compute dtype alone."""

    @tf.custom_gradient
    def apply(x: tf.Tensor, decoder: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = tf.matmul(x, decoder, transpose_b=True)
        losses, hits, normalizer = kernel(_cross_entropy, compute)(logits, bias, labels, vocabulary)

        def gradient(dloss: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, ...]:
            dlogits = kernel(_cross_entropy_gradient, compute)(
                logits, bias, labels, normalizer, counts * dloss, vocabulary
            )
            dbias = tf.cast(column_sums(dlogits), tf.float32)
            return tf.matmul(dlogits, decoder), tf.matmul(dlogits, x, transpose_a=True), dbias

        return (tf.reduce_sum(losses * counts), tf.reduce_sum(hits * counts)), gradient

    return apply(x, decoder, bias)


def _cross_entropy(
    logits: tf.Tensor, bias: tf.Tensor, labels: tf.Tensor, vocabulary: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Losses, hits (1 where the label is the first of the largest) and the logarithm of the softmax's sum; [n] each."""
    scores, entries = _scores(logits, bias, vocabulary)
    mine = tf.reduce_sum(tf.where(entries == labels[:, None], scores, 0.0), -1, keepdims=True)
    largest = tf.reduce_max(scores, -1, keepdims=True)
    normalizer = largest + tf.math.log(tf.reduce_sum(tf.exp(scores - largest), -1, keepdims=True))
    better = (scores > mine) | ((scores == mine) & (entries < labels[:, None]))
    hits = 1.0 - tf.reduce_max(tf.cast(better, tf.float32), -1)
    return (normalizer - mine)[:, 0], hits, normalizer


def _cross_entropy_gradient(
    logits: tf.Tensor, bias: tf.Tensor, labels: tf.Tensor, normalizer: tf.Tensor, scales: tf.Tensor, vocabulary: int
) -> tf.Tensor:
    scores, entries = _scores(logits, bias, vocabulary)
    label = tf.cast(entries == labels[:, None], tf.float32)
    return tf.cast((tf.exp(scores - normalizer) - label) * scales[:, None], logits.dtype)


def _scores(logits: tf.Tensor, bias: tf.Tensor, vocabulary: int) -> tuple[tf.Tensor, tf.Tensor]:
    entries = tf.range(logits.shape[1])[None]
    return tf.where(entries < vocabulary, tf.cast(logits, tf.float32) + bias, -1e9), entries
