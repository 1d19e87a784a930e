"""ALBERT (Lan et al. 2020, arXiv 1909.11942): narrow embeddings, and layers that share parameters.

In this program its parameters have BERT's names, and layers that share parameters are one layer of the dict.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from bert_horovod.model.architectures.bert import Bert
from bert_horovod.model.parameters import (
    ATTENTION_NORM,
    ATTENTION_OUTPUT,
    BERT,
    EMBEDDING_MAPPING,
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
    Shapes,
    dense_shapes,
    layer_prefix,
)
from bert_horovod.recipe.sections import Model

_ALBERT = "albert."  # prefix of the names of embeddings, layers and pooler
_PREDICTIONS = "cls.predictions."  # prefix of bias and decoder, which are not in _HEADS
# Names without ".weight" and ".bias".
_HEADS = {
    POOLER: f"{_ALBERT}pooler",
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
# Scopes in a layer of Google's TF1 checkpoints.
_GOOGLE_SCOPES = {
    QUERY: "attention_1/self/query",
    KEY: "attention_1/self/key",
    VALUE: "attention_1/self/value",
    ATTENTION_OUTPUT: "attention_1/output/dense",
    ATTENTION_NORM: "LayerNorm",
    INTERMEDIATE: "ffn_1/intermediate/dense",
    OUTPUT: "ffn_1/intermediate/output/dense",
    OUTPUT_NORM: "LayerNorm_1",
}
_DEFAULTS = {  # of config.json in transformers, where they differ from those of [model]
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_hidden_groups": 1,
}
_PUBLISHED_WIDTH = 128  # of the embeddings, in all of Google's ALBERTs
_OURS = {theirs: ours for ours, theirs in (_HEADS | _OF_A_LAYER).items()}
_LAYER = re.compile(rf"{re.escape(LAYERS)}(\d+)\.(.+)")
_GROUP = re.compile(r"albert\.encoder\.albert_layer_groups\.(\d+)\.albert_layers\.0\.(.+)")


class Albert(Bert):
    """A BERT whose embeddings may be narrower than its layers, and whose layers may share parameters."""

    model_type = "albert"
    title = "an ALBERT"
    class_prefix = "Albert"
    chosen_by = ("embedding_size", "shared_layers")
    required = Bert.required | {"inner_group_num": 1}
    token_ids = Bert.token_ids | {"bos_token_id": "cls_token", "eos_token_id": "sep_token"}
    google_config_file = "albert_config.json"
    price = "an ALBERT: all layers share parameters, and learn less from as many rows"

    def smaller(self, model: Model) -> Model | None:
        """See `Family`."""
        if self.includes(model) or model.architecture != "bert" or model.hidden_size <= _PUBLISHED_WIDTH:
            return None
        return dataclasses.replace(model, embedding_size=_PUBLISHED_WIDTH, shared_layers=1)

    def configuration(self, model: Model) -> dict[str, Any]:
        """See `Family`."""
        return super().configuration(model) | {
            "embedding_size": model.embedding_width,
            "num_hidden_groups": model.layer_groups,
            "inner_group_num": 1,
            "classifier_dropout_prob": 0.0,  # transformers' dropout before heads; training here has none
        }

    def settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """See `Family`."""
        config = _DEFAULTS | config
        sizes = {"embedding_size": config["embedding_size"], "shared_layers": config["num_hidden_groups"]}
        return super().settings(config) | sizes

    def name_in_file(self, name: str) -> str:
        """See `Family`."""
        layer, _, kind = name.rpartition(".")
        if match := _LAYER.fullmatch(layer):
            number, part = match.groups()
            return f"{_ALBERT}encoder.albert_layer_groups.{number}.albert_layers.0.{_OF_A_LAYER.get(part, part)}.{kind}"
        if layer in _HEADS:
            return f"{_HEADS[layer]}.{kind}"
        if name.startswith(_PREDICTIONS):
            return name.removeprefix("cls.")
        return f"{_ALBERT}{name.removeprefix(BERT)}" if name.startswith(BERT) else name

    def name_of_parameter(self, name: str) -> str:
        """See `Family`.

        Names of a bare AlbertModel may begin with "bert.", which safetensors_file.map_weights puts before them. Unknown
        names do not change, except that "albert." at their beginning becomes "bert.".
        """
        if name.startswith(BERT):
            name = f"{_ALBERT}{name.removeprefix(BERT)}"
        layer, _, kind = name.rpartition(".")
        if (match := _GROUP.fullmatch(layer)) and match[2] in _OURS:
            return f"{layer_prefix(int(match[1]))}{_OURS[match[2]]}.{kind}"
        if layer in _HEADS.values():
            return f"{_OURS[layer]}.{kind}"
        if name.startswith("predictions."):
            return f"cls.{name}"
        return f"{BERT}{name.removeprefix(_ALBERT)}" if name.startswith(_ALBERT) else name

    def google_scope(self, layer: int, part: str) -> str:
        """See `Family`."""
        return f"bert/encoder/transformer/group_{layer}/inner_group_0/{_GOOGLE_SCOPES[part]}"

    def google_configuration(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """See `Family`."""
        if "num_hidden_groups" not in config:
            return dict(config)
        # Google's ALBERT computes the tanh form for the name gelu too.
        tanh = {"hidden_act": "gelu_new"} if config.get("hidden_act") == "gelu" else {}
        return {"model_type": self.model_type} | config | tanh

    def _embedding_shapes(self, model: Model) -> Shapes:
        mapping = dense_shapes(EMBEDDING_MAPPING, model.hidden_size, model.embedding_width)
        return super()._embedding_shapes(model) | mapping
