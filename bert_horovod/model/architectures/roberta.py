"""RoBERTa (Liu et al. 2019, arXiv 1907.11692) and XLM-R: a BERT with other names in files.

Positions are counted from the id of padding + 1, so that its files have rows of positions that no token uses.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from bert_horovod.errors import UserError
from bert_horovod.model.architectures import roberta_layers
from bert_horovod.model.architectures.bert import Bert
from bert_horovod.model.architectures.roberta_settings import PADDING_ID, UNUSED_POSITIONS, RobertaModel
from bert_horovod.model.parameters import (
    BERT,
    CLASSIFIER,
    DECODER_BIAS,
    DECODER_BIAS_COPY,
    DECODER_WEIGHT_COPY,
    POOLER,
    POSITION_EMBEDDINGS,
    TRANSFORM,
    TRANSFORM_NORM,
    Shapes,
)
from bert_horovod.recipe.sections import Model

_ROBERTA = "roberta."  # prefix of the names of embeddings, layers and pooler
_HEAD = {
    f"{TRANSFORM}.weight": "lm_head.dense.weight",
    f"{TRANSFORM}.bias": "lm_head.dense.bias",
    f"{TRANSFORM_NORM}.weight": "lm_head.layer_norm.weight",
    f"{TRANSFORM_NORM}.bias": "lm_head.layer_norm.bias",
    DECODER_BIAS: "lm_head.bias",
    DECODER_WEIGHT_COPY: "lm_head.decoder.weight",
    DECODER_BIAS_COPY: "lm_head.decoder.bias",
}
_OURS = {theirs: ours for ours, theirs in _HEAD.items()}
_LONGEST = "max_position_embeddings"
_DEFAULTS = {"vocab_size": 50265, _LONGEST: 512, "type_vocab_size": 2}  # of config.json, where [model] has others


class Roberta(Bert):
    """A BERT whose first position has the number PADDING_ID + 1."""

    model_type = "roberta"
    title = "a RoBERTa"
    class_prefix = "Roberta"
    layers = roberta_layers
    textbook = roberta_layers
    other_names: ClassVar = {"xlm-roberta": "XLMRoberta", "camembert": "Camembert"}
    chosen_by = ("architecture",)
    required: ClassVar = Bert.required | {"pad_token_id": PADDING_ID, "tie_word_embeddings": True}
    token_ids: ClassVar = {"pad_token_id": "pad_token", "bos_token_id": "cls_token", "eos_token_id": "sep_token"}
    google_config_file = None
    segments = False
    heads: ClassVar = {"ForSequenceClassification": {POOLER: "classifier.dense", CLASSIFIER: "classifier.out_proj"}}

    def includes(self, model: Model) -> bool:
        """See `Family`."""
        return isinstance(model, RobertaModel)

    def configuration(self, model: Model) -> dict[str, Any]:
        """See `Family`."""
        return super().configuration(model) | {
            _LONGEST: model.max_position_embeddings + UNUSED_POSITIONS,
            "classifier_dropout": 0.0,  # transformers' dropout before heads; training here has none
        }

    def settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """See `Family`."""
        settings = super().settings({"layer_norm_eps": 1e-12, **_DEFAULTS, **config})
        longest = settings[_LONGEST]
        if type(longest) is int:  # else the limits of [model] say that it is none
            settings[_LONGEST] = longest - UNUSED_POSITIONS
        types = settings.pop("type_vocab_size")
        if types != 1:
            raise UserError(f"type_vocab_size = {types!r} is not supported: expected 1, as in all published RoBERTas")
        return {"architecture": self.model_type} | settings

    def name_in_file(self, name: str) -> str:
        """See `Family`."""
        return _HEAD.get(name, f"{_ROBERTA}{name.removeprefix(BERT)}" if name.startswith(BERT) else name)

    def name_of_parameter(self, name: str) -> str:
        """See `Family`; names of a bare RobertaModel have "bert." already, from safetensors_file.map_weights."""
        return _OURS.get(name, f"{BERT}{name.removeprefix(_ROBERTA)}" if name.startswith(_ROBERTA) else name)

    def _embedding_shapes(self, model: Model) -> Shapes:
        positions = model.max_position_embeddings + UNUSED_POSITIONS
        return super()._embedding_shapes(model) | {POSITION_EMBEDDINGS: (positions, model.embedding_width)}
