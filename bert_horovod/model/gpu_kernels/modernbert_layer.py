"""A ModernBERT's layer, forward and backward, with Triton kernels; the arithmetic of modernbert_layers.py.

GeGLU forward and the last addition are XLA's: it makes one kernel of the one, and cuBLAS adds the other to a product.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from bert_horovod.model import kernels
from bert_horovod.model.architectures.modernbert_layers import turn
from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from bert_horovod.model.forward import DropoutState, keep_scale, threshold
from bert_horovod.model.gpu_kernels import catalogue
from bert_horovod.model.gpu_kernels.call import call, kernel_rows
from bert_horovod.model.parameters import (
    ATTENTION_NORM,
    ATTENTION_OUTPUT,
    INTERMEDIATE,
    OUTPUT,
    OUTPUT_NORM,
    QUERY_KEY_VALUE,
)
from bert_horovod.runtime import lazy_tensorflow as tf

HEAD_SIZES = catalogue.ROTARY_HEAD_SIZES
INNER_DIVISOR = catalogue.GEGLU_COLUMNS  # it must divide the intermediate size


class Rows(NamedTuple):
    """What the kernels read beside a layer's input."""

    sequences: tf.Tensor  # int32 [rows, length]: sequence_ids, 0 is padding
    reach: tf.Tensor  # int32 [rows, length / BLOCK, 2]: see reach_of
    cosines: tf.Tensor  # float32 [rows, length, head size / 2]: of rotary angles
    sines: tf.Tensor
    window: int  # places on each side to which a position attends; the length where it attends to all


class Kept(NamedTuple):
    """What forward keeps for backward beside its arguments; n = rows * length; of the policy's dtype unless said."""

    normal: tf.Tensor | None  # [n, hidden], LayerNorm of the input; None in the first layer, which has none
    mean: tf.Tensor | None  # float32 [n], of the input
    inverse: tf.Tensor | None  # float32 [n], 1 / standard deviation
    qkv: tf.Tensor  # [n, 3 hidden], not turned
    context: tf.Tensor  # [n, hidden]
    normalizer: tf.Tensor  # float32 [rows, heads, length]
    attended: tf.Tensor  # [n, hidden], input and attention's output added
    attended_normal: tf.Tensor  # [n, hidden], its LayerNorm
    attended_mean: tf.Tensor  # float32 [n]
    attended_inverse: tf.Tensor  # float32 [n]
    intermediate: tf.Tensor  # [n, 2 intermediate]
    inner: tf.Tensor  # [n, intermediate], geglu's result


def surroundings(model: ModernBertModel, batch: dict[str, tf.Tensor]) -> list[Rows]:
    """The rows of each layer; see Family.surroundings."""
    packed, length = kernel_rows(batch["sequence_ids"]), batch["sequence_ids"].shape[1]
    kinds = {}
    for layer in range(min(model.num_hidden_layers, model.global_attn_every_n_layers + 1)):
        fully = model.attends_fully(layer)
        angles = turn(model, batch["position_ids"], model.theta(layer))
        kinds[fully] = Rows(
            *packed, *(tf.squeeze(each, 1) for each in angles), length if fully else min(model.reach, length)
        )
    return [kinds[model.attends_fully(layer)] for layer in range(model.num_hidden_layers)]


