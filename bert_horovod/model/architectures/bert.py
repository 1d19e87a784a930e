"""BERT (Devlin et al. 2019, arXiv 1810.04805): its parameters and its names in files.

The program's parameter names and layout are those of Hugging Face's BERT, so nothing is renamed in its files.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from bert_horovod.model import plain
from bert_horovod.model.architectures import bert_layers
from bert_horovod.model.architectures.base import Family
from bert_horovod.model.gpu_kernels import bert_layer
from bert_horovod.model.parameters import (
    ATTENTION_NORM,
    ATTENTION_OUTPUT,
    EMBEDDINGS_NORM,
    INTERMEDIATE,
    KEY,
    OUTPUT,
    OUTPUT_NORM,
    POOLER,
    POSITION_EMBEDDINGS,
    QUERY,
    TOKEN_TYPE_EMBEDDINGS,
    VALUE,
    WORD_EMBEDDINGS,
    Shapes,
    dense_shapes,
    layer_norm_shapes,
    layer_prefix,
)
from bert_horovod.recipe.sections import Model

# Sizes that [model] and config.json call the same.
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
)


class Bert(Family):
    """Layers of attention and feed-forward network, each followed by LayerNorm; learned embeddings of positions."""

    model_type = "bert"
    title = "a BERT"
    class_prefix = "Bert"
    layers = bert_layers
    textbook = plain
    required: ClassVar = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
    token_ids: ClassVar = {"pad_token_id": "pad_token"}
    google_config_file = "bert_config.json"
    kernels = bert_layer

    def encoder_shapes(self, model: Model, pooler: bool) -> Shapes:
        """See `Family`."""
        shapes = self._embedding_shapes(model)
        hidden, inner = model.hidden_size, model.intermediate_size
        for i in range(model.layer_groups):
            prefix = layer_prefix(i)
            for name in (QUERY, KEY, VALUE, ATTENTION_OUTPUT):
                shapes |= dense_shapes(prefix + name, hidden, hidden)
            shapes |= layer_norm_shapes(prefix + ATTENTION_NORM, hidden)
            shapes |= dense_shapes(prefix + INTERMEDIATE, inner, hidden)
            shapes |= dense_shapes(prefix + OUTPUT, hidden, inner)
            shapes |= layer_norm_shapes(prefix + OUTPUT_NORM, hidden)
        return shapes | (dense_shapes(POOLER, hidden, hidden) if pooler else {})

    def configuration(self, model: Model) -> dict[str, Any]:
        """See `Family`."""
        return {
            **{name: getattr(model, name) for name in _SIZES},
            "model_type": self.model_type,
            "position_embedding_type": "absolute",
            "tie_word_embeddings": True,
        }

    def settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """See `Family`."""
        return {name: config[name] for name in _SIZES if name in config}

    def google_scope(self, layer: int, part: str) -> str:
        """See `Family`."""
        return f"bert/encoder/layer_{layer}/{part.replace('.', '/')}"

    def _embedding_shapes(self, model: Model) -> Shapes:
        return {
            WORD_EMBEDDINGS: (model.vocab_size, model.embedding_width),
            POSITION_EMBEDDINGS: (model.max_position_embeddings, model.embedding_width),
            TOKEN_TYPE_EMBEDDINGS: (model.type_vocab_size, model.embedding_width),
            **layer_norm_shapes(EMBEDDINGS_NORM, model.embedding_width),
        }
