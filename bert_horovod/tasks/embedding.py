"""Sentence vectors: the mean of a text's states, and losses that compare the vectors of a whole global batch.

Multiple negatives ranking (InfoNCE with in-batch negatives): with vectors a_i, p_i of the anchors and their positives,
and all positives and hard negatives of the global batch as candidates c,

    L = - mean_i log( exp(20 cos(a_i, p_i)) / sum_c exp(20 cos(a_i, c)) )

A candidate with the text of p_i, or of the positive of an anchor with the text of a_i, is no negative of a_i. With
scores y of pairs it is CoSENT (Su 2022, https://kexue.fm/archives/8847), L = log(1 + sum over y_i < y_j of
exp(20 (cos_i - cos_j))). Matryoshka (Kusupati et al. 2022, arXiv 2205.13147): the sum of L over the vectors' first
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bert_horovod.costs.derived import Product
from bert_horovod.model.architectures.families import class_name
from bert_horovod.model.encoder import encode, encode_at
from bert_horovod.model.forward import Forward
from bert_horovod.model.heads import sequence_means
from bert_horovod.model.parameters import SENTENCE_VECTORS, Shapes
from bert_horovod.model.shapes import encoder_shapes
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.base import Means, encoder_products

ARCHITECTURE = "BertModel"
POOLINGS = ("mean", "first")
SCALE = 20.0


@dataclass(frozen=True)
class Embedding(Means):
    """See tasks.base.ContrastiveTask; batches/examples/embedding_rows.py makes the rows, of T texts an item.

    `text_columns`: the texts' column names in files; `pooling`: "mean" of a text's states, or its "first"; `prompts`:
    what stands before each column's texts; `lengths`: Matryoshka's, descending, the whole width first; `max_length`:
    positions of a text, at most; `symmetric`: each positive is also to find its anchor; `scored`: pairs have scores;
    `lowercase`: texts are put in lower case before the tokenizer does its own.
    """

    text_columns: tuple[str, ...]
    pooling: str = "mean"
    prompts: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    max_length: int = 512
    symmetric: bool = False
    scored: bool = False
    lowercase: bool = False
    counts = ("pairs",)
    sum_names = ("pair_loss",)
    means: ClassVar = {"pair_loss": "pair_loss"}

    @property
    def compared(self) -> tuple[str, ...]:
        return ("targets", "weights") if self.scored else ("text_numbers", "weights")

    def parameters(self, model: Model) -> Shapes:
        return encoder_shapes(model, pooler=False)

    def configuration(self, model: Model) -> dict[str, Any]:
        return {
            "architectures": [class_name(model, ARCHITECTURE)],
            "text_columns": list(self.text_columns),
            SENTENCE_VECTORS: {
                "pooling": self.pooling,
                "prompts": dict(zip(self.text_columns, self.prompts, strict=False)),
                "matryoshka_lengths": list(self.lengths),
                "max_seq_length": self.max_length,
                **({"lowercase": True} if self.lowercase else {}),
            },
        }

    def products(self, model: Model, rows: int, length: int, slots: dict[str, int]) -> list[Product]:
        return encoder_products(model, rows, length)

    def outputs(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """`vectors`, float32 [rows, items, texts, hidden], not normalised; 0 or any number where there is no item."""
        positions = batch["cls_positions"]  # (rows, items, texts)
        rows, items, texts = positions.shape
        if self.pooling == "first":
            vectors = encode_at(forward, batch, tf.reshape(positions, [rows, items * texts]))
        else:
            vectors = sequence_means(encode(forward, batch)[-1], batch["sequence_ids"], items * texts)
        return {"vectors": tf.reshape(tf.cast(vectors, tf.float32), [rows, items, texts, -1])}

    def vectors(self, forward: Forward, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        return self.outputs(forward, batch)["vectors"]

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        vectors = self.vectors(forward, batch)
        if "vector_gradients" not in batch:  # the micro-batch is the global batch
            own = {name: batch[name] for name in self.compared} | {"vectors": vectors}
            return {"pair_loss": self.batch_loss(own, own)}
        surrogate = tf.reduce_sum(vectors * batch["vector_gradients"])
        return {"pair_loss": batch["first_loss"] + surrogate - tf.stop_gradient(surrogate)}

    def batch_loss(self, own: dict[str, tf.Tensor], everyone: dict[str, tf.Tensor]) -> tf.Tensor:
        lengths = self.lengths or (own["vectors"].shape[-1],)
        loss = _score_loss if self.scored else self._ranking_loss
        return tf.add_n([loss(_first(own, length), _first(everyone, length)) for length in lengths])

    def _ranking_loss(self, own: dict[str, tf.Tensor], everyone: dict[str, tf.Tensor]) -> tf.Tensor:
        anchors, positives = (own["vectors"][:, :, place] for place in (0, 1))
        numbers, of_all, vectors = own["text_numbers"], everyone["text_numbers"], everyone["vectors"]
        right = SCALE * tf.reduce_sum(anchors * positives, -1)  # (rows, items)
        pairs = tf.reshape(of_all[:, :, :2], [-1, 2])
        losses = _ranked(anchors, right, numbers[:, :, 0], vectors[:, :, 1:], of_all[:, :, 1:], pairs)
        if self.symmetric:
            back = _ranked(positives, right, numbers[:, :, 1], vectors[:, :, :1], of_all[:, :, :1], pairs[:, ::-1])
            losses = (losses + back) / 2
        return tf.reduce_sum(losses * own["weights"])


def _ranked(
    x: tf.Tensor, right: tf.Tensor, number: tf.Tensor, others: tf.Tensor, numbers: tf.Tensor, pairs: tf.Tensor
) -> tf.Tensor:
    """Cross-entropy of the right candidate among the others that no pair has beside x's text, float32 [rows, items].

    `x`, `number`: vectors, [rows, items, hidden], and their texts' numbers, int32 [rows, items]; `right`: similarity to
    the right candidate, [rows, items]; `others`: candidates, [..., hidden], and `numbers`, int32 [...]; 0: no
    candidate; `pairs`: numbers of texts that belong together, int32 [pairs, 2].
    """
    others, numbers = tf.reshape(others, [-1, others.shape[-1]]), tf.reshape(numbers, [-1])
    logits = SCALE * tf.einsum("rih,ch->ric", x, others)
    of_x, of_other = (tf.cast(number[..., None] == pairs[:, 0], tf.float32), pairs[:, 1:] == numbers)
    belong = tf.einsum("rip,pc->ric", of_x, tf.cast(of_other, tf.float32)) > 0
    taken = (numbers > 0) & ~belong
    logits = tf.concat([right[..., None], tf.where(taken, logits, -1e9)], -1)
    return tf.reduce_logsumexp(logits, -1) - right


def _score_loss(own: dict[str, tf.Tensor], everyone: dict[str, tf.Tensor]) -> tf.Tensor:
    """CoSENT of the whole batch, times the number of own pairs: summed over ranks, times the number of all."""
    cosines, targets, weights = (
        tf.reshape(each, [-1])
        for each in (
            tf.reduce_sum(everyone["vectors"][:, :, 0] * everyone["vectors"][:, :, 1], -1),
            everyone["targets"],
            everyone["weights"],
        )
    )
    wrong = (targets[:, None] < targets) & (weights[:, None] * weights > 0)
    differences = tf.where(wrong, SCALE * (cosines[:, None] - cosines), -1e9)
    loss = tf.reduce_logsumexp(tf.concat([[0.0], tf.reshape(differences, [-1])], 0))
    return loss * tf.reduce_sum(own["weights"])


def _first(arrays: dict[str, tf.Tensor], length: int) -> dict[str, tf.Tensor]:
    return arrays | {"vectors": normalised(arrays["vectors"][..., :length])}


def normalised(vectors: tf.Tensor) -> tf.Tensor:
    """Vectors of length 1; 0 stays 0."""
    return tf.math.l2_normalize(vectors, -1, epsilon=1e-24)
