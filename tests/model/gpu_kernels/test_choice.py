"""execution.kernels: what "auto" chooses, and why "triton" is refused."""

import dataclasses

import pytest
import tensorflow as tf

from bert_horovod.errors import UserError
from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from bert_horovod.model.forward import ComputePolicy
from bert_horovod.model.gpu_kernels import choice
from bert_horovod.model.gpu_kernels.choice import chosen, give_up_kernels, used, why_not
from bert_horovod.recipe.sections import Model
from bert_horovod.recipe_files.loading import load_recipe, shipped_recipes

BASE, LENGTHS = Model(), (128, 512)
POLICY = ComputePolicy(tf.bfloat16, "layers", kernels="triton")


@pytest.fixture
def capability(monkeypatch):
    """Sets the compute capability of this process's GPU."""

    def pretend(value: tuple[int, int] | None) -> None:
        monkeypatch.setattr(choice, "capability", lambda: value)

    pretend((9, 0))
    return pretend


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("value", [(8, 0), (8, 9), (9, 0), (10, 0)], ids=str)
def test_auto_uses_the_kernels_on_gpus_from_8_0_on(capability, value, precision):
    capability(value)
    assert chosen("auto", BASE, LENGTHS, precision, "layers") == "triton"
    assert chosen("triton", BASE, LENGTHS, precision, "layers") == "triton"
    assert chosen("xla", BASE, LENGTHS, precision, "layers") == "xla"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"value": None}, "no GPU"),
        ({"value": (7, 5)}, "compute capability is 7.5"),
        ({"precision": "float32"}, 'numerics.precision = "bfloat16"'),
        ({"xla": "elementwise"}, 'execution.xla = "layers", not "elementwise"'),
        ({"model": dataclasses.replace(BASE, num_attention_heads=16)}, "a head has 48 numbers"),
        ({"model": dataclasses.replace(BASE, hidden_size=8192, num_attention_heads=128)}, "at most 4096"),
        ({"model": dataclasses.replace(BASE, intermediate_size=3000)}, "128 must divide model.intermediate_size"),
        ({"model": ModernBertModel(num_attention_heads=16)}, "a head has 48 numbers, and they serve 32, 64 and 128"),
        ({"lengths": (128, 96)}, "64 must divide phase.sequence_length"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_the_kernels_do_not_serve_takes_xla_and_triton_is_an_error_that_says_why(capability, changed, reason):
    value = changed.get("value", (9, 0))
    capability(value)
    arguments = (
        changed.get("model", BASE),
        changed.get("lengths", LENGTHS),
        changed.get("precision", "bfloat16"),
        changed.get("xla", "layers"),
    )
    assert reason in why_not(value, *arguments)
    if "lengths" not in changed:  # else the phases whose length they serve use them
        assert chosen("auto", *arguments) == "xla"
    with pytest.raises(UserError, match=r'execution\.kernels = "triton"') as refusal:
        chosen("triton", *arguments)
    assert reason in str(refusal.value)


def test_every_shipped_recipe_is_served():
    for name, path in shipped_recipes().items():
        recipe = load_recipe(path)
        lengths = tuple(phase.sequence_length for phase in recipe.phase)
        assert why_not((9, 0), recipe.model, lengths, "bfloat16", "layers") is None, name


def test_a_pass_uses_the_kernels_by_its_own_length_and_until_they_fail():
    model = dataclasses.replace(BASE, vocab_size=1234)
    assert used(model, POLICY, 128)
    assert not used(model, POLICY, 100)
    assert not used(model, ComputePolicy(tf.bfloat16, "layers"), 128)
    give_up_kernels(model, 128)
    assert not used(model, POLICY, 128)
    assert used(model, POLICY, 512)
