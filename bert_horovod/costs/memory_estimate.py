"""Estimates the memory of a training step before it runs.

Backward reads the tensors that forward kept, layer by layer, and makes gradients; the optimizer reads gradients and
makes new parameters and slots. The peak is at the start of backward, at its end or in the optimizer; parameters, slots
and cast weights are in memory all the time.

On a GPU the estimate is of the peak that TensorFlow's allocator reports (bfc_allocator.cc). It rounds to 256 bytes and
gives a free chunk whole, if that is less than twice the size and not 128 MiB larger. It also holds the workspaces that
XLA gives to cuBLAS: 4 MiB, 32 MiB on Hopper (GemmConfig in XLA's matmul_utils.h). costs/gpus.py has what is
beside the allocator. With compiled layers and the exchange of gradients the optimizer updates everything in place,
beside which are only the new cast weights. Otherwise it updates one group of parameters after another
(exchange/updater.py): beside a group are its stacked old and new values; new cast weights wait for the last group.
Matrices that a rule multiplies are stacked everywhere.

Bytes that the kernels between matrix products move through a device's memory, at least, for a micro-batch.
"""

import math
from typing import NamedTuple

from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from bert_horovod.model.gpu_kernels.choice import why_not
from bert_horovod.model.parameters import WORD_EMBEDDINGS, Shapes, query_key_or_value, trained_shapes, update_groups
from bert_horovod.optimizers.base import slot_numbers
from bert_horovod.recipe.sections import Model, Recipe

PROGRAM_BYTES = 880 << 20  # of a process on CPU without a model: Python, TensorFlow, XLA's compiler; measured
NEW_SHARE = 0.5  # largest share of new parameters and slots that are in memory beside the old ones; measured on a CPU
GPU_CHUNKS = 1.05  # chunks over the sizes of tensors that come and go; seen with compiled layers
GPU_WORKSPACE_BYTES = 32 << 20
# Of each number in the largest batch of matrices that an update multiplies: stacked parameter, slot and gradient, new
# values and products. Reckoned, not measured.
BATCH_BYTES = 28
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}


class RankRows(NamedTuple):
    """The rows that a rank computes in an optimizer step."""

    length: int  # positions
    masked_slots: int  # of a row, at most
    sequences: int  # of a row, at most
    micro_batches: int


def memory_bytes(
    recipe: Recipe,
    shapes: Shapes,
    rows: RankRows,
    world_size: int,
    capability: tuple[int, int] | None = None,
    trained_layers: int = 0,
) -> int:
    """Peak bytes of a rank: on CPU of the whole process, on a GPU of TensorFlow's allocations there.

    `shapes` are those of the task's parameters; `capability` is the compute capability of the rank's GPU; None: it has
    none. Only the uppermost `trained_layers` train (0: all); the lower layers keep nothing for backward.
    """
    model, width, micro_batches = recipe.model, WIDTHS[recipe.numerics.precision], rows.micro_batches
    parameters = sum(map(math.prod, shapes.values()))
    words = model.vocab_size * model.embedding_width
    # Cast weights: in float32 only joined and padded weights are copies.
    qkv = sum(math.prod(shape) for name, shape in shapes.items() if query_key_or_value(name) and len(shape) > 1)
    working = width * (parameters if width < 4 else qkv + words)
    trained = trained_shapes(shapes, model, trained_layers)
    numbers = sum(map(math.prod, trained.values()))
    updated = 4 * (numbers + slot_numbers(recipe, trained))
    keeps = world_size > 1 or recipe.exchange.trains_copies
    own = 4 * recipe.exchange.kept_numbers(recipe, trained) if keeps else 0
    staying = 4 * (parameters - numbers) + updated + working + own + 4 * numbers * (micro_batches > 1)
    # 16-bit gradients are cast to float32 to add them up, to send them, or to divide by the loss scale; the sparse
    # embedding gradient is always added in float32.
    gradients = width * numbers + (2 * words if width < 4 and WORD_EMBEDDINGS in trained else 0)
    applied, after = gradients, 0  # what the optimizer reads, and what of it is made after backward
    if micro_batches > 1 or world_size > 1:
        applied = 4 * numbers
        gradients += applied
    elif recipe.numerics.precision == "float16":
        applied = after = 4 * numbers
    layers = trained_layers or model.num_hidden_layers
    xla = "layers" if recipe.execution.xla == "auto" else recipe.execution.xla  # of a GPU
    kernels = recipe.execution.kernels != "xla" and not why_not(
        capability, model, (rows.length,), recipe.numerics.precision, xla
    )
    kept = recipe.execution.micro_batch * _kept_bytes(recipe, layers, rows, width, capability is not None, kernels)
    groups = [{name: trained[name] for name in names} for names in update_groups(trained, recipe.optimizer.batched)]
    batches = [group for group in groups if all(recipe.optimizer.batched(*each) for each in group.items())]
    stacked = BATCH_BYTES * max((sum(map(math.prod, batch.values())) for batch in batches), default=0)
    if capability:
        if xla != "layers" or not recipe.exchange.in_place:
            largest = max(4 * (sum(map(math.prod, group.values())) + slot_numbers(recipe, group)) for group in groups)
            stacked = max(stacked, 2 * largest)  # old and new
        of_heads = width * words * (WORD_EMBEDDINGS in trained)  # the gradients that are there when layers begin theirs
        # Gradients are still there when the new cast weights are made.
        passing = max(kept + of_heads, max(gradients, applied + stacked) + width * numbers * (width < 4))
        return int(staying + GPU_CHUNKS * passing + GPU_WORKSPACE_BYTES)
    return int(PROGRAM_BYTES + staying + gradients + after + max(kept, NEW_SHARE * updated + stacked))


