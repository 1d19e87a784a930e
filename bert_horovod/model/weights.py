"""Working weights: parameters in the form that products read them in, made once an optimizer step.

Parameters are float32 by Hugging Face's names. Products read narrow matrices, one for query, key and value together,
and a vocabulary of a multiple of 64 entries, as tensor cores want it. None of this leaves the model: gradients are
brought back to the parameters' names and shapes.
"""

import tensorflow as tf

from bert_horovod.model.parameters import WORD_EMBEDDINGS

DECODER = "cls.predictions.decoder.weight"  # Hugging Face's name for the tied output weights
DECODER_BIAS = "cls.predictions.bias"
QKV = ("query", "key", "value")
VOCABULARY_MULTIPLE = 64
LAYER_PREFIX = "bert.encoder.layer."


def cast_weights(
    parameters: dict[str, tf.Tensor], dtype: tf.DType, narrow: dict[str, tf.Tensor] | None = None
) -> dict[str, tf.Tensor]:
    """The weights that `bert` and `heads` compute with.

    Embeddings and LayerNorms stay as they are; the rest is of `dtype`. query, key and value become one
    `attention.self.qkv`; the head's matrix is the word embeddings with rows of zeros behind, DECODER.
    `narrow` are the parameters in `dtype`, where somebody has them already.
    """
    if narrow is None:
        narrow = {name: tf.cast(value, dtype) for name, value in parameters.items()}
    weights = {}
    for name, value in parameters.items():
        if name.startswith("bert.embeddings.") or "LayerNorm" in name:
            weights[name] = value
        elif name == DECODER_BIAS:
            weights[name] = _padded(value)  # float32: it is added to float32 logits
        elif (part := _qkv_part(name)) is None:
            weights[name] = narrow[name]
        elif part == "query":
            together = [narrow[name.replace("query", each)] for each in QKV]
            weights[name.replace("query", "qkv")] = tf.concat(together, 0)
    weights[DECODER] = _padded(narrow[WORD_EMBEDDINGS])
    return weights


def parameter_gradients(
    gradients: dict[str, tf.Tensor | tf.IndexedSlices], shapes: dict[str, tuple[int, ...]]
) -> tuple[dict[str, tf.Tensor], dict[str, tf.IndexedSlices]]:
    """Gradients by the parameters' names and shapes from those of the working weights: dense ones and looked-up rows.

    The word embeddings' has two parts: that of the tied output weights is dense, that of the lookup is rows to be added
    to it. Matrices stay in the dtype that they were computed in, vectors become float32.
    """
    found = {}
    for name, shape in shapes.items():
        part = _qkv_part(name)
        if part is not None:
            together = gradients[name.replace(part, "qkv")]
            found[name] = tf.split(together, 3)[QKV.index(part)]
        elif name == WORD_EMBEDDINGS:
            found[name] = gradients[DECODER][: shape[0]]
        else:
            found[name] = tf.convert_to_tensor(gradients[name])[: shape[0]]
        if len(shape) == 1:
            found[name] = tf.cast(found[name], tf.float32)
    return found, {WORD_EMBEDDINGS: gradients[WORD_EMBEDDINGS]}


def layer_weights(weights: dict[str, tf.Tensor], layer: int) -> dict[str, tf.Tensor]:
    """The working weights of one layer, under names that are the same in all."""
    prefix = f"{LAYER_PREFIX}{layer}."
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _qkv_part(name: str) -> str | None:
    parts = name.split(".")
    return parts[-2] if len(parts) > 2 and parts[-3] == "self" else None


def _padded(value: tf.Tensor) -> tf.Tensor:
    missing = -value.shape[0] % VOCABULARY_MULTIPLE
    return tf.pad(value, [[0, missing]] + [[0, 0]] * (len(value.shape) - 1))
