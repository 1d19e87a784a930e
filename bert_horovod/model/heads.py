"""The heads: masked tokens, computed at masked positions only, and the sentence pair's."""

from typing import NamedTuple

import tensorflow as tf

from bert_horovod.config import Model
from bert_horovod.model.bert import activation, dense, layer_norm


class Sums(NamedTuple):
    """Sums over a micro-batch, float32 scalars; divided by global counts they become means."""

    mlm_loss: tf.Tensor  # nats, over masked tokens
    mlm_correct: tf.Tensor
    nsp_loss: tf.Tensor  # nats, over sentence pairs, whatever their rule; 0 without the pair head
    nsp_correct: tf.Tensor


def masked_token_logits(
    parameters: dict[str, tf.Tensor], model: Model, hidden: tf.Tensor, positions: tf.Tensor
) -> tf.Tensor:
    """Scores of every vocabulary entry at some positions of each row.

    Args:
      hidden: the last layer's output [rows, length, hidden].
      positions: int32 [rows, slots].

    Returns:
      float32 [rows, slots, vocabulary].
    """
    x = _gather_positions(hidden, positions)
    x = activation(model, dense(parameters, "cls.predictions.transform.dense", x))
    x = layer_norm(parameters, "cls.predictions.transform", x, model.layer_norm_eps)
    embeddings = tf.cast(parameters["bert.embeddings.word_embeddings.weight"], x.dtype)  # tied with the input's
    flat = tf.matmul(tf.reshape(x, [-1, model.hidden_size]), embeddings, transpose_b=True)
    logits = tf.cast(flat, tf.float32) + parameters["cls.predictions.bias"]
    return tf.reshape(logits, [-1, positions.shape[1], model.vocab_size])


def next_sentence_logits(parameters: dict[str, tf.Tensor], hidden: tf.Tensor, starts: tf.Tensor) -> tf.Tensor:
    """Scores for "B continues A" (0) and "it does not" (1) at each [CLS]: float32 [rows, sequences, 2]."""
    pooled = tf.tanh(dense(parameters, "bert.pooler.dense", _gather_positions(hidden, starts)))
    return tf.cast(dense(parameters, "cls.seq_relationship", pooled), tf.float32)


def loss_sums(
    parameters: dict[str, tf.Tensor], model: Model, next_sentence: bool, hidden: tf.Tensor, batch: dict[str, tf.Tensor]
) -> Sums:
    """Cross-entropies and hits, summed over the masked tokens and the sequences of a micro-batch."""
    logits = masked_token_logits(parameters, model, hidden, batch["masked_positions"])
    mlm = _weighted_sums(logits, batch["masked_ids"], batch["masked_weights"])
    if not next_sentence:
        return Sums(*mlm, tf.zeros([]), tf.zeros([]))
    logits = next_sentence_logits(parameters, hidden, batch["sequence_starts"])
    return Sums(*mlm, *_weighted_sums(logits, batch["next_sentence_labels"], batch["sequence_weights"]))


def _gather_positions(hidden: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    gathered = tf.gather(hidden, positions, batch_dims=1)
    return tf.ensure_shape(gathered, [None, positions.shape[1], hidden.shape[2]])


def _weighted_sums(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    hits = tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), labels), tf.float32)
    return tf.reduce_sum(losses * weights), tf.reduce_sum(hits * weights)
