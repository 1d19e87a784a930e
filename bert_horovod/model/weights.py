"""Cast weights: parameters in the form that matrix products read, made once an optimizer step.

Parameters are float32 and have Hugging Face's names. Products read narrow matrices, one matrix for query, key and
value together, and a vocabulary padded to a multiple of 64 entries, because tensor cores are fastest so. Nothing
outside the model sees cast weights: `parameter_gradients` brings gradients back to the parameters' names and shapes.
"""

from collections.abc import Callable, Iterable

import tensorflow as tf

from bert_horovod.model.parameters import (
    DECODER_BIAS,
    DECODER_WEIGHT_COPY,
    EMBEDDINGS,
    KEY,
    QUERY,
    VALUE,
    WORD_EMBEDDINGS,
    Shapes,
    is_layer_norm,
    layer_prefix,
    layer_with_parameters,
    query_key_or_value,
)
from bert_horovod.recipe.sections import Model

QUERY_KEY_VALUE = "attention.self.qkv"  # of a layer: the joined weight, [3 hidden, hidden], and bias, [3 hidden]
VOCABULARY_MULTIPLE = 64
_PARTS = (QUERY, KEY, VALUE)


def cast_weights(
    parameters: dict[str, tf.Tensor], dtype: tf.DType, narrow: dict[str, tf.Tensor] | None = None
) -> dict[str, tf.Tensor]:
    """The weights that encoder and heads compute with.

    Embeddings and LayerNorms stay float32; the rest is of `dtype`. Query, key and value of a layer become one weight
    and one bias, QUERY_KEY_VALUE. The masked-token head's matrix is a copy of the word embeddings with rows of zeros
    behind, DECODER_WEIGHT_COPY.

    Args:
      parameters: float32, by name.
      dtype: of matrix products.
      narrow: the parameters in `dtype`; None: they are cast here.
    """
    if narrow is None:
        narrow = {name: tf.cast(value, dtype) for name, value in parameters.items()}
    weights = {}
    for name, value in parameters.items():
        part = query_key_or_value(name)
        if name.startswith(EMBEDDINGS) or is_layer_norm(name):
            weights[name] = value
        elif name == DECODER_BIAS:
            weights[name] = _padded(value)  # float32, because it is added to float32 logits
        elif part is None:
            weights[name] = narrow[name]
        elif part == QUERY:
            together = [narrow[name.replace(QUERY, each)] for each in _PARTS]
            weights[name.replace(QUERY, QUERY_KEY_VALUE)] = tf.concat(together, 0)
    if DECODER_BIAS in parameters and WORD_EMBEDDINGS in parameters:
        weights[DECODER_WEIGHT_COPY] = _padded(narrow[WORD_EMBEDDINGS])
    return weights


def cast_names(parameters: Iterable[str]) -> list[str]:
    """The names of the cast weights that follow from these parameters."""
    parts = {name: query_key_or_value(name) for name in parameters}
    found = dict.fromkeys(name.replace(part, QUERY_KEY_VALUE) if part else name for name, part in parts.items())
    return [*found, *([DECODER_WEIGHT_COPY] if DECODER_BIAS in parts and WORD_EMBEDDINGS in parts else [])]


class CastWeights:
    """The cast weights of a training run: made when parameters change, read by every micro-batch.

    Variables hold only those that differ from the parameters; the others are read from the parameters themselves.

    Args:
      parameters: float32 variables, by name.
      dtype: of matrix products.
    """

    def __init__(self, parameters: dict[str, tf.Variable], dtype: tf.DType) -> None:
        self.dtype = dtype
        weights = cast_weights(_tensors(parameters), dtype)
        self._names = list(weights)
        self._variables = {
            name: tf.Variable(value, trainable=False)
            for name, value in weights.items()
            if name not in parameters or value.dtype != tf.float32 or value.shape != parameters[name].shape
        }

    def values(self, parameters: dict[str, tf.Variable]) -> dict[str, tf.Tensor]:
        """The cast weights as they are now; `parameters` are those of the last `refresh`, or of the beginning."""
        known = {**parameters, **self._variables}
        return _tensors({name: known[name] for name in self._names})

    def refresh(self, parameters: dict[str, tf.Tensor], narrow: dict[str, tf.Tensor] | None) -> list[tf.Tensor]:
        """Assign what follows from new parameters, float32; `narrow` as for cast_weights. Returns their cast weights.

        Parameters that are left out keep theirs.
        """
        weights = cast_weights(parameters, self.dtype, narrow)
        for name, variable in self._variables.items():
            if name in weights:
                variable.assign(weights[name])
        return list(weights.values())


def parameter_gradients(
    gradients: dict[str, tf.Tensor | tf.IndexedSlices], shapes: Shapes
) -> tuple[dict[str, tf.Tensor], dict[str, tf.IndexedSlices]]:
    """Gradients by the parameters' names and shapes from those of the cast weights: dense ones and sparse ones.

    `shapes` are those of the parameters that train.

    The word embeddings' gradient has two parts: that of the tied output matrix is dense (zeros without a masked-token
    head); that of the lookup is sparse, to be added to it. Matrices stay in the dtype that they were computed in
    (float32 where layers share them), vectors become float32.
    """
    dense = {}
    for name, shape in shapes.items():
        part = query_key_or_value(name)
        if part is not None:
            together = gradients[name.replace(part, QUERY_KEY_VALUE)]
            dense[name] = tf.split(together, 3)[_PARTS.index(part)]
        elif name == WORD_EMBEDDINGS:
            dense[name] = gradients[DECODER_WEIGHT_COPY][: shape[0]] if DECODER_BIAS in shapes else tf.zeros(shape)
        else:
            dense[name] = tf.convert_to_tensor(gradients[name])[: shape[0]]
        if len(shape) == 1:
            dense[name] = tf.cast(dense[name], tf.float32)
    return dense, {WORD_EMBEDDINGS: gradients[WORD_EMBEDDINGS]} if WORD_EMBEDDINGS in shapes else {}


def layer_weights(weights: dict[str, tf.Tensor], model: Model) -> list[dict[str, tf.Tensor]]:
    """The cast weights of each layer, under names that are the same in all.

    Where layers share parameters the gradients of their uses are added up in float32, because a sum of many narrow
    ones loses digits, and one after another as backward makes them, so that memory holds one sum and no list.
    """
    layers, above = [], {}
    for layer in range(model.num_hidden_layers):
        number = layer_with_parameters(model, layer)
        if not layer or number != layer_with_parameters(model, layer - 1):
            prefix = layer_prefix(number)
            above = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        if layer + 1 < model.num_hidden_layers and number == layer_with_parameters(model, layer + 1):
            pairs = {name: _for_a_layer_and_those_above(value) for name, value in above.items()}
            layers.append({name: mine for name, (mine, _) in pairs.items()})
            above = {name: others for name, (_, others) in pairs.items()}
        else:
            layers.append(above)
    return layers


@tf.custom_gradient
def _for_a_layer_and_those_above(weight: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable]:
    """The weight twice; its gradient is the float32 sum of both uses'."""

    def gradient(mine: tf.Tensor, above: tf.Tensor) -> tf.Tensor:
        return tf.cast(above, tf.float32) + tf.cast(mine, tf.float32)

    return (tf.identity(weight), tf.identity(weight)), gradient


def _tensors(variables: dict[str, tf.Variable]) -> dict[str, tf.Tensor]:
    return {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}


def _padded(value: tf.Tensor) -> tf.Tensor:
    missing = -value.shape[0] % VOCABULARY_MULTIPLE
    return tf.pad(value, [[0, missing]] + [[0, 0]] * (len(value.shape) - 1))
