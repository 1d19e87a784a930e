"""ModernBERT (Warner et al. 2024, arXiv 2412.13663): its parameters and its names in files.

Query, key and value are one parameter, as in its files. There is no bias but the decoder's.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from bert_horovod.errors import UserError
from bert_horovod.model.architectures import modernbert_layers, modernbert_plain
from bert_horovod.model.architectures.base import Family
from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from bert_horovod.model.gpu_kernels import modernbert_layer
from bert_horovod.model.parameters import (
    ATTENTION_NORM,
    ATTENTION_OUTPUT,
    BERT,
    CLASSIFIER,
    DECODER_BIAS,
    DECODER_WEIGHT_COPY,
    EMBEDDINGS_NORM,
    FINAL_NORM,
    INTERMEDIATE,
    LAYERS,
    OUTPUT,
    OUTPUT_NORM,
    QUERY_KEY_VALUE,
    SPAN_HEAD,
    TRANSFORM,
    TRANSFORM_NORM,
    WORD_EMBEDDINGS,
    Shapes,
    layer_prefix,
)
from bert_horovod.recipe.sections import Model
from bert_horovod.storage.reading import shown

_MODEL = "model."  # prefix of the names of embeddings, layers and final norm
_OF_A_LAYER = {
    ATTENTION_NORM: "attn_norm",
    QUERY_KEY_VALUE: "attn.Wqkv",
    ATTENTION_OUTPUT: "attn.Wo",
    OUTPUT_NORM: "mlp_norm",
    INTERMEDIATE: "mlp.Wi",
    OUTPUT: "mlp.Wo",
}
_NAMES = {
    WORD_EMBEDDINGS: f"{_MODEL}embeddings.tok_embeddings.weight",
    f"{EMBEDDINGS_NORM}.weight": f"{_MODEL}embeddings.norm.weight",
    f"{FINAL_NORM}.weight": f"{_MODEL}final_norm.weight",
    f"{TRANSFORM}.weight": "head.dense.weight",
    f"{TRANSFORM_NORM}.weight": "head.norm.weight",
    DECODER_WEIGHT_COPY: "decoder.weight",
    DECODER_BIAS: "decoder.bias",
}
_PARAMETERS = {theirs: ours for ours, theirs in _NAMES.items()}
_PARTS = {theirs: ours for ours, theirs in _OF_A_LAYER.items()}
_LAYER = re.compile(rf"{re.escape(LAYERS)}(\d+)\.(.+)\.weight")
_LAYER_IN_FILE = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")
# Sizes by their names in [model], and in config.json with transformers' default.
_SIZES: Mapping[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", 50368),
    "hidden_size": ("hidden_size", 768),
    "num_hidden_layers": ("num_hidden_layers", 22),
    "num_attention_heads": ("num_attention_heads", 12),
    "intermediate_size": ("intermediate_size", 1152),
    "max_position_embeddings": ("max_position_embeddings", 8192),
    "initializer_range": ("initializer_range", 0.02),
    "layer_norm_eps": ("norm_eps", 1e-5),
    "local_attention": ("local_attention", 128),
    "classifier_pooling": ("classifier_pooling", "cls"),
    # No setting of transformers, which passes it over.
    "attention_output_dropout_prob": ("attention_output_dropout_prob", 0.1),
}
_THETAS = {"global_rope_theta": ("full_attention", 160_000.0), "local_rope_theta": ("sliding_attention", 10_000.0)}
_EVERY = "global_attn_every_n_layers"


class ModernBert(Family):
    """Layers that begin with LayerNorm: attention, full or in a sliding window, and a gated feed-forward network."""

    model_type = "modernbert"
    title = "a ModernBERT"
    class_prefix = "ModernBert"
    layers = modernbert_layers
    textbook = modernbert_plain
    kernels = modernbert_layer
    chosen_by = ("architecture",)
    required: ClassVar = {
        "hidden_activation": "gelu",
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "decoder_bias": True,
        "classifier_bias": False,
        "classifier_activation": "gelu",
        "tie_word_embeddings": True,
    }
    unused: ClassVar = ("attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout")
    token_ids: ClassVar = {
        "pad_token_id": "pad_token",
        "cls_token_id": "cls_token",
        "sep_token_id": "sep_token",
        "bos_token_id": "cls_token",
        "eos_token_id": "sep_token",
    }
    unseen_in_shapes = (*Family.unseen_in_shapes, _EVERY, "local_attention", "local_rope_theta")
    segments = False
    shared_head = True
    heads: ClassVar = {"ForQuestionAnswering": {SPAN_HEAD: CLASSIFIER}}

    def includes(self, model: Model) -> bool:
        """See `Family`."""
        return isinstance(model, ModernBertModel)

    def encoder_shapes(self, model: Model, pooler: bool) -> Shapes:
        """See `Family`; there is no pooler."""
        hidden, inner = model.hidden_size, model.intermediate_size
        shapes: Shapes = {WORD_EMBEDDINGS: (model.vocab_size, hidden), f"{EMBEDDINGS_NORM}.weight": (hidden,)}
        for i in range(model.num_hidden_layers):
            of_layer = {
                ATTENTION_NORM: (hidden,),
                QUERY_KEY_VALUE: (3 * hidden, hidden),
                ATTENTION_OUTPUT: (hidden, hidden),
                OUTPUT_NORM: (hidden,),
                INTERMEDIATE: (2 * inner, hidden),
                OUTPUT: (hidden, inner),
            }
            if i == 0:  # the embeddings end with a LayerNorm
                del of_layer[ATTENTION_NORM]
            shapes |= {f"{layer_prefix(i)}{name}.weight": shape for name, shape in of_layer.items()}
        return shapes | {f"{FINAL_NORM}.weight": (hidden,)}

    def surroundings(self, model: Model, batch: Mapping[str, Any], positions: Any = None) -> list[Any]:
        """See `Family`: attention bias and rotary angles."""
        return self.layers.surroundings(model, batch, positions)

    def finish(self, forward: Any, x: Any) -> Any:
        """See `Family`."""
        return self.layers.finish(forward, x)

    def deviation(self, model: Model, name: str) -> float:
        """See `Family`: matrices that add to the residual stream, and the head's, begin smaller."""
        smaller = name.endswith((f"{ATTENTION_OUTPUT}.weight", f".{OUTPUT}.weight", f"{TRANSFORM}.weight"))
        return model.initializer_range / (2 * model.num_hidden_layers) ** 0.5 if smaller else model.initializer_range

    def configuration(self, model: Model) -> dict[str, Any]:
        """See `Family`."""
        return {
            **{theirs: getattr(model, ours) for ours, (theirs, _) in _SIZES.items()},
            **{name: getattr(model, name) for name in (*_THETAS, _EVERY)},
            **self.required,
            "model_type": self.model_type,
            **dict.fromkeys(self.unused, 0.0),
            "initializer_cutoff_factor": 2.0,
        }

    def settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """See `Family`; raises UserError for rotary positions or layers of another kind."""
        return {
            "architecture": self.model_type,
            **{ours: config.get(theirs, default) for ours, (theirs, default) in _SIZES.items()},
            **{name: _theta(config, name, kind, default) for name, (kind, default) in _THETAS.items()},
            _EVERY: _full_attention_every(config),
        }

    def name_in_file(self, name: str) -> str:
        """See `Family`."""
        if match := _LAYER.fullmatch(name):
            return f"{_MODEL}layers.{match[1]}.{_OF_A_LAYER.get(match[2], match[2])}.weight"
        return _NAMES.get(name, f"{_MODEL}{name.removeprefix(BERT)}" if name.startswith(BERT) else name)

    def name_of_parameter(self, name: str) -> str:
        """See `Family`.

        Names of a bare ModernBertModel lack "model."; "bert." may be before them, which safetensors_file.map_weights
        puts there. Unknown names do not change, except that "model." at their beginning becomes "bert.".
        """
        if name.startswith((f"{BERT}embeddings.", "layers.", "final_norm.")):
            name = f"{_MODEL}{name.removeprefix(BERT)}"
        if (match := _LAYER_IN_FILE.fullmatch(name)) and match[2] in _PARTS:
            return f"{layer_prefix(int(match[1]))}{_PARTS[match[2]]}.weight"
        return _PARAMETERS.get(name, f"{BERT}{name.removeprefix(_MODEL)}" if name.startswith(_MODEL) else name)


