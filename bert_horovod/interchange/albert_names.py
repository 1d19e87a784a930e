"""Parameter names in Hugging Face's files of an ALBERT. In this program an ALBERT's parameters have BERT's names."""

import re

from bert_horovod.model.parameters import (
    ATTENTION_NORM,
    ATTENTION_OUTPUT,
    BERT,
    INTERMEDIATE,
    KEY,
    LAYERS,
    OUTPUT,
    OUTPUT_NORM,
    PAIR_CLASSIFIER,
    POOLER,
    QUERY,
    TRANSFORM,
    TRANSFORM_NORM,
    VALUE,
    layer_prefix,
)

ALBERT = "albert."  # prefix of the names of embeddings, layers and pooler
_PREDICTIONS = "cls.predictions."  # prefix of bias and decoder, which are not in _HEADS
# Names without ".weight" and ".bias".
_HEADS = {
    POOLER: f"{ALBERT}pooler",
    PAIR_CLASSIFIER: "sop_classifier.classifier",
    TRANSFORM: "predictions.dense",
    TRANSFORM_NORM: "predictions.LayerNorm",
}
_OF_A_LAYER = {
    QUERY: "attention.query",
    KEY: "attention.key",
    VALUE: "attention.value",
    ATTENTION_OUTPUT: "attention.dense",
    ATTENTION_NORM: "attention.LayerNorm",
    INTERMEDIATE: "ffn",
    OUTPUT: "ffn_output",
    OUTPUT_NORM: "full_layer_layer_norm",
}
_OURS = {theirs: ours for ours, theirs in (_HEADS | _OF_A_LAYER).items()}
_LAYER = re.compile(rf"{re.escape(LAYERS)}(\d+)\.(.+)")
_GROUP = re.compile(r"albert\.encoder\.albert_layer_groups\.(\d+)\.albert_layers\.0\.(.+)")


def name_in_file(name: str) -> str:
    """The name of a parameter in an ALBERT's files; names of other tensors do not change."""
    layer, _, kind = name.rpartition(".")
    if match := _LAYER.fullmatch(layer):
        number, part = match.groups()
        return f"{ALBERT}encoder.albert_layer_groups.{number}.albert_layers.0.{_OF_A_LAYER.get(part, part)}.{kind}"
    if layer in _HEADS:
        return f"{_HEADS[layer]}.{kind}"
    if name.startswith(_PREDICTIONS):
        return name.removeprefix("cls.")
    return f"{ALBERT}{name.removeprefix(BERT)}" if name.startswith(BERT) else name


def name_of_parameter(name: str) -> str:
    """The parameter's name in the program for a name in an ALBERT's files; the inverse of name_in_file.

    Names of a bare AlbertModel may begin with "bert.", which safetensors_file.map_weights puts before them. Unknown
    names do not change, except that "albert." at their beginning becomes "bert.".
    """
    if name.startswith(BERT):
        name = f"{ALBERT}{name.removeprefix(BERT)}"
    layer, _, kind = name.rpartition(".")
    if (match := _GROUP.fullmatch(layer)) and match[2] in _OURS:
        return f"{layer_prefix(int(match[1]))}{_OURS[match[2]]}.{kind}"
    if layer in _HEADS.values():
        return f"{_OURS[layer]}.{kind}"
    if name.startswith("predictions."):
        return f"cls.{name}"
    return f"{BERT}{name.removeprefix(ALBERT)}" if name.startswith(ALBERT) else name
