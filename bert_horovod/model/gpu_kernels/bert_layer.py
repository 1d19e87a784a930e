"""A BERT's layer, forward and backward: cuBLAS products, Triton kernels between them; the arithmetic of bert_layers.py.

Attention's probabilities and all dropout masks exist only inside kernels, so forward keeps less for backward than XLA's
path, and recompute = "attention" has nothing to save.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from bert_horovod.model import kernels
from bert_horovod.model.forward import DropoutState, keep_scale, threshold
from bert_horovod.model.gpu_kernels import catalogue
from bert_horovod.model.gpu_kernels.call import KernelRows as Rows
from bert_horovod.model.gpu_kernels.call import call, kernel_rows
from bert_horovod.model.parameters import (
    ATTENTION_NORM,
    ATTENTION_OUTPUT,
    INTERMEDIATE,
    OUTPUT,
    OUTPUT_NORM,
    QUERY_KEY_VALUE,
)
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf

HEAD_SIZES = catalogue.HEAD_SIZES
INNER_DIVISOR = catalogue.GELU_COLUMNS  # it must divide the intermediate size


def surroundings(model: Model, batch: dict[str, tf.Tensor]) -> list[Rows]:
    """What the kernels of each layer read beside its input."""
    return [kernel_rows(batch["sequence_ids"])] * model.num_hidden_layers


class Kept(NamedTuple):
    """What forward keeps for backward beside its arguments; n = rows * length; of the policy's dtype unless said."""

    qkv: tf.Tensor  # [n, 3 hidden], without biases
    context: tf.Tensor  # [n, hidden]
    normalizer: tf.Tensor  # float32 [rows, heads, length]
    attended: tf.Tensor  # [n, hidden], the first LayerNorm's result
    attended_normal: tf.Tensor  # [n, hidden], and the same before weight and bias
    attended_inverse: tf.Tensor  # float32 [n], 1 / standard deviation
    intermediate: tf.Tensor  # [n, intermediate], without bias
    inner: tf.Tensor  # [n, intermediate], gelu's result
    normal: tf.Tensor  # [n, hidden], as above of the second LayerNorm
    inverse: tf.Tensor  # float32 [n], as above


