"""What moves through memory between products, against a count by hand."""

import pytest

from bert_horovod.costs.memory_estimate import kernel_bytes
from bert_horovod.recipe_files.loading import recipe_from_table


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
