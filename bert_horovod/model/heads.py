"""The heads of pre-training: the masked-token head, computed at masked positions only, and the sentence-pair head."""

from __future__ import annotations

from typing import NamedTuple

from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.encoder import SITES_PER_LAYER, encode, encode_at
from bert_horovod.model.forward import Forward, dropped, random_bytes
from bert_horovod.model.layers import dense, gelu, layer_norm, vocabulary_loss
from bert_horovod.model.lookups import joined, reshaped
from bert_horovod.model.parameters import (
    DECODER_BIAS,
    DECODER_WEIGHT_COPY,
    PAIR_CLASSIFIER,
    POOLER,
    TRANSFORM,
    TRANSFORM_NORM,
)
from bert_horovod.runtime import lazy_tensorflow as tf


def masked_token_logits(forward: Forward, hidden: tf.Tensor) -> tf.Tensor:
    """Scores of every vocabulary entry, float32 [n, vocabulary], from the last layer's output [n, hidden]."""
    x = transformed(forward, hidden)  # (n, width)
    logits = tf.matmul(x, forward.weights[DECODER_WEIGHT_COPY], transpose_b=True)  # (n, padded vocabulary)
    return (tf.cast(logits, tf.float32) + forward.weights[DECODER_BIAS])[:, : forward.model.vocab_size]


def masked_token_sums(
    forward: Forward, hidden: tf.Tensor, labels: tf.Tensor, counts: tf.Tensor, groups: tf.Tensor | None = None
) -> tuple[tf.Tensor, ...]:
    """Cross-entropy in nats and correct predictions, summed over masked tokens: float32 scalars.

    `hidden`: the last layer's output at the masked positions, [n, hidden]; `labels`: the original tokens, int32 [n];
    `counts`: 1 where a position counts, 0 at padding, float32 [n]; `groups`: as in vocabulary_loss.
    """
    decoder, bias = forward.weights[DECODER_WEIGHT_COPY], forward.weights[DECODER_BIAS]
    x = transformed(forward, hidden)  # (n, width)
    return vocabulary_loss(x, decoder, bias, labels, counts, forward.model.vocab_size, forward.policy, groups)


def pooled(forward: Forward, hidden: tf.Tensor) -> tf.Tensor:
    """Apply the pooler to the last layer's output at each [CLS]: [n, hidden] to [n, hidden]."""
    return tf.tanh(dense(hidden, *forward.affine(POOLER)))


def transformed(forward: Forward, hidden: tf.Tensor) -> tf.Tensor:
    """The layer before the masked-token head's output matrix: [n, hidden] to [n, width of the embeddings].

    In a family with a shared head it is before the classifier and the head of answers too.
    """
    model, policy = forward.model, forward.policy
    x = gelu(dense(hidden, *forward.affine(TRANSFORM)), model.head_act == "gelu_new", policy)
    return layer_norm(x, *forward.affine(TRANSFORM_NORM), model.layer_norm_eps, policy)


