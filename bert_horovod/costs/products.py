"""The matrix products of a forward pass as data: the computation of a step, on any device."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from bert_horovod.model.parameters import (
    ATTENTION_OUTPUT,
    EMBEDDING_MAPPING,
    INTERMEDIATE,
    OUTPUT,
    Shapes,
    layer_prefix,
)
from bert_horovod.model.shapes import encoder_shapes
from bert_horovod.recipe.sections import Model

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

    The last layer computes only the positions that a head reads, but keys and values of all positions.

    Args:
        model: the sizes.
        rows: of the micro-batch.
        length: positions per row.
        masked_slots: masked positions per row, used or not.
        sequences: per row, at most.
        pairs: whether the model has a sentence-pair head, which reads each sequence's first position.
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

    If only the uppermost layers train, backward ends below them and computes no gradient of the word embeddings.

    Args:
        products: a function that returns the products of a model's forward pass.
        model: the sizes.
        trained_layers: how many of the uppermost layers train; 0: all.
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
