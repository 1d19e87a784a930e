"""Any number of labels of a long document: each label attends over all tokens of the document's windows.

The head of BERT-XML (Zhang et al. 2020, arXiv 2006.03685), for thousands of labels, with the output of CAML (Mullenbach
et al. 2018, arXiv 1802.05695). For a token's hidden state h_t and a label's vectors q, v and number b:

    a_t = softmax over the document's tokens of q . h_t,    logit = v . (sum over t of a_t h_t) + b

The sum over tokens is taken of v . h_t, so that no context vector of each label is kept.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from bert_horovod.costs.derived import HEAD, Product
from bert_horovod.model.architectures.families import class_name
from bert_horovod.model.encoder import encode
from bert_horovod.model.forward import Forward
from bert_horovod.model.heads import head_dropout
from bert_horovod.model.layers import dense
from bert_horovod.model.parameters import LABEL_OUTPUT, LABEL_QUERY, Shapes
from bert_horovod.model.shapes import encoder_shapes, label_attention_shapes
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.base import encoder_products
from bert_horovod.tasks.text_head import Multilabel

WINDOWS = "label_attention"  # our key of config.json: the windows of a document
ARCHITECTURE = "BertModel"  # transformers has no class with this head: it loads the encoder


@dataclass
class LabelAttention(Multilabel):
    """See tasks.base.Task and Multilabel; batches/examples/labelled.py makes the rows, of `windows` windows each."""

    windows: int = 1

    def parameters(self, model: Model) -> Shapes:
        return encoder_shapes(model, pooler=False) | label_attention_shapes(model, len(self.labels))

    def configuration(self, model: Model) -> dict[str, Any]:
        contents = super().configuration(model)
        return contents | {"architectures": [class_name(model, ARCHITECTURE)], WINDOWS: self.windows}

    def products(self, model: Model, rows: int, length: int, slots: dict[str, int]) -> list[Product]:
        rows *= self.windows
        head = Product(f"{HEAD}label attention", 1, 1, rows * length, 2 * len(self.labels), model.hidden_size)
        return [*encoder_products(model, rows, length), head]

    def outputs(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """`logits`, float32 [documents, 1, labels]."""
        dropout, hidden = forward.dropout, forward.model.hidden_size
        documents = batch["weights"].shape[0]
        of_windows = forward
        if dropout is not None:  # dropout masks are by row, and a document has several
            first_row = dropout.first_row * tf.constant(self.windows, tf.uint64)
            of_windows = dataclasses.replace(forward, dropout=dropout._replace(first_row=first_row))
        x = tf.reshape(encode(of_windows, batch)[-1], [documents, -1, hidden])  # (documents, tokens, hidden)
        x = head_dropout(forward, x, x.shape.as_list())
        real = tf.reshape(batch["sequence_ids"], [documents, -1])
        return {"logits": label_logits(forward, x, real)[:, None]}


def label_logits(forward: Forward, x: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """The head, float32 [documents, labels], over the hidden states of all tokens of each document.

    `x`: [documents, tokens, hidden]; `real`: int32 [documents, tokens], 0 at padding.
    """
    query = forward.weights[f"{LABEL_QUERY}.weight"]
    values, bias = forward.affine(LABEL_OUTPUT)
    tokens, hidden = x.shape[1:]
    both = dense(tf.reshape(x, [-1, hidden]), tf.concat([query, values], 0), tf.zeros([2 * query.shape[0]], x.dtype))
    scores, of_tokens = tf.split(tf.cast(tf.reshape(both, [-1, tokens, both.shape[-1]]), tf.float32), 2, axis=-1)
    scores += tf.where(tf.cast(real, tf.float32) > 0, 0.0, -1e9)[..., None]
    shares = tf.nn.softmax(scores, axis=1)  # (documents, tokens, labels)
    return tf.reduce_sum(shares * of_tokens, 1) + tf.cast(bias, tf.float32)
