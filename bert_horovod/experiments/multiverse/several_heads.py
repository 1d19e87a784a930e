"""The loss of several heads.

All heads read the same features; each has its own loss, and a further loss makes the heads orthogonal. Training
eliminates weak heads: elimination.py. The paper's code is not public. The choices made here:

- The loss is the mean of the living heads' cross-entropies, so that the encoder's gradient is as large as for one head.
- `similarity` is the loss that makes heads orthogonal. It does not compare weight vectors of different classes.
- The first head is the one of BertForSequenceClassification. Only this head predicts, and it is never eliminated, so
  that a checkpoint gives the same answers in Hugging Face's class as here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bert_horovod.model.forward import Forward
from bert_horovod.model.layers import dense
from bert_horovod.model.parameters import CLASSIFIER, MORE_CLASSIFIERS, Shapes
from bert_horovod.model.shapes import dense_shapes
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.text_head import Classification, text_features

ALIVE = "alive_heads"  # in Progress.task, [heads]: 1, or 0 for a head that was eliminated


@dataclass(frozen=True)
class MultiverseClassification(Classification):
    """See tasks.base.Task; `heads` is more than 1, `orthogonality` the weight of `similarity` in the loss, in nats."""

    heads: int = 2
    orthogonality: float = 1.0

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of the sums of each head's losses, of eliminated heads too."""
        return tuple(f"head_{number}_loss" for number in range(self.heads))

    @property
    def sum_names(self) -> tuple[str, ...]:
        """The sums of Classification, for the first head; the sums in the loss; each head's sum of losses."""
        return (*Classification.sum_names, "heads_loss", "similarity", "heads", *self.head_names)

    def parameters(self, model: Model) -> Shapes:
        return super().parameters(model) | dense_shapes(
            MORE_CLASSIFIERS, (self.heads - 1) * len(self.labels), model.hidden_size
        )

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        x, alive, classes = text_features(forward, batch), batch[ALIVE], len(self.labels)
        weight, bias = (
            tf.concat(pair, 0)
            for pair in zip(forward.affine(CLASSIFIER), forward.affine(MORE_CLASSIFIERS), strict=True)
        )
        logits = tf.reshape(tf.cast(dense(x, weight, bias), tf.float32), [-1, self.heads, classes])
        labels, weights = (tf.reshape(batch[name], [-1]) for name in ("labels", "weights"))
        every = tf.repeat(labels[:, None], self.heads, axis=1)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(every, logits)  # (examples, heads)
        losses = tf.reduce_sum(losses * weights[:, None], 0)
        correct = tf.cast(tf.equal(tf.argmax(logits[:, 0], -1, tf.int32), labels), tf.float32)
        vectors = tf.reshape(tf.cast(weight, tf.float32), [self.heads, classes, -1])
        examples, living = tf.reduce_sum(weights), tf.reduce_sum(alive)
        # `similarity` and `heads` are no sums over examples: times `examples`, because the loss divides by examples.
        totals = {
            "label_loss": losses[0],
            "label_correct": tf.reduce_sum(correct * weights),
            "heads_loss": tf.reduce_sum(losses * alive) / living,
            "similarity": similarity(vectors, alive) * examples,
            "heads": living * examples,
        }
        return totals | dict(zip(self.head_names, tf.unstack(losses), strict=True))

    def loss(self, sums: dict[str, Any], counts: dict[str, Any]) -> Any:
        return (sums["heads_loss"] + self.orthogonality * sums["similarity"]) / counts["examples"]

    def metrics(self, sums: dict[str, float], counts: dict[str, float]) -> dict[str, float]:
        more = {name: sums[name] / counts["examples"] for name in ("heads_loss", "similarity", "heads")}
        return super().metrics(sums, counts) | more


def similarity(vectors: tf.Tensor, alive: tf.Tensor) -> tf.Tensor:
    """How far living heads are from orthogonal: float32 scalar from 0 (all are orthogonal) to 1.

    The mean of |cosine| between two living heads' weight vectors of the same class, over all pairs of living heads and
    all classes; 0 with one living head. `vectors`: float32 [heads, classes, hidden]; `alive`: 1 or 0, float32 [heads].
    """
    vectors = tf.math.l2_normalize(vectors, -1)
    cosines = tf.einsum("gch,kch->cgk", vectors, vectors)  # (classes, heads, heads)
    heads, classes = alive.shape[0], vectors.shape[1]
    above = tf.linalg.band_part(tf.ones([heads, heads]), 0, -1) - tf.eye(heads)
    pairs = alive[:, None] * alive[None] * above
    return tf.reduce_sum(tf.abs(cosines) * pairs) / (classes * tf.maximum(tf.reduce_sum(pairs), 1))