class KernelLayer:
    """The kernels of a layer for one model, shape and micro-batch; its methods run inside compiled functions.

    Args: as of bert_layer.KernelLayer.
    """

    def __init__(
        self, model: ModernBertModel, dropout: DropoutState, rows: Rows, site: tf.Tensor, capability: tuple[int, int]
    ) -> None:
        self._model, self._rows, self._capability = model, rows, capability
        self._stream = [dropout.key, dropout.first_row, site]
        self._head_size = model.hidden_size // model.num_attention_heads
        self._threshold = threshold(model.attention_output_dropout_prob)

    def attention_forward(self, qkv: tf.Tensor) -> list[tf.Tensor]:
        """context and normalizer of query, key and value."""
        (rows, length), heads = self._rows.sequences.shape, self._model.num_attention_heads
        text = catalogue.rotary_attention_forward(length, self._head_size, self._rows.window, self._capability)
        return call(
            text,
            qkv.dtype,
            [qkv, *self._rows[:4], *self._attention_numbers()],
            [([rows * length, self._model.hidden_size], qkv.dtype), ([rows, heads, length], tf.float32)],
            (length // dict(text.constants)["QUERIES"], heads, rows),
        )

    def attention_backward(
        self, qkv: tf.Tensor, context: tf.Tensor, normalizer: tf.Tensor, dcontext: tf.Tensor
    ) -> tf.Tensor:
        """The gradient of qkv."""
        (rows, length), heads = self._rows.sequences.shape, self._model.num_attention_heads
        operands = [qkv, *self._rows[:4], *self._attention_numbers(), context, normalizer, dcontext]
        grid = (2 * length // catalogue.BLOCK, heads, rows)
        text = catalogue.rotary_attention_backward(self._head_size)
        return call(text, qkv.dtype, operands, [(qkv.shape, qkv.dtype)], grid)[0]

    def norm_forward(self, x: tf.Tensor, branch: tf.Tensor | None, weight: tf.Tensor) -> list[tf.Tensor]:
        """x + dropout(branch), its LayerNorm, and in float32 the sum's mean and 1 / standard deviation.

        Without a branch the sum is x itself, and the first result means nothing.
        """
        n, width = x.shape
        alone = branch is None
        return call(
            catalogue.residual_norm_forward(width, not alone, self._threshold > 0),
            x.dtype,
            [x, x if alone else branch, weight, *self._stream, *self._norm_numbers()],
            [([1] if alone else x.shape, x.dtype), (x.shape, x.dtype), ([n], tf.float32), ([n], tf.float32)],
            (n, 1, 1),
        )

    def norm_backward(
        self, dy: tf.Tensor, dtotal: tf.Tensor, total: tf.Tensor, mean: tf.Tensor, inverse: tf.Tensor,
        weight: tf.Tensor, branch: bool,
    ) -> tuple[tf.Tensor, ...]:  # fmt: skip
        """Gradients of x, of the branch (without one: of x too), and in float32 of weight.

        `dy`: of the LayerNorm's result; `dtotal`: of the sum by other ways.
        """
        n, width = dy.shape
        programs, dropout = n // catalogue.NORM_ROWS, branch and self._threshold > 0
        dx, dbranch, sums = call(
            catalogue.residual_norm_backward(width, dropout),
            dy.dtype,
            [dy, dtotal, total, mean, inverse, weight, *self._stream, *self._norm_numbers()],
            [(dy.shape, dy.dtype), (dy.shape if dropout else [1], dy.dtype), ([programs, width], tf.float32)],
            (programs, 1, 1),
        )
        return dx, dbranch if dropout else dx, tf.reduce_sum(sums, 0)

    def geglu_backward(self, x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        """The gradient of x, where dy is the gradient of geglu(x)."""
        parts = dy.shape[1] // catalogue.GEGLU_COLUMNS
        operands = [x, dy, tf.constant([parts], tf.int32)]
        grid = (dy.shape[0] // catalogue.GEGLU_ROWS, parts, 1)
        return call(catalogue.geglu_backward(), x.dtype, operands, [(x.shape, x.dtype)], grid)[0]

    def _attention_numbers(self) -> list[tf.Tensor]:
        blocks = self._rows.sequences.shape[1] // catalogue.BLOCK
        sizes = [blocks, self._model.num_attention_heads, self._rows.window]
        return [tf.constant(sizes, tf.int32), tf.constant([1 / math.sqrt(self._head_size)], tf.float32)]

    def _norm_numbers(self) -> list[tf.Tensor]:
        sizes = [self._model.hidden_size // 16, self._rows.sequences.shape[1], self._threshold, 1]
        numbers = [self._model.layer_norm_eps, keep_scale(self._model.attention_output_dropout_prob)]
        return [tf.constant(sizes, tf.int32), tf.constant(numbers, tf.float32)]


def forward(layer: KernelLayer, x: tf.Tensor, weights: dict[str, tf.Tensor]) -> tuple[tf.Tensor, Kept]:
    """x [n, hidden] to the layer's output, [n, hidden], and what backward reads."""
    normal = mean = inverse = None
    if f"{ATTENTION_NORM}.weight" in weights:
        _, normal, mean, inverse = layer.norm_forward(x, None, weights[f"{ATTENTION_NORM}.weight"])
    qkv = _product(x if normal is None else normal, weights, QUERY_KEY_VALUE)  # (n, 3 hidden)
    context, normalizer = layer.attention_forward(qkv)
    branch = _product(context, weights, ATTENTION_OUTPUT)
    attended, *norm = layer.norm_forward(x, branch, weights[f"{OUTPUT_NORM}.weight"])
    intermediate = _product(norm[0], weights, INTERMEDIATE)  # (n, 2 intermediate)
    inner = kernels.geglu(intermediate)
    y = attended + _product(inner, weights, OUTPUT)
    return y, Kept(normal, mean, inverse, qkv, context, normalizer, attended, *norm, intermediate, inner)


def backward(
    layer: KernelLayer, dy: tf.Tensor, kept: Kept, x: tf.Tensor, weights: dict[str, tf.Tensor]
) -> list[tf.Tensor]:
    """Gradients of x and of each weight, in the weights' order, from `dy`, [n, hidden]."""
    gradients = {OUTPUT: tf.matmul(dy, kept.inner, transpose_a=True)}
    dinner = tf.matmul(dy, weights[f"{OUTPUT}.weight"])  # (n, intermediate)
    dintermediate = layer.geglu_backward(kept.intermediate, dinner)  # (n, 2 intermediate)
    gradients[INTERMEDIATE] = tf.matmul(dintermediate, kept.attended_normal, transpose_a=True)
    dnormal = tf.matmul(dintermediate, weights[f"{INTERMEDIATE}.weight"])  # (n, hidden)
    statistics = kept.attended, kept.attended_mean, kept.attended_inverse
    dx, dbranch, gradients[OUTPUT_NORM] = layer.norm_backward(
        dnormal, dy, *statistics, weights[f"{OUTPUT_NORM}.weight"], branch=True
    )
    gradients[ATTENTION_OUTPUT] = tf.matmul(dbranch, kept.context, transpose_a=True)
    dcontext = tf.matmul(dbranch, weights[f"{ATTENTION_OUTPUT}.weight"])  # (n, hidden)
    dqkv = layer.attention_backward(kept.qkv, kept.context, kept.normalizer, dcontext)
    gradients[QUERY_KEY_VALUE] = tf.matmul(dqkv, x if kept.normal is None else kept.normal, transpose_a=True)
    dnormal = tf.matmul(dqkv, weights[f"{QUERY_KEY_VALUE}.weight"])
    if kept.normal is None:
        dx += dnormal
    else:
        dx, _, gradients[ATTENTION_NORM] = layer.norm_backward(
            dnormal, dx, x, kept.mean, kept.inverse, weights[f"{ATTENTION_NORM}.weight"], branch=False
        )
    return [dx, *(tf.cast(gradients[name.removesuffix(".weight")], weight.dtype) for name, weight in weights.items())]


def _product(x: tf.Tensor, weights: dict[str, tf.Tensor], name: str) -> tf.Tensor:
    return tf.matmul(x, weights[f"{name}.weight"], transpose_b=True)