def _theta(config: Mapping[str, Any], name: str, kind: str, default: float) -> Any:
    """The base of the rotary frequencies, from the keys of transformers 5 or those before."""
    every = config.get("rope_parameters")
    rope = every.get(kind) if isinstance(every, dict) else None
    rope = rope if isinstance(rope, dict) else {}
    other = rope.get("rope_type", "default")
    if other != "default" or config.get("rope_scaling") is not None:
        raise UserError(
            f"rope_type = {shown(other)}, rope_scaling = {shown(config.get('rope_scaling'))}: not supported; expected "
            "'default' and none"
        )
    theta = rope.get("rope_theta", config.get(name, default))
    if theta is None and name == "local_rope_theta":  # as transformers 4 reads it
        return _theta(config, "global_rope_theta", *_THETAS["global_rope_theta"])
    return theta


def _full_attention_every(config: Mapping[str, Any]) -> Any:
    """The distance of two layers with full attention; raises UserError if layer_types has no such order."""
    every, kinds = config.get(_EVERY, 3), config.get("layer_types")
    if kinds is None:
        return every
    if isinstance(kinds, list) and kinds and len(kinds) == config.get("num_hidden_layers", 22):
        for distance in (every, *range(1, len(kinds) + 1)):
            if type(distance) is int and distance > 0 and kinds == _layer_types(len(kinds), distance):
                return distance
    raise UserError(
        f"layer_types = {shown(kinds)}: not supported; expected 'full_attention' for every n-th of num_hidden_layers "
        "layers, from the first, and 'sliding_attention' for the others"
    )


def _layer_types(layers: int, every: int) -> list[str]:
    return ["sliding_attention" if layer % every else "full_attention" for layer in range(layers)]
