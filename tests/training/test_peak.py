"""The peak of a device, a CPU's by measurement (a GPU's: costs/test_gpus.py); advice on the precision.

What a run says before its first step.
"""

import dataclasses

import pytest

from bert_horovod.collectives.world import World
from bert_horovod.recipe.sections import Model
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.peak import (
    Peak,
    cpu_advice,
    describe_peak,
    find_peak,
    gpu_advice,
    print_start,
)
from tests.toys import toy_recipe


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_cpu_is_measured_in_every_precision(precision):
    small = Model(hidden_size=64, num_attention_heads=2, intermediate_size=128)
    peak = find_peak(precision, small)
    assert 1e6 < peak.flops_per_s < 1e15
    assert peak.source == "measured on this CPU"


def test_the_peak_is_said_with_its_source_and_an_unknown_one_too():
    assert (
        describe_peak(Peak(312e12, "NVIDIA A100, data sheet"), "bfloat16")
        == "peak of matrix products in bfloat16: 312 TFLOP/s a rank (NVIDIA A100, data sheet)"
    )
    assert "unknown (NVIDIA X" in describe_peak(Peak(None, "NVIDIA X has no entry"), "bfloat16")


@pytest.mark.parametrize(
    ("precision", "capability", "advised"),
    [
        ("float32", (7, 0), None),
        ("float16", (7, 0), None),
        ("bfloat16", (7, 0), "float16"),
        ("bfloat16", (6, 1), "float32"),
        ("bfloat16", (8, 0), None),
        ("float16", (8, 0), "bfloat16"),
        ("float16", (10, 0), "bfloat16"),
        ("float16", None, None),
    ],
)
def test_a_gpus_advice_goes_by_its_compute_capability(precision, capability, advised):
    advice = gpu_advice(precision, capability)
    assert (advice is None) == (advised is None)
    if advice:
        assert advice.endswith(f": begin with --set numerics.precision={advised}")
        assert f"numerics.precision = {precision}: " in advice
        assert "\n" not in advice


@pytest.mark.parametrize(
    ("precision", "rates", "advised"),
    [
        ("bfloat16", {"float32": 2e11, "bfloat16": 4e11}, None),
        ("bfloat16", {"float32": 1.8e11, "bfloat16": 1.9e11}, "float32"),  # it has instructions, and gains too little
        ("bfloat16", {"float32": 2e11, "bfloat16": 1e9}, "float32"),
        ("float16", {"float32": 2e11, "bfloat16": 1e9, "float16": 1e9}, "float32"),
        ("float16", {"float32": 2e11, "bfloat16": 4e11, "float16": 1e9}, "bfloat16"),
        ("float16", {"float32": 2e11, "bfloat16": 4e11, "float16": 3e11}, None),
    ],
)
def test_a_cpus_advice_goes_by_its_measured_rates(precision, rates, advised):
    advice = cpu_advice(precision, rates)
    assert (advice is None) == (advised is None)
    if advice:
        assert advice.endswith(f": begin with --set numerics.precision={advised}")
        assert f"at {rates[precision] / 1e12:.3g} TFLOP/s in {precision}, at {rates[advised] / 1e12:.3g} " in advice


def test_float16_on_a_cpu_is_warned_of_at_the_start(capsys):
    print_start(toy_recipe(numerics={"precision": "float16"}), Pretraining(True), World())
    assert "warning: numerics.precision = float16: this CPU multiplies matrices at" in capsys.readouterr().err


def test_one_rank_is_warned_of_a_method_for_several(capsys):
    print_start(toy_recipe(exchange={"method": "onebit_adam"}), Pretraining(True), World())
    printed = capsys.readouterr()
    assert "bert-horovod: warning: exchange.method = 'onebit_adam' with one rank sends nothing" in printed.err
    assert printed.out.startswith("world: 1 rank(s)")
    print_start(toy_recipe(), Pretraining(True), World())
    assert "one rank" not in capsys.readouterr().err


def test_settings_that_an_override_made_idle_are_told(capsys):
    print_start(dataclasses.replace(toy_recipe(), notes=("optimizer.beta_1 = 0.8: idle",)), Pretraining(True), World())
    assert "bert-horovod: note: optimizer.beta_1 = 0.8: idle\n" in capsys.readouterr().out