def _kept_bytes(recipe: Recipe, layers: int, rows: RankRows, width: int, gpu: bool, kernels: bool) -> int:
    """Bytes that forward keeps of a row for backward of `layers` layers, and those of backward's first block.

    model/layers.py says which tensors are kept, with the Triton kernels the files of model/gpu_kernels. The last layer
    is always computed without them, because heads read it at a few positions only.
    """
    model, recompute, length = recipe.model, recipe.execution.recompute, rows.length
    hidden, heads = model.hidden_size, model.num_attention_heads
    numbers = range(model.num_hidden_layers - layers, model.num_hidden_layers)
    places = [_kept_at_a_place(model, number, length, width) for number in numbers]
    scores = [width * heads * math.prod(model.score_blocks(number, length)) for number in numbers]
    one_layer = 4 * max(scores)  # during a layer's backward: scores, probabilities and their gradients
    # Of a layer below the last.
    below = [
        length * each + (of_scores if recompute == "none" else 0)
        for each, of_scores in zip(places, scores, strict=True)
    ][:-1]
    if kernels:
        # Input, query, key and value, context, two LayerNorms' normalised sums, one's output; gelu's input and output;
        # in float32 a number a head for the softmax and two for LayerNorms.
        # A ModernBERT's: input, its LayerNorm, query, key and value, context, the sum and its LayerNorm; twice as wide
        # an argument of its gated gelu, and four numbers for LayerNorms.
        rotary = isinstance(model, ModernBertModel)
        each = width * (8 * hidden + (2 + rotary) * model.intermediate_size) + 4 * (heads + 2 + 2 * rotary)
        one_layer = width * length * (4 * hidden + (2 + rotary) * model.intermediate_size)  # gradients in backward
        below = [length * each] * (layers - 1)
    if recompute == "layer":
        whole = (layers - 1) * length * hidden * width
        one_layer += length * each if kernels else length * max(places) + max(scores)
    else:
        whole = sum(below)
    # Positions at which heads read the last layer's output.
    read = rows.masked_slots + rows.sequences * recipe.objective.pairs
    place = _kept_at_a_place(model, 0, length, width)  # without blocks, which are of whole rows
    last = read * place + 3 * length * hidden * width + width * heads * read * length
    embedded = length * model.embedding_width * (2 * width + 5)
    logits = rows.masked_slots * model.vocab_size * (2 * width + 4 * (not gpu))  # in float32 inside of one GPU kernel
    return whole + last + embedded + max(logits, one_layer)  # the logits are freed before backward of the layers


def _kept_at_a_place(model: Model, layer: int, length: int, width: int) -> int:
    """Bytes that forward keeps of a position for a layer's backward, without probabilities."""
    hidden, inner = model.hidden_size, model.intermediate_size
    if not isinstance(model, ModernBertModel):
        # Input, query, key, value, context twice, two LayerNorms' normalised sums, one's output; gelu's input, output.
        return width * (9 * hidden + 2 * inner) + 2 * hidden * (model.hidden_dropout_prob > 0)
    # Another LayerNorm's output, and the gate; blocks of a sliding window hold each key and each value three times.
    copies = 4 if model.score_blocks(layer, length)[0] > 1 else 0
    return width * ((10 + copies) * hidden + 3 * inner) + hidden * (model.attention_output_dropout_prob > 0)


# Numbers that fused kernels read and write for each position of a layer in forward, in units of the hidden size: biases
# of query, key and value 6; context 2; bias, dropout, addition and LayerNorm 4, twice a layer.
_HIDDEN = 16
_BACKWARD = 2  # times forward, because backward reads and writes gradients and reads the kept tensors again


def kernel_bytes(recipe: Recipe, length: int, masked_slots: int, trained_layers: int = 0) -> float:
    """Bytes of a micro-batch's forward and backward, if each operation between products is one kernel.

    Softmax reads and writes the scores, gelu its argument and value, and a gate if there is one; the loss reads the
    logits, and backward reads and writes them; embeddings are read, added and normalised. Kernels that are not fused
    move more. execution.recompute repeats a layer's forward or its softmax. Only the uppermost `trained_layers` have a
    backward; 0: all layers and the embeddings.
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
