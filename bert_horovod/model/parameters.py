"""The model's parameters: names, initial values and groups; shapes.py has their shapes. Imports no TensorFlow.

Names and layout (weights are [out, in]) are those of Hugging Face's BERT, so a checkpoint is a dump of the dict. Other
architectures have the same names here: only their files have others (architectures/), and layers that share parameters
are one layer of the dict. Other modules spell out no parameter name: they import the constants and functions of this
one. The order is that of the forward pass; gradient buckets and parameter hashes follow it.
"""

import math
import zlib
from collections.abc import Callable

import numpy as np

from bert_horovod.recipe.sections import Model

Shapes = dict[str, tuple[int, ...]]  # parameters by name, in forward order
BATCH_NUMBERS = 1 << 25  # of matrices that are updated as one batch; a batch has several copies in memory

BERT = "bert."  # prefix of the names of embeddings, layers and pooler
EMBEDDINGS = "bert.embeddings."
LAYERS = "bert.encoder.layer."

CROSS_ENCODER = "sentence_transformers"  # key of a configuration: how sentence-transformers ranks with it
SIGMOID = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}  # its value if scores are probabilities
SENTENCE_VECTORS = "sentence_vectors"  # key of a configuration: how the vectors of texts are made

# Parameters.
WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"  # [vocabulary, width]; also the masked-token head's matrix
POSITION_EMBEDDINGS = "bert.embeddings.position_embeddings.weight"
TOKEN_TYPE_EMBEDDINGS = "bert.embeddings.token_type_embeddings.weight"
DECODER_BIAS = "cls.predictions.bias"
# Hugging Face's files may hold tensors of these two names: copies of WORD_EMBEDDINGS and DECODER_BIAS. Here they are
# not parameters.
DECODER_WEIGHT_COPY = "cls.predictions.decoder.weight"
DECODER_BIAS_COPY = "cls.predictions.decoder.bias"

# Pairs of parameters: each name is followed by ".weight" and ".bias".
EMBEDDINGS_NORM = "bert.embeddings.LayerNorm"
FINAL_NORM = "bert.encoder.LayerNorm"  # after the last layer, where layers begin with their LayerNorm
EMBEDDING_MAPPING = (
    "bert.encoder.embedding_hidden_mapping_in"  # from embeddings' width to hidden size, where the two may differ
)
POOLER = "bert.pooler.dense"
PAIR_CLASSIFIER = "cls.seq_relationship"
TRANSFORM = "cls.predictions.transform.dense"
TRANSFORM_NORM = "cls.predictions.transform.LayerNorm"
CLASSIFIER = "classifier"
MORE_CLASSIFIERS = "multiverse"  # further classifiers, their rows stacked in one matrix, that no class of others has
SPAN_HEAD = "qa_outputs"
LABEL_ATTENTION = "label_attention."  # prefix of a head that transformers does not have; see tasks/label_attention.py
LABEL_QUERY, LABEL_OUTPUT = f"{LABEL_ATTENTION}query", f"{LABEL_ATTENTION}output"  # the query has no bias
# Parameters of a layer: the name follows layer_prefix(layer).
QUERY = "attention.self.query"
KEY = "attention.self.key"
VALUE = "attention.self.value"
QUERY_KEY_VALUE = "attention.self.qkv"  # the three joined: rows of [3 hidden, hidden]; a ModernBERT's parameter
ATTENTION_OUTPUT = "attention.output.dense"
ATTENTION_NORM = "attention.output.LayerNorm"
INTERMEDIATE = "intermediate.dense"
OUTPUT = "output.dense"
OUTPUT_NORM = "output.LayerNorm"


def layer_prefix(layer: int) -> str:
    """Prefix of the names of a layer's parameters; layers that share parameters have one number, from 0."""
    return f"{LAYERS}{layer}."


def layer_with_parameters(model: Model, layer: int) -> int:
    """The number, for layer_prefix, of the parameters that a layer uses: its own, or its group's if layers share."""
    return layer * model.layer_groups // model.num_hidden_layers


def dense_shapes(name: str, outputs: int, inputs: int) -> Shapes:
    """Shapes of the weight and the bias of a dense layer."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def layer_norm_shapes(name: str, size: int) -> Shapes:
    """Shapes of the weight and the bias of a LayerNorm."""
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def initial_values(
    shapes: Shapes, initializer_range: float | Callable[[str], float], seed: int
) -> dict[str, np.ndarray]:
    """New float32 parameters, in the order of `shapes`; a tensor's values depend only on its name, shape and the seed.

    Biases are 0 and LayerNorm weights are 1. Other weights are normal with standard deviation `initializer_range`, or
    what it is for their name, truncated at two deviations.
    """
    parameters = {}
    for name, shape in shapes.items():
        if is_bias(name):
            parameters[name] = np.zeros(shape, np.float32)
        elif is_layer_norm(name):
            parameters[name] = np.ones(shape, np.float32)
        else:
            random = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode())]))
            initial = random.standard_normal(shape, np.float32)
            while (outside := np.abs(initial) > 2).any():
                initial[outside] = random.standard_normal(int(outside.sum()), np.float32)
            deviation = initializer_range(name) if callable(initializer_range) else initializer_range
            parameters[name] = initial * np.float32(deviation)
    return parameters


def is_bias(name: str) -> bool:
    """Whether the parameter is a bias; a LayerNorm's bias is one too."""
    return name.endswith(".bias")


