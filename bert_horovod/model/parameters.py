"""Every parameter of the model: names, shapes, groups and initial values. No TensorFlow.

Names and layout ([out, in] for weights) are Hugging Face's, so that a checkpoint is a dump of the dict.
"""

import zlib

import numpy as np

from bert_horovod.recipe.sections import Model


def parameter_shapes(model: Model, next_sentence: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all parameters, in forward order; with pooler and sentence-pair head if `next_sentence`."""
    hidden, inner, vocabulary = model.hidden_size, model.intermediate_size, model.vocab_size
    shapes: dict[str, tuple[int, ...]] = {}

    def dense(name: str, outputs: int, inputs: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        shapes[f"{name}.bias"] = (outputs,)

    def layer_norm(name: str) -> None:
        shapes[f"{name}.LayerNorm.weight"] = (hidden,)
        shapes[f"{name}.LayerNorm.bias"] = (hidden,)

    shapes["bert.embeddings.word_embeddings.weight"] = (vocabulary, hidden)
    shapes["bert.embeddings.position_embeddings.weight"] = (model.max_position_embeddings, hidden)
    shapes["bert.embeddings.token_type_embeddings.weight"] = (model.type_vocab_size, hidden)
    layer_norm("bert.embeddings")
    for i in range(model.num_hidden_layers):
        layer = f"bert.encoder.layer.{i}"
        for part in ("query", "key", "value"):
            dense(f"{layer}.attention.self.{part}", hidden, hidden)
        dense(f"{layer}.attention.output.dense", hidden, hidden)
        layer_norm(f"{layer}.attention.output")
        dense(f"{layer}.intermediate.dense", inner, hidden)
        dense(f"{layer}.output.dense", hidden, inner)
        layer_norm(f"{layer}.output")
    if next_sentence:
        dense("bert.pooler.dense", hidden, hidden)
        dense("cls.seq_relationship", 2, hidden)
    dense("cls.predictions.transform.dense", hidden, hidden)
    layer_norm("cls.predictions.transform")
    shapes["cls.predictions.bias"] = (vocabulary,)
    return shapes


def initial_parameters(model: Model, next_sentence: bool, seed: int) -> dict[str, np.ndarray]:
    """Fresh float32 parameters: weights of a normal truncated at two deviations, zero biases, unit LayerNorm weights.

    Each tensor's values depend on the seed and its name alone.
    """
    parameters = {}
    for name, shape in parameter_shapes(model, next_sentence).items():
        if name.endswith("LayerNorm.weight"):
            parameters[name] = np.ones(shape, np.float32)
        elif name.endswith(".bias"):
            parameters[name] = np.zeros(shape, np.float32)
        else:
            random = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode())]))
            values = random.standard_normal(shape, np.float32)
            while (outside := np.abs(values) > 2).any():
                values[outside] = random.standard_normal(int(outside.sum()), np.float32)
            parameters[name] = values * np.float32(model.initializer_range)
    return parameters
