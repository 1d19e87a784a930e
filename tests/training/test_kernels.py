"""A run whose Triton kernels do not compile says so and goes on with what XLA makes."""

import pytest

from bert_horovod.errors import RunError
from bert_horovod.measuring.synthetic import TimedStep, synthetic_batch, synthetic_step
from bert_horovod.model import encoder
from bert_horovod.model.gpu_kernels import choice, programs
from bert_horovod.model.gpu_kernels.choice import compute_policy
from bert_horovod.recipe_files.loading import recipe_from_table

ROWS, LENGTH = 2, 64
MODEL = {"vocab_size": 100, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture
def pretended_gpu(monkeypatch):
    """The program takes this process's CPU for a GPU that the kernels serve; XLA cannot compile them for it."""
    monkeypatch.setattr(choice, "_failed", set())
    for module in (choice, encoder, programs):
        monkeypatch.setattr(module, "capability", lambda: (9, 0))


def step(kernels: str) -> TimedStep:
    recipe = recipe_from_table(
        {
            "model": MODEL | {"intermediate_size": 256, "max_position_embeddings": LENGTH},
            "numerics": {"precision": "bfloat16"},
            "phase": [{"sequence_length": LENGTH, "global_batch": ROWS}],
            "execution": {"micro_batch": ROWS, "xla": "layers", "kernels": kernels},
        }
    )
    assert compute_policy(recipe).kernels == ("xla" if kernels == "xla" else "triton")
    return synthetic_step(recipe, synthetic_batch(recipe.model, ROWS, LENGTH, 8, 2), 1)


def test_kernels_that_do_not_compile_are_reported_once_and_not_used(pretended_gpu, capsys):
    automatic = step("auto")
    model, policy = automatic.recipe.model, compute_policy(automatic.recipe)
    assert choice.used(model, policy, LENGTH)
    for _ in range(2):
        automatic.step.try_kernels(ROWS, LENGTH)
    warnings = [line for line in capsys.readouterr().err.splitlines() if "the Triton kernels failed" in line]
    assert len(warnings) == 1
    assert 'execution.kernels = "xla"' in warnings[0]
    assert not choice.used(model, policy, LENGTH)
    assert not automatic.step.folds_lookups


@pytest.mark.slow
def test_a_run_without_its_kernels_has_the_losses_of_xla(pretended_gpu):
    assert step("auto").run().sums == step("xla").run().sums


def test_kernels_that_a_recipe_asks_for_and_that_do_not_compile_end_the_run(pretended_gpu):
    with pytest.raises(RunError, match="the Triton kernels failed"):
        step("triton").run()
