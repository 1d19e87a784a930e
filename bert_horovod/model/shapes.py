"""Shapes of the encoder's parameters and of the heads'. Imports no TensorFlow.

A task joins `encoder_shapes` with the shapes of its heads, in the order of the forward pass.
"""

from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.parameters import (
    CLASSIFIER,
    DECODER_BIAS,
    LABEL_OUTPUT,
    LABEL_QUERY,
    PAIR_CLASSIFIER,
    SPAN_HEAD,
    TRANSFORM,
    TRANSFORM_NORM,
    Shapes,
    dense_shapes,
    is_bias,
    layer_norm_shapes,
)
from bert_horovod.recipe.sections import Model


def pretraining_shapes(model: Model, pairs: bool) -> Shapes:
    """Shapes for pre-training: encoder and masked-token head; with `pairs` also pooler and sentence-pair head."""
    heads = pair_head_shapes(model) if pairs else {}
    return encoder_shapes(model, pooler=pairs) | heads | masked_token_head_shapes(model)


def encoder_shapes(model: Model, pooler: bool) -> Shapes:
    """Shapes of embeddings and layers, and with `pooler` of the pooler."""
    return family_of(model).encoder_shapes(model, pooler)


def masked_token_head_shapes(model: Model) -> Shapes:
    """Shapes of the masked-token head, without its output matrix, because that is WORD_EMBEDDINGS."""
    return transform_shapes(model) | {DECODER_BIAS: (model.vocab_size,)}


def transform_shapes(model: Model) -> Shapes:
    """Shapes of the layer before the masked-token head's output matrix, which may be before other heads too."""
    width = model.embedding_width
    shapes = dense_shapes(TRANSFORM, width, model.hidden_size) | layer_norm_shapes(TRANSFORM_NORM, width)
    return {name: shape for name, shape in shapes.items() if not (shared_head(model) and is_bias(name))}


def shared_head(model: Model) -> bool:
    """Whether the classifier and the head of answers have the layer of transform_shapes before them."""
    return family_of(model).shared_head


def pair_head_shapes(model: Model) -> Shapes:
    """Shapes of the sentence-pair head; it reads the pooler's output."""
    return dense_shapes(PAIR_CLASSIFIER, 2, model.hidden_size)


def classifier_shapes(model: Model, labels: int) -> Shapes:
    """Shapes of Hugging Face's BertForSequenceClassification head for `labels` labels; it reads the pooler's output."""
    before = transform_shapes(model) if shared_head(model) else {}
    return before | dense_shapes(CLASSIFIER, labels, model.hidden_size)


def label_attention_shapes(model: Model, labels: int) -> Shapes:
    """Shapes of the head in which each label attends over all tokens: tasks/label_attention.py."""
    return {f"{LABEL_QUERY}.weight": (labels, model.hidden_size)} | dense_shapes(
        LABEL_OUTPUT, labels, model.hidden_size
    )


def span_head_shapes(model: Model) -> Shapes:
    """Shapes of Hugging Face's BertForQuestionAnswering head: a row for start, a row for end; reads every position."""
    before = transform_shapes(model) if shared_head(model) else {}
    return before | dense_shapes(SPAN_HEAD, 2, model.hidden_size)