def is_layer_norm(name: str) -> bool:
    """Whether the parameter is a LayerNorm's weight or bias."""
    return name.endswith(("LayerNorm.weight", "LayerNorm.bias"))


def decays(name: str) -> bool:
    """Whether weight decay applies to the parameter: to all but biases and LayerNorm.

    >>> decays(f"{POOLER}.weight"), decays(f"{POOLER}.bias"), decays(f"{EMBEDDINGS_NORM}.weight")
    (True, False, False)
    """
    return not (is_bias(name) or is_layer_norm(name))


def trained_shapes(shapes: Shapes, model: Model, trained_layers: int) -> Shapes:
    """Shapes of the parameters that train if only the uppermost layers do: these layers, the heads and the pooler.

    The word embeddings do not train, although the masked-token head multiplies by them, because a change of them would
    change the input of the lower layers. The model's layers share no parameters. If `trained_layers` is 0 or the number
    of all layers, every parameter trains.
    """
    layers = model.num_hidden_layers
    if trained_layers in (0, layers):
        return shapes
    upper = tuple(layer_prefix(layer) for layer in range(layers - trained_layers, layers))
    lower = (EMBEDDINGS, LAYERS)
    return {name: shape for name, shape in shapes.items() if name.startswith(upper) or not name.startswith(lower)}


def grown_from(name: str, before: int, layers: int, grow: str) -> str:
    """The source of a parameter of a grown model: a new layer's is a copy of this one; any other keeps its name.

    `before` and `layers`: number of layers before growing and now. `grow`: "stack": new layer l is a copy of layer l
    mod `before`; "top": of layer l - (layers - before).

    >>> grown_from("bert.encoder.layer.3.output.dense.bias", before=2, layers=4, grow="stack")
    'bert.encoder.layer.1.output.dense.bias'
    """
    if not name.startswith(LAYERS):
        return name
    number, name_in_layer = name.removeprefix(LAYERS).split(".", 1)
    layer = int(number)
    if layer < before:
        return name
    return layer_prefix(layer % before if grow == "stack" else layer - (layers - before)) + name_in_layer


def query_key_or_value(name: str) -> str | None:
    """QUERY, KEY or VALUE if the parameter is its weight or bias; else None."""
    return next((part for part in (QUERY, KEY, VALUE) if name.rpartition(".")[0].endswith(part)), None)


def joined_matrices(name: str) -> int:
    """How many matrices of equal height a parameter joins: query, key and value may be one parameter."""
    return 3 if name.endswith(f"{QUERY_KEY_VALUE}.weight") else 1


def update_groups(shapes: Shapes, batched: Callable[[str, tuple[int, ...]], bool] | None = None) -> list[list[str]]:
    """Groups of parameters that are updated together: a matrix alone; vectors of one size, if all or none decay.

    Matrices for which `batched` (of name and shape) is true make groups of one shape, of BATCH_NUMBERS at most if they
    are several.
    """
    groups: dict[tuple, list[str]] = {}
    for name, shape in shapes.items():
        group = (name,) if len(shape) > 1 else (*shape, decays(name))
        if batched is not None and batched(name, shape):
            group = ("batch", joined_matrices(name), *shape)
        groups.setdefault(group, []).append(name)
    parts = []
    for (kind, *_), names in groups.items():
        most = max(1, BATCH_NUMBERS // math.prod(shapes[names[0]])) if kind == "batch" else len(names)
        each = math.ceil(len(names) / math.ceil(len(names) / most))  # groups of equal size
        parts += [names[begin : begin + each] for begin in range(0, len(names), each)]
    return parts


def backward_blocks(names: list[str]) -> list[list[str]]:
    """Parameters in blocks, in the order in which backward computes their gradients: heads, layers, embeddings.

    Layers go from the last to the first. WORD_EMBEDDINGS is in the heads' block, because the gradient of the tied
    output matrix is computed there. Layers that share parameters are one block: its gradients are complete after
    backward of the lowest of them.
    """
    layers: dict[int, list[str]] = {}
    heads, embeddings = [], []
    for name in names:
        if name.startswith(LAYERS):
            layers.setdefault(int(name.removeprefix(LAYERS).split(".")[0]), []).append(name)
        elif name.startswith((EMBEDDINGS, EMBEDDING_MAPPING)) and name != WORD_EMBEDDINGS:
            embeddings.append(name)
        else:
            heads.append(name)
    return [heads, *(layers[i] for i in sorted(layers, reverse=True)), embeddings]