class KernelLayer:
    """The kernels of a layer for one model, shape and micro-batch; its methods run inside compiled functions.

    Args:
        model: its sizes, activation and dropout rates.
        dropout: see DropoutState.
        rows: the micro-batch's.
        site: uint64 scalar: the layer's first dropout site.
        capability: the GPU's compute capability.
    """

    def __init__(
        self, model: Model, dropout: DropoutState, rows: Rows, site: tf.Tensor, capability: tuple[int, int]
    ) -> None:
        self._model, self._rows, self._capability = model, rows, capability
        self._stream = [dropout.key, dropout.first_row, site]
        self._head_size = model.hidden_size // model.num_attention_heads
        self.tanh = model.hidden_act == "gelu_new"

    def attention_forward(self, qkv: tf.Tensor, biases: tf.Tensor) -> list[tf.Tensor]:
        """context and normalizer of query, key and value."""
        (rows, length), heads = self._rows.sequences.shape, self._model.num_attention_heads
        text = catalogue.attention_forward(length, self._head_size, self._attention_threshold > 0, self._capability)
        return call(
            text,
            qkv.dtype,
            [qkv, biases, *self._rows, *self._stream, *self._attention_numbers()],
            [([rows * length, self._model.hidden_size], qkv.dtype), ([rows, heads, length], tf.float32)],
            (length // dict(text.constants)["QUERIES"], heads, rows),
        )

    def attention_backward(
        self, qkv: tf.Tensor, biases: tf.Tensor, context: tf.Tensor, normalizer: tf.Tensor, dcontext: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Gradients of qkv, and of its biases in float32."""
        (rows, length), heads = self._rows.sequences.shape, self._model.num_attention_heads
        text = catalogue.attention_backward(length, self._head_size, self._attention_threshold > 0, self._capability)
        whole = text.kernel == "attention_backward_whole"
        parts = 1 if whole else length // catalogue.BLOCK
        operands = [*self._stream, *self._attention_numbers(), context, normalizer, dcontext]
        dqkv, sums = call(
            text,
            qkv.dtype,
            [qkv, biases, self._rows.sequences, *([] if whole else [self._rows.reach]), *operands],
            [(qkv.shape, qkv.dtype), ([rows * parts, qkv.shape[1]], tf.float32)],
            (heads, rows, 1) if whole else (2 * parts, heads, rows),
        )
        return dqkv, tf.reduce_sum(sums, 0)

    def norm_forward(
        self, x: tf.Tensor, branch: tf.Tensor, offset: tf.Tensor, weight: tf.Tensor, bias: tf.Tensor, site: int
    ) -> list[tf.Tensor]:
        """LayerNorm of x + dropout(branch + offset), the same before weight and bias, and 1 / standard deviation."""
        n, width = x.shape
        return call(
            catalogue.norm_forward(width, self._hidden_threshold > 0),
            x.dtype,
            [x, branch, offset, weight, bias, *self._stream, *self._norm_numbers(site)],
            [(x.shape, x.dtype), (x.shape, x.dtype), ([n], tf.float32)],
            (n, 1, 1),
        )

    def norm_backward(
        self, dy: tf.Tensor, normal: tf.Tensor, inverse: tf.Tensor, weight: tf.Tensor, site: int
    ) -> tuple[tf.Tensor, ...]:
        """Gradients of x and of branch, and in float32 of weight, bias and offset."""
        n, width = dy.shape
        programs = n // catalogue.NORM_ROWS
        dx, dbranch, sums = call(
            catalogue.norm_backward(width, self._hidden_threshold > 0),
            dy.dtype,
            [dy, normal, inverse, weight, *self._stream, *self._norm_numbers(site)],
            [(dy.shape, dy.dtype), (dy.shape, dy.dtype), ([programs, 3, width], tf.float32)],
            (programs, 1, 1),
        )
        return dx, dbranch, *tf.unstack(tf.reduce_sum(sums, 0))

    def gelu_backward(self, x: tf.Tensor, offset: tf.Tensor, dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The gradient of x, and of offset in float32, where dy is the gradient of gelu(x + offset)."""
        tiles, parts = x.shape[0] // catalogue.GELU_ROWS, x.shape[1] // catalogue.GELU_COLUMNS
        programs = -(-tiles // catalogue.GELU_TURNS)
        dx, sums = call(
            catalogue.gelu_backward(self.tanh),
            x.dtype,
            [x, offset, dy, tf.constant([tiles, parts], tf.int32)],
            [(x.shape, x.dtype), ([programs, x.shape[1]], tf.float32)],
            (programs, parts, 1),
        )
        return dx, tf.reduce_sum(sums, 0)

    @property
    def _attention_threshold(self) -> int:
        return threshold(self._model.attention_probs_dropout_prob)

    @property
    def _hidden_threshold(self) -> int:
        return threshold(self._model.hidden_dropout_prob)

    def _attention_numbers(self) -> list[tf.Tensor]:
        blocks = self._rows.sequences.shape[1] // catalogue.BLOCK
        sizes = [blocks, self._model.num_attention_heads, self._attention_threshold, 0]
        numbers = [1 / math.sqrt(self._head_size), keep_scale(self._model.attention_probs_dropout_prob)]
        return [tf.constant(sizes, tf.int32), tf.constant(numbers, tf.float32)]

    def _norm_numbers(self, site: int) -> list[tf.Tensor]:
        sizes = [self._model.hidden_size // 16, self._rows.sequences.shape[1], self._hidden_threshold, site]
        numbers = [self._model.layer_norm_eps, keep_scale(self._model.hidden_dropout_prob)]
        return [tf.constant(sizes, tf.int32), tf.constant(numbers, tf.float32)]


def forward(layer: KernelLayer, x: tf.Tensor, weights: dict[str, tf.Tensor]) -> tuple[tf.Tensor, Kept]:
    """x [n, hidden] to the layer's output, [n, hidden], and what backward reads."""
    qkv = _product(x, weights, QUERY_KEY_VALUE)  # (n, 3 hidden)
    context, normalizer = layer.attention_forward(qkv, weights[f"{QUERY_KEY_VALUE}.bias"])
    branch, offset = _product(context, weights, ATTENTION_OUTPUT), weights[f"{ATTENTION_OUTPUT}.bias"]
    attended, *attended_norm = layer.norm_forward(x, branch, offset, *_affine(weights, ATTENTION_NORM), site=1)
    intermediate = _product(attended, weights, INTERMEDIATE)  # (n, intermediate)
    inner = kernels.gelu(intermediate + weights[f"{INTERMEDIATE}.bias"], layer.tanh)
    branch, offset = _product(inner, weights, OUTPUT), weights[f"{OUTPUT}.bias"]
    y, *norm = layer.norm_forward(attended, branch, offset, *_affine(weights, OUTPUT_NORM), site=2)
    return y, Kept(qkv, context, normalizer, attended, *attended_norm, intermediate, inner, *norm)


def backward(
    layer: KernelLayer, dy: tf.Tensor, kept: Kept, x: tf.Tensor, weights: dict[str, tf.Tensor]
) -> list[tf.Tensor]:
    """Gradients of x and of each weight, in the weights' order, from `dy`, [n, hidden]."""
    gradients = {}

    def affine(name: str, weight: tf.Tensor, bias: tf.Tensor) -> None:
        for part, gradient in (("weight", weight), ("bias", bias)):
            gradients[f"{name}.{part}"] = tf.cast(gradient, weights[f"{name}.{part}"].dtype)

    norm_weight = weights[f"{OUTPUT_NORM}.weight"]
    dattended, dbranch, dweight, dbias, doffset = layer.norm_backward(
        dy, kept.normal, kept.inverse, norm_weight, site=2
    )
    affine(OUTPUT_NORM, dweight, dbias)
    affine(OUTPUT, tf.matmul(dbranch, kept.inner, transpose_a=True), doffset)
    dinner = tf.matmul(dbranch, weights[f"{OUTPUT}.weight"])  # (n, intermediate)
    dinner, doffset = layer.gelu_backward(kept.intermediate, weights[f"{INTERMEDIATE}.bias"], dinner)
    affine(INTERMEDIATE, tf.matmul(dinner, kept.attended, transpose_a=True), doffset)
    dattended += tf.matmul(dinner, weights[f"{INTERMEDIATE}.weight"])  # (n, hidden)

    norm_weight = weights[f"{ATTENTION_NORM}.weight"]
    dx, dbranch, dweight, dbias, doffset = layer.norm_backward(
        dattended, kept.attended_normal, kept.attended_inverse, norm_weight, site=1
    )
    affine(ATTENTION_NORM, dweight, dbias)
    affine(ATTENTION_OUTPUT, tf.matmul(dbranch, kept.context, transpose_a=True), doffset)
    dcontext = tf.matmul(dbranch, weights[f"{ATTENTION_OUTPUT}.weight"])  # (n, hidden)
    biases = weights[f"{QUERY_KEY_VALUE}.bias"]
    dqkv, dbiases = layer.attention_backward(kept.qkv, biases, kept.context, kept.normalizer, dcontext)
    affine(QUERY_KEY_VALUE, tf.matmul(dqkv, x, transpose_a=True), dbiases)
    dx += tf.matmul(dqkv, weights[f"{QUERY_KEY_VALUE}.weight"])
    return [dx, *(gradients[name] for name in weights)]


def _product(x: tf.Tensor, weights: dict[str, tf.Tensor], name: str) -> tf.Tensor:
    return tf.matmul(x, weights[f"{name}.weight"], transpose_b=True)


def _affine(weights: dict[str, tf.Tensor], name: str) -> tuple[tf.Tensor, tf.Tensor]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]
