"""Cast weights: the parameters in the form that matrix products read, computed once an optimizer step.

Parameters are float32 and have Hugging Face's names. Matrix products read matrices of the policy's dtype, one matrix
for query, key and value together, and a vocabulary padded to a multiple of 64 entries, because tensor cores are fastest
with these. Only the model sees cast weights: `parameter_gradients` gives gradients the parameters' names and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bert_horovod.model.parameters import (
    DECODER_BIAS,
    DECODER_WEIGHT_COPY,
    EMBEDDINGS,
    KEY,
    QUERY,
    QUERY_KEY_VALUE,
    VALUE,
    WORD_EMBEDDINGS,
    Shapes,
    is_layer_norm,
    layer_prefix,
    layer_with_parameters,
    query_key_or_value,
)
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf

VOCABULARY_MULTIPLE = 64
_PARTS = (QUERY, KEY, VALUE)


def cast_weights(
    parameters: dict[str, tf.Tensor], dtype: tf.DType, narrow: dict[str, tf.Tensor] | None = None
) -> dict[str, tf.Tensor]:
    """The weights that encoder and heads compute with, from float32 parameters by name.

    Embeddings and LayerNorms stay float32, as does the masked-token head's output bias; all others are cast to `dtype`,
    if `narrow` does not have them cast already. Query, key and value of a layer are joined to one weight and one bias,
    QUERY_KEY_VALUE. The masked-token head's output matrix, DECODER_WEIGHT_COPY, is a copy of the word embeddings with
    rows of zeros appended.
    """
    if narrow is None:
        narrow = {name: tf.cast(tensor, dtype) for name, tensor in parameters.items()}
    weights = {}
    for name, tensor in parameters.items():
        part = query_key_or_value(name)
        if name.startswith(EMBEDDINGS) or is_layer_norm(name):
            weights[name] = tensor
        elif name == DECODER_BIAS:
            weights[name] = _padded(tensor)  # float32, because it is added to float32 logits
        elif part is None:
            weights[name] = narrow[name]
        elif part == QUERY:
            together = [narrow[name.replace(QUERY, part_name)] for part_name in _PARTS]
            weights[name.replace(QUERY, QUERY_KEY_VALUE)] = tf.concat(together, 0)  # (3 hidden, hidden), (3 hidden,)
    if DECODER_BIAS in parameters and WORD_EMBEDDINGS in parameters:
        weights[DECODER_WEIGHT_COPY] = _padded(narrow[WORD_EMBEDDINGS])
    return weights


def cast_names(parameters: Iterable[str]) -> list[str]:
    """The names of the cast weights that are made of these parameters."""
    parts = {name: query_key_or_value(name) for name in parameters}
    names = dict.fromkeys(name.replace(part, QUERY_KEY_VALUE) if part else name for name, part in parts.items())
    return [*names, *([DECODER_WEIGHT_COPY] if DECODER_BIAS in parts and WORD_EMBEDDINGS in parts else [])]


def cast_together(names: Iterable[str], parameters: Iterable[str]) -> list[str]:
    """Of `parameters`, those of which the cast weights of `names` are made, for CastWeights.refresh."""
    needed = set(names)
    for name in tuple(needed):
        part = query_key_or_value(name)
        needed |= {name.replace(part, other) for other in _PARTS} if part else set()
    if needed & {WORD_EMBEDDINGS, DECODER_BIAS}:
        needed |= {WORD_EMBEDDINGS, DECODER_BIAS}
    return [name for name in parameters if name in needed]


class CastWeights:
    """The cast weights of a training run: computed when parameters change, read by every micro-batch.

    Variables hold only the cast weights that differ from their float32 parameter in dtype, shape or name; the others
    are read from the parameters themselves, which saves memory.
    """

    def __init__(self, parameters: dict[str, tf.Variable], dtype: tf.DType) -> None:
        self.dtype = dtype
        weights = cast_weights(_tensors(parameters), dtype)
        self._names = list(weights)
        self._variables = {
            name: tf.Variable(tensor, trainable=False)
            for name, tensor in weights.items()
            if name not in parameters or tensor.dtype != tf.float32 or tensor.shape != parameters[name].shape
        }

    def values(self, parameters: dict[str, tf.Variable]) -> dict[str, tf.Tensor]:
        """The current cast weights; `parameters` have the values of the last `refresh`, or of the start."""
        known = {**parameters, **self._variables}
        return _tensors({name: known[name] for name in self._names})

    def refresh(self, parameters: dict[str, tf.Tensor], narrow: dict[str, tf.Tensor] | None) -> list[tf.Tensor]:
        """Compute the cast weights of new float32 parameters, assign and return them; `narrow`: see cast_weights.

        Cast weights of parameters that are not in `parameters` keep their values.
        """
        weights = cast_weights(parameters, self.dtype, narrow)
        for name, variable in self._variables.items():
            if name in weights:
                variable.assign(weights[name])
        return list(weights.values())


def parameter_gradients(
    gradients: dict[str, tf.Tensor | tf.IndexedSlices], shapes: Shapes
) -> tuple[dict[str, tf.Tensor], dict[str, tf.IndexedSlices]]:
    """Gradients of the parameters, from gradients of the cast weights: a dict of dense and a dict of sparse ones.

    `shapes` are those of the parameters that train.

    The word embeddings' gradient has two parts, and the caller adds them: a dense one of the tied output matrix (zeros
    without a masked-token head), and the sparse embedding gradient of the lookup. Gradients of matrices stay in the
    dtype that they were computed in (float32 where layers share parameters); those of vectors become float32.
    """
    dense = {}
    for name, shape in shapes.items():
        part = query_key_or_value(name)
        if part is not None:
            together = gradients[name.replace(part, QUERY_KEY_VALUE)]
            dense[name] = tf.split(together, 3)[_PARTS.index(part)]  # (hidden, hidden) or (hidden,)
        elif name == WORD_EMBEDDINGS:
            dense[name] = gradients[DECODER_WEIGHT_COPY][: shape[0]] if DECODER_BIAS in shapes else tf.zeros(shape)
        else:
            dense[name] = tf.convert_to_tensor(gradients[name])
            if dense[name].shape[0] != shape[0]:
                dense[name] = dense[name][: shape[0]]
        if len(shape) == 1:
            dense[name] = tf.cast(dense[name], tf.float32)
    return dense, {WORD_EMBEDDINGS: gradients[WORD_EMBEDDINGS]} if WORD_EMBEDDINGS in shapes else {}


def layer_weights(weights: dict[str, tf.Tensor], model: Model) -> list[dict[str, tf.Tensor]]:
    """The cast weights of each layer, with the layer's prefix removed from their names.

    Where layers share parameters, backward adds the layers' gradients in float32, because a sum of many float16 or
    bfloat16 gradients loses digits. It adds each as soon as it is computed, so that memory holds one sum and no list.
    """
    layers, above = [], {}
    for layer in range(model.num_hidden_layers):
        number = layer_with_parameters(model, layer)
        if not layer or number != layer_with_parameters(model, layer - 1):
            prefix = layer_prefix(number)
            above = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
        if layer + 1 < model.num_hidden_layers and number == layer_with_parameters(model, layer + 1):
            pairs = {name: _for_a_layer_and_those_above(tensor) for name, tensor in above.items()}
            layers.append({name: mine for name, (mine, _) in pairs.items()})
            above = {name: tensors_above for name, (_, tensors_above) in pairs.items()}
        else:
            layers.append(above)
    return layers


@tf.custom_gradient
def _for_a_layer_and_those_above(weight: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable]:
    """The weight twice; its gradient is the float32 sum of the gradients of both copies."""

    def gradient(mine: tf.Tensor, above: tf.Tensor) -> tf.Tensor:
        return tf.cast(above, tf.float32) + tf.cast(mine, tf.float32)

    return (tf.identity(weight), tf.identity(weight)), gradient


def _tensors(variables: dict[str, tf.Variable]) -> dict[str, tf.Tensor]:
    return {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}


def _padded(tensor: tf.Tensor) -> tf.Tensor:
    missing = -tensor.shape[0] % VOCABULARY_MULTIPLE
    return tf.pad(tensor, [[0, missing]] + [[0, 0]] * (len(tensor.shape) - 1))
