"""How Hugging Face's files of an ALBERT call the parameters, which have BERT's names in the program."""

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

ALBERT = "albert."  # what the names of embeddings, layers and pooler begin with
_PREDICTIONS = "cls.predictions."  # bias and decoder: their names are as long as a dense layer's without its kind
# Without ".weight" and ".bias".
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
    """What a parameter is called in files; names that are no ALBERT's are as they are."""
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
    """The parameter of a name in files, or of one of a bare AlbertModel, which begins with "bert." where it is read.

    Names that are unknown stay as they are, but that they begin with "bert." where they began with "albert.".
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
