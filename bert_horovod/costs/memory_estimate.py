"""What a training step holds in memory, as an estimate before it runs.

Backward reads what forward kept, layer by layer, and leaves gradients behind; the optimizer reads those and makes new
parameters and slots. The peak is where backward begins or in the optimizer, on top of what stays.
"""

import math

from bert_horovod.model.parameters import WORD_EMBEDDINGS, Shapes, trained_shapes
from bert_horovod.optimizers.base import slot_numbers
from bert_horovod.recipe.sections import Recipe

PROGRAM_BYTES = 880 << 20  # of a process on CPU without a model: Python, TensorFlow, XLA's compiler; measured
NEW_SHARE = 0.5  # of all new parameters and slots, how many wait to take the old ones' place at once; measured
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}


def memory_bytes(
    recipe: Recipe,
    shapes: Shapes,
    length: int,
    masked_slots: int,
    sequences: int,
    micro_batches: int,
    world_size: int,
    gpu: bool = False,
    trained_layers: int = 0,
) -> int:
    """Peak bytes of a rank: of the process on CPU, of what TensorFlow allocates on a GPU.

    Args:
      recipe: model, precision, optimizer, micro-batch and recomputation.
      shapes: of the task's parameters.
      length: positions per row.
      masked_slots, sequences: per row, at most.
      micro_batches: per optimizer step.
      world_size: ranks.
      gpu: whether the rank has one.
      trained_layers: how many layers, the uppermost, train; 0: all. The others keep nothing for backward.
    """
    model, width = recipe.model, WIDTHS[recipe.numerics.precision]
    parameters = sum(map(math.prod, shapes.values()))
    words = model.vocab_size * model.embedding_width
    # Cast weights: in float32 only what is joined or padded is a copy.
    qkv = 3 * model.layer_groups * model.hidden_size**2
    working = width * (parameters if width < 4 else qkv + words)
    trained = trained_shapes(shapes, model, trained_layers)
    numbers = sum(map(math.prod, trained.values()))
    updated = 4 * (numbers + slot_numbers(recipe, trained))
    own = 4 * numbers * own_share(recipe) if world_size > 1 else 0
    staying = 4 * (parameters - numbers) + updated + working + own + 4 * numbers * (micro_batches > 1)
    # Narrow gradients become float32 to be added up, sent, or freed of the loss scale; lookups add to float32 always.
    gradients = width * numbers + (2 * words if width < 4 and WORD_EMBEDDINGS in trained else 0)
    if micro_batches > 1 or world_size > 1 or recipe.numerics.precision == "float16":
        gradients += 4 * numbers
    layers = trained_layers or model.num_hidden_layers
    kept = recipe.execution.micro_batch * _kept_bytes(recipe, layers, length, masked_slots, sequences, width)
    return int((0 if gpu else PROGRAM_BYTES) + staying + gradients + max(kept, NEW_SHARE * updated))


def own_share(recipe: Recipe) -> float:
    """Float32 numbers that the exchange keeps on each rank alone, for each parameter."""
    exchange = recipe.exchange
    if recipe.numerics.wire == "int8":
        return 1.0 * exchange.error_feedback  # errors of what is sent; those of sums are few
    signs = 1.0 if exchange.encoding == "signs" else 0.0
    return {
        "largest_chunks": 1.0,
        "dreamddp": 1 / exchange.interval,
        "onebit_adam": signs,
        "onebit_lamb": signs,
        "zero_one_adam": 2 + signs,
    }.get(exchange.method, 0.0)


def _kept_bytes(recipe: Recipe, layers: int, length: int, masked_slots: int, sequences: int, width: int) -> int:
    """What forward keeps of a row for backward of so many layers, and backward's beginnings; see model/layers.py."""
    model, recompute = recipe.model, recipe.execution.recompute
    hidden, heads = model.hidden_size, model.num_attention_heads
    # Input, query, key, value, context twice, two LayerNorms' normal forms, one's output; gelu's argument and value.
    place = width * (9 * hidden + 2 * model.intermediate_size) + 2 * hidden * (model.hidden_dropout_prob > 0)
    scores = width * heads * length * length
    one_layer = 4 * scores  # in its backward: scores, probabilities and their gradients
    if recompute == "layer":
        whole = (layers - 1) * length * hidden * width
        one_layer += length * place + scores
    else:
        whole = (layers - 1) * (length * place + (scores if recompute == "none" else 0))
    read = masked_slots + sequences * recipe.objective.pairs  # positions of the last layer's output
    last = read * place + 3 * length * hidden * width + width * heads * read * length
    embedded = length * model.embedding_width * (2 * width + 5)
    logits = masked_slots * model.vocab_size * (2 * width + 4)
    return whole + last + embedded + max(logits, one_layer)  # the logits are gone when backward comes to the layers
