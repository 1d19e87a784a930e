"""The memory estimate: differences that are known exactly.

What moves through memory between products, against a count by hand.
"""

import dataclasses
import math

import pytest

from bert_horovod.costs.memory_estimate import RankRows, kernel_bytes, memory_bytes
from bert_horovod.measuring.configuration import row_slots, size_recipe
from bert_horovod.model.parameters import WORD_EMBEDDINGS
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe_files.loading import recipe_from_table
from tests.toys import exchange_of, optimizer_of

RECIPE = recipe_from_table({"execution": {"micro_batch": 64}, "numerics": {"precision": "bfloat16"}})
SHAPES = pretraining_shapes(RECIPE.model, True)
ROWS = RankRows(length=128, masked_slots=19, sequences=1, micro_batches=1)
WITHOUT_KERNELS = 7, 0  # a compute capability
PARAMETERS = sum(map(math.prod, SHAPES.values()))


def estimate(name: str) -> int:
    recipe = dataclasses.replace(RECIPE, optimizer=optimizer_of(name))
    return memory_bytes(recipe, SHAPES, ROWS, 1, WITHOUT_KERNELS)


def test_slots_are_what_rules_differ_by():
    assert estimate("adamw") == estimate("lamb") == estimate("lans")
    assert estimate("adamw") - estimate("sgd") == 2 * 4 * PARAMETERS  # m and v; activations are the peak either way


def test_on_a_gpu_the_peak_is_in_backward_or_in_the_optimizer():
    def of(precision: str, micro_batch: int, xla: str = "layers") -> int:
        recipe = dataclasses.replace(
            RECIPE,
            numerics=dataclasses.replace(RECIPE.numerics, precision=precision),
            execution=dataclasses.replace(RECIPE.execution, micro_batch=micro_batch, xla=xla),
        )
        return memory_bytes(recipe, SHAPES, ROWS, 1, WITHOUT_KERNELS)

    numbers, words = PARAMETERS, math.prod(SHAPES[WORD_EMBEDDINGS])
    state, workspace, chunks = (4 + 8 + 2) * numbers, 32 << 20, 1.05
    # Few rows: the optimizer reads gradients of 2 bytes, or summed ones of 4, and holds new cast weights; if it does
    # not update in place, also the largest group, the word embeddings, before and after.
    assert of("bfloat16", 1) == int(state + chunks * ((2 + 2) * numbers + 2 * words) + workspace)
    assert of("float16", 1) == int(state + chunks * (4 + 2) * numbers + workspace)
    assert of("bfloat16", 1, "off") == int(state + chunks * ((2 + 2) * numbers + (2 + 2 * 12) * words) + workspace)
    assert of("float16", 1, "off") == int(state + chunks * ((4 + 2) * numbers + 2 * 12 * words) + workspace)
    assert of("bfloat16", 1) == of("bfloat16", 2) < of("bfloat16", 64)


@pytest.mark.parametrize(
    ("size", "rows", "length", "micro_batches", "kernels", "setting", "gigabytes", "within"),
    [
        ("base", 64, 128, 1, "xla", "numerics.precision=bfloat16", 4.85, 0.04),
        ("base", 128, 128, 1, "xla", "numerics.precision=bfloat16", 7.94, 0.04),
        ("base", 16, 512, 1, "xla", "numerics.precision=bfloat16", 5.81, 0.04),
        ("base", 16, 128, 4, "xla", "numerics.precision=bfloat16", 3.02, 0.04),
        ("base", 4, 128, 1, "xla", "numerics.precision=float16", 2.28, 0.04),
        ("large", 16, 128, 1, "xla", "numerics.precision=bfloat16", 7.02, 0.04),
        ("large", 16, 512, 1, "xla", "numerics.precision=bfloat16", 15.42, 0.055),
        ("base", 128, 128, 1, "auto", "numerics.precision=bfloat16", 6.83, 0.04),
        ("base", 128, 128, 2, "auto", "numerics.precision=bfloat16", 7.22, 0.04),
        ("base", 32, 512, 1, "auto", "numerics.precision=bfloat16", 6.86, 0.04),
        ("large", 64, 128, 1, "auto", "numerics.precision=bfloat16", 11.42, 0.04),
        ("large", 16, 512, 1, "auto", "numerics.precision=bfloat16", 11.46, 0.04),
        ("large", 16, 512, 1, "auto", "execution.recompute=layer", 5.91, 0.055),
    ],
)
def test_on_a_gpu_it_is_the_peak_of_tensorflows_allocator(
    size, rows, length, micro_batches, kernels, setting, gigabytes, within
):
    # Peaks of TensorFlow 2.21 on a stand-in for CUDA's libraries, with compiled layers.
    settings = ["numerics.precision=bfloat16", f"execution.kernels={kernels}", setting]
    recipe = size_recipe(size, settings, rows, length)
    shapes, slots = pretraining_shapes(recipe.model, True), row_slots(recipe, recipe.phase[0])
    estimated = memory_bytes(recipe, shapes, RankRows(length, *slots, micro_batches), 1, (9, 0))
    assert estimated == pytest.approx(1e9 * gigabytes, rel=within)


def test_what_an_exchange_keeps_on_each_rank_is_counted():
    def of(world_size: int, *exchange) -> int:
        recipe = dataclasses.replace(RECIPE, exchange=exchange_of(*exchange))
        return memory_bytes(recipe, SHAPES, ROWS, world_size, WITHOUT_KERNELS)

    assert of(2, "largest_chunks") - of(2) == 4 * PARAMETERS
    assert of(1, "largest_chunks") == of(1)
    diloco = dataclasses.replace(RECIPE, exchange=exchange_of("diloco", interval=8, fragments=4))
    for ranks in (1, 2):  # the copy, the outer momentum, and a fragment
        estimated = memory_bytes(diloco, SHAPES, ROWS, ranks, WITHOUT_KERNELS)
        assert estimated - of(ranks) == pytest.approx(4 * 2.25 * PARAMETERS, rel=0.2)


def test_the_int8_wire_keeps_what_it_owes_on_each_rank():
    def of(world_size: int, wire: str) -> int:
        numerics = dataclasses.replace(RECIPE.numerics, wire=wire)
        recipe = dataclasses.replace(RECIPE, numerics=numerics)
        return memory_bytes(recipe, SHAPES, ROWS, world_size, WITHOUT_KERNELS)

    assert of(4, "int8") - of(4, "float16") == 4 * PARAMETERS
    assert of(1, "int8") == of(1, "float32")


def counted(precision: str = "float32", recompute: str = "none") -> float:
    """Of 4 rows of 32 positions with 5 masked ones."""
    model = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = {"execution": {"micro_batch": 4, "recompute": recompute}, "numerics": {"precision": precision}}
    return kernel_bytes(recipe_from_table({"model": model | {"intermediate_size": 128}, **settings}), 32, 5)


def test_layers_embeddings_and_logits_are_counted():
    place = 6 * 64 + 2 * 64 + 2 * 4 * 64 + 2 * 128  # biases, context, two sums with LayerNorm, gelu
    scores = 2 * 4 * 32
    row = 32 * (2 * 3 * (place + scores) + 3 * 5 * 64) + 5 * 3 * 1000
    assert counted() == 4 * 4 * row
    assert counted("bfloat16") == 2 * 4 * row
    assert counted(recompute="attention") == 4 * 4 * (row + 32 * 2 * scores)
    assert counted(recompute="layer") == pytest.approx(4 * 4 * (row + 32 * 2 * (place + scores)))
