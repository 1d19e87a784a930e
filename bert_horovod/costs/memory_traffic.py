"""Bytes that the kernels between matrix products move through a device's memory, at least, for a micro-batch."""

import math

from bert_horovod.costs.memory_estimate import WIDTHS
from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from bert_horovod.recipe.sections import Recipe

# Numbers that fused kernels read and write for each position of a layer in forward, in units of the hidden size: biases
# of query, key and value 6; context 2; bias, dropout, addition and LayerNorm 4, twice a layer.
_HIDDEN = 16
_BACKWARD = 2  # times forward, because backward reads and writes gradients and reads the kept tensors again


def kernel_bytes(recipe: Recipe, length: int, masked_slots: int, trained_layers: int = 0) -> float:
    """Bytes of a micro-batch's forward and backward, if each operation between products is one kernel.

    Softmax reads and writes the scores, gelu its argument and value, and a gate if there is one; the loss reads the
    logits, and backward reads and writes them; embeddings are read, added and normalised. Kernels that are not fused
    move more.

    Args:
        recipe: model, precision, micro-batch and recomputation, which repeats a layer's forward or its softmax.
        length: positions per row.
        masked_slots: masked positions per row.
        trained_layers: how many of the uppermost layers have a backward; 0: all layers and the embeddings.
    """
    model, rows = recipe.model, recipe.execution.micro_batch
    place = _HIDDEN * model.hidden_size + (3 if isinstance(model, ModernBertModel) else 2) * model.intermediate_size
    sizes = [math.prod(model.score_blocks(layer, length)) for layer in range(model.num_hidden_layers)]
    scores = 2 * model.num_attention_heads * sum(sizes) / len(sizes) / length
    recomputed = {"none": 0, "attention": scores, "layer": place + scores}[recipe.execution.recompute]
    trained = trained_layers or model.num_hidden_layers
    layers = (model.num_hidden_layers + _BACKWARD * trained) * (place + scores) + trained * recomputed
    embeddings = (1 + (_BACKWARD if trained == model.num_hidden_layers else 0)) * 5 * model.embedding_width
    logits = masked_slots * 3 * model.vocab_size
    return rows * (length * (layers + embeddings) + logits) * WIDTHS[recipe.numerics.precision]
