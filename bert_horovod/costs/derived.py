"""Numbers computed from a recipe and a world size: products, micro-batches, tokens, parameters, memory."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from bert_horovod.batches.positions import micro_batch_count
from bert_horovod.batches.text.mask_rates import RowSlots, full_row_slots, mask_rate
from bert_horovod.costs.memory_estimate import RankRows, memory_bytes
from bert_horovod.model.parameters import (
    ATTENTION_OUTPUT,
    DECODER_BIAS,
    EMBEDDING_MAPPING,
    INTERMEDIATE,
    OUTPUT,
    Shapes,
    layer_prefix,
    trained_shapes,
)
from bert_horovod.model.shapes import encoder_shapes, pretraining_shapes
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe.settings import Phase
from bert_horovod.wording import gibibytes

SLIDING = "sliding window: "
EMBEDDINGS, HEAD, LAST_LAYER = "embeddings: ", "head: ", "last layer: "  # prefixes of products' names
VOCABULARY = f"{HEAD}vocabulary"


class Product(NamedTuple):
    """C = A B, with A [m, k] and C [m, n]; `batch` of them at once, `count` times in a forward pass."""

    name: str
    count: int  # type: ignore[assignment] # hides the method of tuples
    batch: int  # 1: B is a weight
    m: int
    n: int
    k: int
    transposed: bool = True  # B is stored [n, k], as weights are; else [k, n]

    @property
    def flops(self) -> int:
        """Floating point operations of all `count` x `batch` products: two per multiply-add.

        >>> Product("scores", count=2, batch=3, m=4, n=5, k=6).flops
        1440
        """
        return 2 * self.count * self.batch * self.m * self.n * self.k


def matrix_products(
    model: Model, rows: int, length: int, masked_slots: int, sequences: int, pairs: bool
) -> list[Product]:
    """The products of a micro-batch's forward pass; backward does two products of the same size for each.

    The last layer computes only the positions that a head reads, but keys and values of all positions. Per row there
    are `masked_slots` masked positions, used or not, and at most `sequences`, of each of which a sentence-pair head
    (`pairs`) reads the first position.
    """
    layers, hidden = model.num_hidden_layers, model.hidden_size
    read_positions = masked_slots + (sequences if pairs else 0)
    shapes, products = encoder_shapes(model, pooler=False), []
    width = model.embedding_width
    if f"{EMBEDDING_MAPPING}.weight" in shapes:
        n, k = shapes[f"{EMBEDDING_MAPPING}.weight"]
        products.append(Product(f"{EMBEDDINGS}mapping", 1, 1, rows * length, n, k))
    whole = layers if read_positions >= length else layers - 1
    if whole:
        products.append(Product("query, key and value", whole, 1, rows * length, 3 * hidden, hidden))
        kinds = Counter(model.score_blocks(layer, length) for layer in range(whole))
        for (blocks, queries, keys), count in kinds.items():
            products += _attention(model, "" if blocks == 1 else SLIDING, count, rows * blocks, queries, keys)
        products += _after_attention(shapes, "", whole, rows * length)
    if read_positions < length:
        products.append(Product(f"{LAST_LAYER}query", 1, 1, rows * read_positions, hidden, hidden))
        products.append(Product(f"{LAST_LAYER}key and value", 1, 1, rows * length, 2 * hidden, hidden))
        products += _attention(model, LAST_LAYER, 1, rows, read_positions, length)
        products += _after_attention(shapes, LAST_LAYER, 1, rows * read_positions)
    vocabulary = -(-model.vocab_size // 64) * 64
    products.append(Product(f"{HEAD}transform", 1, 1, rows * masked_slots, width, hidden))
    products.append(Product(VOCABULARY, 1, 1, rows * masked_slots, vocabulary, width))
    if pairs:
        products.append(Product(f"{HEAD}pooler", 1, 1, rows * sequences, hidden, hidden))
        products.append(Product(f"{HEAD}pairs", 1, 1, rows * sequences, 2, hidden))
    return products


def training_flops(products: Callable[[Model], list[Product]], model: Model, trained_layers: int = 0) -> float:
    """Floating point operations of the products of forward and backward; if all layers train, backward does each twice.

    If only the uppermost layers train (0: all), backward ends below them and computes no gradient of the word
    embeddings. `products` returns the products of a model's forward pass.
    """
    forward = products(model)
    if trained_layers in (0, model.num_hidden_layers):
        return 3.0 * sum(product.flops for product in forward)
    upper = products(replace(model, num_hidden_layers=trained_layers))
    back = sum((1 if product.name == VOCABULARY else 2) * product.flops for product in upper)
    return float(sum(product.flops for product in forward) + back)


def _attention(model: Model, prefix: str, count: int, rows: int, queries: int, keys: int) -> list[Product]:
    """Scores and context of `count` layers; `rows`: of a batch, or their blocks, of so many queries and keys each."""
    heads = model.num_attention_heads
    head_size = model.hidden_size // heads
    return [
        Product(f"{prefix}scores", count, rows * heads, queries, keys, head_size),
        Product(f"{prefix}context", count, rows * heads, queries, head_size, keys, transposed=False),
    ]


def _after_attention(shapes: Shapes, prefix: str, count: int, positions: int) -> list[Product]:
    """The products of `count` layers after attention, at so many positions."""

    def product(name: str, parameter: str) -> Product:
        n, k = shapes[f"{layer_prefix(0)}{parameter}.weight"]
        return Product(f"{prefix}{name}", count, 1, positions, n, k)

    return [
        product("attention output", ATTENTION_OUTPUT),
        product("intermediate", INTERMEDIATE),
        product("output", OUTPUT),
    ]


@dataclass(frozen=True)
class Derived:
    """The derived numbers of a phase for a world size."""

    micro_batches: int  # per rank and step
    tokens_per_step: int  # positions, padding included, over all ranks
    parameters: int  # of the model in this phase
    trained: int  # how many of the parameters train
    flops_per_row: float  # of matrix products in pre-training, forward and backward
    memory_bytes: int  # of a rank, estimated: see memory_estimate.py


def derive(
    recipe: Recipe,
    phase: Phase,
    world_size: int,
    slots: tuple[int, int] | None = None,
    capability: tuple[int, int] | None = None,
    parameters: Callable[[Model], Shapes] | None = None,
) -> Derived:
    """Compute a phase's derived numbers; raises UserError if the ranks cannot share the batch.

    `slots`: a row's, at most, for masked positions and for sequences; None, for use before rows exist: those of a row
    of one sequence. `capability`: see memory_bytes. `parameters`: the method of tasks.base.Task; None: pre-training.
    """
    recipe = recipe.in_phase(phase)
    model, length, pairs = recipe.model, phase.sequence_length, recipe.objective.pairs
    shapes = parameters(model) if parameters else pretraining_shapes(model, pairs)
    trained = trained_shapes(shapes, model, phase.trained_layers)
    full = full_row_slots(recipe, phase) if DECODER_BIAS in shapes else RowSlots(0, 0)
    most, sequences = slots or (full.most, 1)
    mean = round(most * full.mean / full.most) if full.most else most  # less where the mask rate falls
    micro_batches = micro_batch_count(phase.global_batch, world_size, recipe.execution.micro_batch)
    return Derived(
        micro_batches=micro_batches,
        tokens_per_step=phase.global_batch * length,
        parameters=sum(map(math.prod, shapes.values())),
        trained=sum(map(math.prod, trained.values())),
        flops_per_row=flops_per_row(model, length, mean, sequences, pairs, phase.trained_layers),
        memory_bytes=memory_bytes(
            recipe,
            shapes,
            RankRows(length, most, sequences, micro_batches),
            world_size,
            capability,
            phase.trained_layers,
        ),
    )


def describe(
    recipe: Recipe,
    world_size: int,
    capability: tuple[int, int] | None = None,
    parameters: Callable[[Model], Shapes] | None = None,
) -> str:
    """The derived numbers of a run, as lines for people; arguments: see `derive`."""
    lines = []
    for i, phase in enumerate(recipe.phase):
        derived = derive(recipe, phase, world_size, capability=capability, parameters=parameters)
        lines.append(
            f"phase {i}: {phase.steps:,} steps of {phase.global_batch:,} rows x {phase.sequence_length} = "
            f"{derived.tokens_per_step:,} tokens; {derived.micro_batches} micro-batch(es) of "
            f"{recipe.execution.micro_batch} per rank; "
            f"memory about {gibibytes(derived.memory_bytes)} a rank (estimate)"
        )
        if phase.masked_fraction_end or phase.masked_fraction:
            slots, rate = full_row_slots(recipe, phase), mask_rate(recipe, phase)
            end = f", {rate.last:.1%} at its end" if rate.last != rate.first else ""
            lines.append(
                f"phase {i}: {rate.first:.1%} of the tokens masked{end}; {slots.most} places of a full row at most, "
                f"{slots.mean} in the mean"
            )
        if part := depth(recipe, i):
            lines.append(f"phase {i}: {part}; {derived.parameters:,} parameters, of which {derived.trained:,} train")
    numerics = recipe.numerics
    lines.append(f"parameters: {derived.parameters:,}; precision {numerics.precision}, wire {numerics.wire}")
    return "\n".join(lines)


def depth(recipe: Recipe, number: int) -> str:
    """The numbers of layers and of trained layers in a phase, for people; "" if the whole model trains."""
    phase = recipe.phase[number]
    layers = recipe.in_phase(phase).model.num_hidden_layers
    trained = phase.trained_layers or layers
    if trained == layers == recipe.model.num_hidden_layers:
        return ""
    upper = f", the upper {trained} train" if trained < layers else ""
    return f"{layers} of {recipe.model.num_hidden_layers} layers{upper}"


def flops_per_row(
    model: Model, length: int, masked_slots: int, sequences: int, pairs: bool, trained_layers: int = 0
) -> float:
    """Floating point operations of a row's matrix products, forward and backward; see costs/derived.py."""
    return training_flops(
        lambda model: matrix_products(model, 1, length, masked_slots, sequences, pairs), model, trained_layers
    )