def text_features(forward: Forward, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """What the classifier of texts reads, [rows * examples, hidden]: the pooler's output at each [CLS].

    In a family with a shared head it is that head's layer over the mean of a text's positions or, with
    model.classifier_pooling = "cls", over [CLS]. Where only [CLS] is read, the last layer runs there only. `batch`: see
    batches.labelled.LabelledRows.assemble.
    """
    model = forward.model
    shared = family_of(model).shared_head
    if shared and model.classifier_pooling == "mean":
        hidden = encode(forward, batch)[-1]
        means = sequence_means(hidden, batch["sequence_ids"], batch["cls_positions"].shape[1])
        return transformed(forward, tf.cast(means, hidden.dtype))
    hidden = tf.reshape(encode_at(forward, batch, batch["cls_positions"]), [-1, model.hidden_size])
    return transformed(forward, hidden) if shared else pooled(forward, hidden)


def head_dropout(forward: Forward, x: tf.Tensor, shape: list[int]) -> tf.Tensor:
    """The dropout of a head's input, at the model's next free site; `shape`: x's, as [rows, ...]."""
    # The encoder's sites are 0 for the embeddings and SITES_PER_LAYER for each layer.
    rate, site = forward.model.hidden_dropout_prob, 1 + SITES_PER_LAYER * forward.model.num_hidden_layers
    return dropped(x, rate, random_bytes(shape, rate, site, forward.dropout))


def sequence_means(hidden: tf.Tensor, sequence_ids: tf.Tensor, sequences: int) -> tf.Tensor:
    """The mean of each sequence's positions, 0 without any: [rows, length, n] to float32 [rows * sequences, n]."""
    numbers = tf.range(1.0, sequences + 1.0)[:, None]  # (sequences, 1)
    mine = tf.cast(tf.cast(sequence_ids, tf.float32)[:, None] == numbers, tf.float32)  # (rows, sequences, length)
    sums = tf.matmul(mine, tf.cast(hidden, tf.float32))  # (rows, sequences, hidden)
    means = tf.math.divide_no_nan(sums, tf.reduce_sum(mine, -1, keepdims=True))
    return tf.reshape(means, [-1, hidden.shape[-1]])


def place_logits(forward: Forward, hidden: tf.Tensor, head: str) -> tf.Tensor:
    """The outputs of SPAN_HEAD or of words' CLASSIFIER, from the last layer's: [n, hidden] to float32 [n, outputs]."""
    if family_of(forward.model).shared_head:
        hidden = transformed(forward, hidden)
    return tf.cast(dense(hidden, *forward.affine(head)), tf.float32)


def pair_logits(forward: Forward, hidden: tf.Tensor) -> tf.Tensor:
    """Scores of a sentence pair's labels, 0 ("B continues A") and 1 ("it does not", or "they are swapped").

    The argument is the last layer's output at each [CLS], [n, hidden]; the result is float32 [n, 2].
    """
    return tf.cast(dense(pooled(forward, hidden), *forward.affine(PAIR_CLASSIFIER)), tf.float32)


def label_sums(
    logits: tf.Tensor, labels: tf.Tensor, counts: tf.Tensor, class_weights: tuple[float, ...] = ()
) -> tuple[tf.Tensor, tf.Tensor]:
    """Cross-entropy in nats and correct predictions over a small number of classes, summed: float32 scalars.

    `logits`: float32 [n, classes]; `labels`: int32 [n]; `counts`: 1 where a label counts, 0 at padding, float32 [n];
    `class_weights`: factors of the loss, by label; none: 1.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)  # (n,)
    if class_weights:
        losses *= tf.gather(tf.constant(class_weights, tf.float32), labels)
    # int64, because TensorFlow compares int32 on the host, where there is a GPU too.
    correct = tf.cast(tf.equal(tf.argmax(logits, -1), tf.cast(labels, tf.int64)), tf.float32)
    return tf.reduce_sum(losses * counts), tf.reduce_sum(correct * counts)


class Sums(NamedTuple):
    """Loss sums over a micro-batch, float32 scalars; a division by counts over the global batch makes them means."""

    mlm_loss: tf.Tensor  # nats, over masked tokens
    mlm_correct: tf.Tensor  # correct predictions
    nsp_loss: tf.Tensor  # nats, over sentence pairs, also with swapped sentences as label 1; 0 without the pair head
    nsp_correct: tf.Tensor


def loss_sums(forward: Forward, pairs: bool, batch: dict[str, tf.Tensor], stores: int = 0) -> tuple[tf.Tensor, ...]:
    """Loss sums of a micro-batch over its masked tokens and, with `pairs`, over its sentence pairs.

    The last layer is computed at the masked positions and at each [CLS] only, because the heads read no others.
    The result is Sums; with `stores`, the number of stores, the losses of each store's rows come behind its fields.
    """
    masked, starts = batch["masked_positions"], batch["sequence_starts"]
    hidden = encode_at(forward, batch, joined([masked, starts], 1) if pairs else masked)
    at_masks, at_starts = hidden[:, : masked.shape[1]], hidden[:, masked.shape[1] :]  # (rows, places, hidden)
    groups = None
    if stores:
        of_rows = tf.one_hot(batch["stores"], stores)[:, None]  # (rows, 1, stores)
        groups = _flat(tf.broadcast_to(of_rows, [*masked.shape, stores]))  # (rows * places, stores)
    mlm_loss, mlm_correct, *by_store = masked_token_sums(
        forward, _flat(at_masks), *(_flat(batch[name]) for name in ("masked_ids", "masked_weights")), groups
    )
    of_stores = tf.unstack(by_store[0]) if stores else ()
    if not pairs:
        sums = Sums(mlm_loss, mlm_correct, tf.zeros([]), tf.zeros([]))
        return (*sums, *of_stores) if stores else sums
    logits = pair_logits(forward, _flat(at_starts))  # (rows * starts, 2)
    labels = label_sums(logits, _flat(batch["next_sentence_labels"]), _flat(batch["sequence_weights"]))
    sums = Sums(mlm_loss, mlm_correct, *labels)
    return (*sums, *of_stores) if stores else sums


def _flat(x: tf.Tensor) -> tf.Tensor:
    """[rows, places, ...] to [rows * places, ...]."""
    shape = [-1, *x.shape[2:]]
    return reshaped(x, shape) if x.dtype == tf.int32 else tf.reshape(x, shape)
