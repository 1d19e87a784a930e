"""Extractive question answering: find the answer's start and end in the text, as Hugging Face's class does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bert_horovod.batches.examples.span_rows import STRIDE
from bert_horovod.costs.derived import HEAD, Product
from bert_horovod.model.architectures.families import class_name, family_of
from bert_horovod.model.encoder import encode
from bert_horovod.model.forward import Forward
from bert_horovod.model.heads import place_logits
from bert_horovod.model.parameters import SPAN_HEAD, Shapes
from bert_horovod.model.shapes import encoder_shapes, span_head_shapes
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.base import Means, encoder_products

ARCHITECTURE = "BertForQuestionAnswering"


@dataclass(frozen=True)
class Span(Means):
    """See tasks.base.Task; batches/examples/span_rows.py makes the rows.

    `packed`: several windows share a row, and the softmax is over a window's own tokens; without it the softmax is over
    all positions of the row, padding included, as in Google's run_squad.py. `may_abstain`: questions may have no
    answer, as in SQuAD 2.0. `stride`: tokens from the start of one window to the start of the next.
    """

    packed: bool = True
    may_abstain: bool = False
    stride: int = STRIDE
    counts = ("windows",)
    sum_names = ("start_loss", "end_loss", "span_correct")
    means: ClassVar = {"start_loss": "start_loss", "end_loss": "end_loss", "span_correct": "span_accuracy"}

    def parameters(self, model: Model) -> Shapes:
        return encoder_shapes(model, pooler=False) | span_head_shapes(model)

    def configuration(self, model: Model) -> dict[str, Any]:
        return {
            "architectures": [class_name(model, ARCHITECTURE)],
            "version_2_with_negative": self.may_abstain,
            "doc_stride": self.stride,
        }

    def products(self, model: Model, rows: int, length: int, slots: dict[str, int]) -> list[Product]:
        shared = [Product(f"{HEAD}transform", 1, 1, rows * length, model.hidden_size, model.hidden_size)]
        return [
            *encoder_products(model, rows, length),
            *(shared if family_of(model).shared_head else []),
            Product(f"{HEAD}span", 1, 1, rows * length, 2, model.hidden_size),
        ]

    def outputs(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        rows, length = batch["input_ids"].shape
        hidden = tf.reshape(encode(forward, batch)[-1], [-1, forward.model.hidden_size])
        logits = tf.reshape(place_logits(forward, hidden, SPAN_HEAD), [rows, length, 2])
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        outputs, weights = self.outputs(forward, batch), batch["weights"]
        losses, correct = [], weights
        for side in ("start", "end"):
            logits, labels = self._by_window(outputs[f"{side}_logits"], batch), batch[f"{side}_positions"]
            losses.append(tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits) * weights))
            correct *= tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), labels), tf.float32)
        return dict(zip(self.sum_names, (*losses, tf.reduce_sum(correct)), strict=True))

    def loss(self, sums: dict[str, Any], counts: dict[str, Any]) -> Any:
        return (sums["start_loss"] + sums["end_loss"]) / (2 * counts["windows"])

    def _by_window(self, logits: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Logits by window: [rows, length] to [rows, windows of a row, length], -1e9 outside the window's tokens.

        If not packed, a row is one window: [rows, 1, length].
        """
        logits = logits[:, None, :]
        if not self.packed:
            return logits
        windows = 1 + tf.range(batch["weights"].shape[1])
        return tf.where(tf.equal(batch["sequence_ids"][:, None, :], windows[:, None]), logits, -1e9)
