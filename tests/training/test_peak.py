"""The peak of a device: the table by a GPU's name, a CPU's by measurement; advice on the precision.

What a run says before its first step.
"""

import dataclasses
import math

import pytest

from bert_horovod.collectives.world import World
from bert_horovod.costs.gpus import GPUS, gpu_peak
from bert_horovod.recipe.sections import Model
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.peak import (
    Peak,
    cpu_advice,
    describe_peak,
    find_peak,
    gpu_advice,
    precision_advice,
    print_start,
)
from tests.toys import toy_recipe

TERA = 1e12
AMD = {"fpu", "avx512f", "avx512_bf16"}
OLD = {"fpu", "avx2"}


@pytest.mark.parametrize(
    ("name", "float32", "float16", "bfloat16"),
    [
        ("Tesla V100-SXM2-16GB", 15.7, 125, None),
        ("Tesla V100-PCIE-32GB", 14, 112, None),
        ("Tesla V100S-PCIE-32GB", 16.4, 130, None),
        ("Tesla T4", 8.1, 65, None),
        ("NVIDIA GeForce RTX 2080 Ti", 13.4, 53.8, None),
        ("NVIDIA A100-SXM4-40GB", 19.5, 312, 312),
        ("NVIDIA A100 80GB PCIe", 19.5, 312, 312),
        ("NVIDIA A10", 31.2, 125, 125),
        ("NVIDIA A30", 10.3, 165, 165),
        ("NVIDIA A40", 37.4, 149.7, 149.7),
        ("NVIDIA GeForce RTX 3090", 35.6, 71, 71),
        ("NVIDIA GeForce RTX 4090", 82.6, 165.2, 165.2),
        ("NVIDIA L4", 30.3, 121, 121),
        ("NVIDIA L40", 90.5, 181, 181),
        ("NVIDIA L40S", 91.6, 362, 362),
        ("NVIDIA RTX A6000", 38.7, 154.8, 154.8),
        ("NVIDIA RTX 6000 Ada Generation", 91.1, 364.2, 364.2),
        ("NVIDIA GeForce RTX 5090", 104.8, 209.5, 209.5),
        ("H100", 67, 989, 989),
        ("NVIDIA H100 80GB HBM3", 67, 989, 989),
        ("NVIDIA H100 PCIe", 51, 756, 756),
        ("NVIDIA H100 NVL", 60, 835, 835),
        ("NVIDIA H200", 67, 989, 989),
        ("NVIDIA B200", 75, 2250, 2250),
    ],
)
def test_a_known_gpu_has_its_makers_peak(name, float32, float16, bfloat16):
    peaks = [gpu_peak(name, precision, tensor_float_32=False) for precision in ("float32", "float16", "bfloat16")]
    assert peaks == [value and value * TERA for value in (float32, float16, bfloat16)]


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A10G",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA H100 64GB HBM2",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "GRID A100-10C",
        "NVIDIA A40-12Q",
        "Some other accelerator",
    ],
)
def test_what_is_not_in_the_table_or_part_of_a_gpu_is_unknown(name):
    assert gpu_peak(name, "float32", tensor_float_32=True) is None


def test_float32_is_tf32_only_where_that_is_enabled_and_there():
    assert gpu_peak("NVIDIA A100-SXM4-40GB", "float32", tensor_float_32=True) == 156 * TERA
    assert gpu_peak("NVIDIA A100-SXM4-40GB", "bfloat16", tensor_float_32=True) == 312 * TERA
    assert gpu_peak("Tesla V100-SXM2-16GB", "float32", tensor_float_32=True) == 15.7 * TERA


def test_narrower_is_never_slower_in_the_table():
    for peaks in (gpu.peaks for gpu in GPUS):
        assert peaks.float32 <= (peaks.tensor_float_32 or math.inf)
        assert (peaks.tensor_float_32 or peaks.float32) < peaks.float16
        assert peaks.bfloat16 in (None, peaks.float16)
        assert (peaks.bfloat16 is None) == (peaks.tensor_float_32 is None)


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
        ("bfloat16", (7, 5), "float16"),
        ("bfloat16", (6, 1), "float32"),
        ("bfloat16", (8, 0), None),
        ("float16", (8, 0), "bfloat16"),
        ("float16", (8, 9), "bfloat16"),
        ("float16", (9, 0), "bfloat16"),
        ("float16", (10, 0), "bfloat16"),
        ("float16", None, None),
    ],
)
def test_a_gpus_advice_goes_by_its_compute_capability(precision, capability, advised):
    advice = gpu_advice(precision, capability)
    assert (advice is None) == (advised is None)
    if advice:
        assert advice.endswith(f"--set numerics.precision={advised}")
        assert f"numerics.precision = {precision}: " in advice
        assert "\n" not in advice


@pytest.mark.parametrize(
    ("precision", "flags", "advised"),
    [
        ("float32", OLD, None),
        ("bfloat16", AMD, None),
        ("bfloat16", OLD | {"amx_bf16"}, None),
        ("bfloat16", OLD, "float32"),
        ("float16", OLD, "float32"),
        ("float16", AMD, "bfloat16"),
        ("float16", AMD | {"avx512_fp16"}, "bfloat16"),
        ("float16", OLD | {"avx512_fp16", "amx_fp16"}, "float32"),
        ("float16", set(), "float32"),
        ("bfloat16", set(), None),  # another kind of CPU, of which this file says nothing
    ],
)
def test_a_cpus_advice_goes_by_its_instructions(precision, flags, advised):
    advice = cpu_advice(precision, flags)
    assert (advice is None) == (advised is None)
    if advice:
        assert advice.endswith(f"--set numerics.precision={advised}")


def test_float32_is_never_advised_against():
    assert precision_advice("float32") is None


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
