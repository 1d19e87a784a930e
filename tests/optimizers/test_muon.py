"""Muon: its formula in float64, its slots and batches, its cost, and runs on ranks that train alone."""

import dataclasses
import json
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from bert_horovod.costs import memory_estimate
from bert_horovod.costs.measurements import measured_device
from bert_horovod.costs.memory_estimate import RankRows, memory_bytes
from bert_horovod.costs.planner import Device, Network, plan_phase, update_bytes
from bert_horovod.errors import UserError
from bert_horovod.exchange.base import UpdateInputs
from bert_horovod.exchange.updater import Updater
from bert_horovod.measuring.configuration import describe_recipe
from bert_horovod.model import parameters
from bert_horovod.model.parameters import update_groups
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.model.weights import CastWeights
from bert_horovod.optimizers.base import slot_numbers, slot_shapes
from bert_horovod.optimizers.muon import orthogonal
from bert_horovod.recipe_files.loading import recipe_from_table
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.training import agreement
from tests.toy_runs import assert_same_files, losses, metrics, newest, train, train_rank
from tests.toys import optimizer_of, toy_recipe

STEPS = 20
LAYER = "bert.encoder.layer.{}."
SHAPES = {
    "bert.embeddings.word_embeddings.weight": (12, 6),
    **{f"{LAYER.format(i)}{part}.weight": (6, 6) for i in range(2) for part in ("query", "key")},
    **{f"{LAYER.format(i)}intermediate.dense.weight": (9, 6) for i in range(2)},
    **{f"{LAYER.format(i)}output.dense.weight": (6, 9) for i in range(2)},
    **{f"{LAYER.format(i)}output.dense.bias": (6,) for i in range(2)},
    **{f"{LAYER.format(i)}attention.self.qkv.weight": (9, 3) for i in range(2)},  # three matrices of 3 x 3
    "bert.encoder.layer.0.zero.weight": (6, 6),  # without a gradient
    "cls.predictions.transform.dense.weight": (6, 6),
}


def hidden(name: str) -> bool:
    return ".layer." in name and name.endswith(".weight")


def initial() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def gradients_of(step: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng([2, step])
    return {name: ("zero" not in name) * random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def numpy_orthogonal(u: np.ndarray) -> np.ndarray:
    x = u / (np.sqrt((u * u).sum()) + 1e-7)
    x = x.T if x.shape[0] > x.shape[1] else x
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if u.shape[0] > u.shape[1] else x


def transcribed(settings, rate: float) -> dict[str, np.ndarray]:
    """Parameters after STEPS, in float64, with clipping."""
    x = {name: each.astype(np.float64) for name, each in initial().items()}
    m, v = ({name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(2))
    for t in range(1, STEPS + 1):
        gradients = {name: g.astype(np.float64) for name, g in gradients_of(t).items()}
        norm = np.sqrt(sum((g * g).sum() for g in gradients.values()))
        for name, g in gradients.items():
            g = g / max(1.0, norm / settings.max_grad_norm)
            wd = settings.weight_decay * (not name.endswith("bias"))
            if hidden(name):
                m[name] = settings.momentum * m[name] + (1 - settings.momentum) * g
                u = settings.momentum * m[name] + (1 - settings.momentum) * g
                parts = np.split(u, 3) if "qkv" in name else [u]
                along = np.concatenate([0.2 * np.sqrt(max(part.shape)) * numpy_orthogonal(part) for part in parts])
                x[name] = x[name] - rate * (along + wd * x[name])
            else:
                m[name] = settings.beta_1 * m[name] + (1 - settings.beta_1) * g
                v[name] = settings.beta_2 * v[name] + (1 - settings.beta_2) * g * g
                mh, vh = m[name] / (1 - settings.beta_1**t), v[name] / (1 - settings.beta_2**t)
                along = mh / (np.sqrt(vh) + settings.epsilon)
                x[name] = x[name] - rate * settings.adamw_rate * (along + wd * x[name])
    return x


@pytest.mark.parametrize(
    ("at_once", "batch_numbers"),
    [(False, 1 << 25), (False, 80), pytest.param(True, 80, marks=pytest.mark.full)],  # True: one program by XLA
)
def test_it_follows_its_formula_in_batches_of_one_shape(monkeypatch, at_once, batch_numbers):
    monkeypatch.setattr(parameters, "BATCH_NUMBERS", batch_numbers)
    settings = optimizer_of("muon", weight_decay=0.3, adamw_rate=0.5, max_grad_norm=0.7)
    recipe = dataclasses.replace(toy_recipe(), optimizer=settings)
    state = TrainingState(initial(), slot_shapes(recipe, SHAPES), Progress())
    updater = Updater(
        state.parameters, state.slots, CastWeights(state.parameters, tf.float32), settings, at_once, at_once
    )

    @tf.function(autograph=False)
    def step(gradients, t):
        grouped = updater.grouped(gradients)
        updater.apply(grouped, updater.norm(grouped), UpdateInputs(tf.constant(0.02), t))

    for t in range(1, STEPS + 1):
        step({name: tf.constant(g) for name, g in gradients_of(t).items()}, tf.constant(float(t)))
    for name, expected in transcribed(settings, 0.02).items():
        np.testing.assert_allclose(state.parameters[name].numpy(), expected, rtol=1e-3, atol=3e-5, err_msg=name)


def test_singular_values_come_near_1_and_zeros_stay():
    random = np.random.default_rng(0)
    matrices = random.normal(size=(3, 40, 24)).astype(np.float32)
    matrices[0] *= 1e-3
    matrices[2] = 0
    made = orthogonal(tf.constant(matrices)).numpy()
    for each in made[:2]:
        values = np.linalg.svd(each, compute_uv=False)
        assert 0.6 < values.min() < values.max() < 1.3
    assert not made[2].any()
    np.testing.assert_allclose(made[1], numpy_orthogonal(matrices[1].astype(np.float64)), atol=1e-4)


@pytest.mark.parametrize(("products", "tolerance"), [("float32", 1e-4), ("float16", 0.03), ("bfloat16", 0.2)])
def test_narrow_products_stay_near_float64_for_a_matrix_of_condition_1e4(products, tolerance):
    random = np.random.default_rng(3)
    left, _, right = np.linalg.svd(random.normal(size=(64, 96)), full_matrices=False)
    matrix = (left * np.logspace(0, -4, 64)) @ right
    made = orthogonal(tf.constant(matrix[None], tf.float32), products).numpy()[0]
    difference = made - numpy_orthogonal(matrix)
    assert np.sqrt((difference**2).mean()) < tolerance * np.sqrt((made**2).mean())


def test_matrices_of_layers_have_one_slot_and_all_others_two():
    recipe = toy_recipe(optimizer={"name": "muon"})
    shapes = pretraining_shapes(recipe.model, True)
    slots = slot_shapes(recipe, shapes)
    assert slots["m"] == shapes
    without = shapes.keys() - slots["v"].keys()
    assert len(without) == 6 * recipe.model.num_hidden_layers
    assert all(hidden(name) for name in without)
    base = recipe_from_table({"optimizer": {"name": "muon"}})
    shapes = pretraining_shapes(base.model, True)
    assert slot_numbers(base, shapes) == 2 * 110_106_428 - 84_934_656  # 12 x 12 x 768^2


def test_batches_have_one_shape_and_a_limit(monkeypatch):
    groups = update_groups(SHAPES, optimizer_of("muon").batched)
    assert sorted(name for group in groups for name in group) == sorted(SHAPES)
    sizes = sorted(len(group) for group in groups if hidden(group[0]))
    assert sizes == [2, 2, 2, 5]
    assert all(len({SHAPES[name] for name in group}) == 1 for group in groups)
    assert {len(group) for group in groups if not hidden(group[0])} == {1, 2}
    monkeypatch.setattr(parameters, "BATCH_NUMBERS", 110)  # three matrices of 36 numbers
    limited = update_groups(SHAPES, optimizer_of("muon").batched)
    assert sorted(len(group) for group in limited if hidden(group[0])) == [2, 2, 2, 2, 3]


def test_a_plan_counts_the_products():
    table = {"model": {"num_hidden_layers": 12}, "phase": [{"global_batch": 256}]}
    shapes = pretraining_shapes(recipe_from_table(table).model, True)
    flops = optimizer_of("muon").flops(shapes)
    assert flops == pytest.approx(1.63e12, rel=0.01)  # 48 matrices of 768 x 768, 24 of 768 x 3072
    device, network = Device("toy", 1e13, product_share=0.5), Network(1e9)
    plans = [
        plan_phase(recipe_from_table(table | {"optimizer": {"name": name}}), 0, 1, device, network)
        for name in ("adamw", "muon")
    ]
    assert plans[1].step_s - plans[0].step_s == pytest.approx(flops / 5e12)


def test_a_plan_of_a_measured_step_takes_what_was_measured(tmp_path):
    toy = recipe_from_table(
        {"optimizer": {"name": "muon"}, "phase": [{"global_batch": 4}], "execution": {"micro_batch": 4}}
    )
    path = tmp_path / "compute.json"
    measured = {"step_s": 1.0, "forward_backward_s": 0.4, "flops_per_s": 1e13, "configuration": describe_recipe(toy)}
    path.write_text(json.dumps(measured), encoding="utf-8")
    device = measured_device(path, toy, Device("sheet", 1.0))
    shapes = pretraining_shapes(toy.model, True)
    products_s = toy.optimizer.flops(shapes) / device.flops_per_s
    assert device.flops_per_s == 1e13 / 0.4
    assert device.memory_bytes_per_s == pytest.approx(update_bytes(toy, shapes, 1, 1) / (0.6 - products_s))
    assert plan_phase(toy, 0, 1, device, Network(1e9)).update_s == pytest.approx(0.6)


@pytest.mark.parametrize("capability", [None, (9, 0)])
def test_the_estimate_of_memory_has_the_largest_batch(monkeypatch, capability):
    rows = RankRows(length=8, masked_slots=1, sequences=1, micro_batches=1)
    base = recipe_from_table({"optimizer": {"name": "muon"}, "execution": {"micro_batch": 1}})
    shapes = pretraining_shapes(base.model, True)
    estimates = []
    for batch_bytes in (28, 56):
        monkeypatch.setattr(memory_estimate, "BATCH_BYTES", batch_bytes)
        estimates.append(memory_bytes(base, shapes, rows, 1, capability))
    assert estimates[1] - estimates[0] == pytest.approx((1.05 if capability else 1) * 28 * 48 * 768**2, rel=1e-6)


@pytest.mark.parametrize(("setting", "value"), [("momentum", 1.0), ("momentum", -0.1), ("adamw_rate", 0.0)])
def test_settings_have_limits(setting, value):
    with pytest.raises(UserError, match=rf"optimizer\.{setting} = {value}: expected "):
        toy_recipe(optimizer={"name": "muon", setting: value})


DILOCO = {
    "optimizer": {"name": "muon"},
    "exchange": {"method": "diloco", "interval": 4, "outer_momentum": 0.6},
    "execution": {"checkpoint_steps": 5},
}


@pytest.mark.parametrize(
    ("precision", "updates", "kept", "ranks", "agreed"),
    [
        ("bfloat16", 0, "", [["bfloat16", "float16"], ["bfloat16", "float16"]], "bfloat16"),
        ("bfloat16", 0, "", [["bfloat16", "float16"], ["float16"]], "float16"),
        ("bfloat16", 0, "", [["bfloat16", "float16"], []], "float32"),
        ("float32", 0, "", [["bfloat16", "float16"]] * 2, "float32"),
        ("float32", 5, "", [["bfloat16", "float16"]] * 2, "bfloat16"),  # of a version that kept none
        ("bfloat16", 5, "", [["float16"]] * 2, "float32"),
        ("bfloat16", 5, "", [["bfloat16"]] * 2, "float32"),  # CPUs
        ("bfloat16", 5, "bfloat16", [[], []], "bfloat16, as the run began: slowly on a device without units for it"),
    ],
)
def test_ranks_take_the_narrowest_products_that_all_have_and_a_run_keeps_them(
    two_ranks, precision, updates, kept, ranks, agreed
):
    recipe = toy_recipe(optimizer={"name": "muon"}, numerics={"precision": precision})
    for rank in two_ranks.run(agree_as, recipe, ranks, updates, kept):
        assert rank.value == (f"muon multiplies matrices in {agreed}", agreed.partition(",")[0])


def agree_as(world, recipe, ranks: list[list[str]], updates: int, kept: str) -> tuple[str, str]:
    """What a rank says and keeps whose device pretends to have the fast dtypes of its number."""
    progress = Progress(updates=updates, products=kept)
    with mock.patch.object(agreement, "fast_products", return_value=ranks[world.rank]):
        return agreement.agree_on_products(recipe, progress, world), progress.products


@pytest.mark.full
def test_a_rank_that_lacks_narrow_products_does_not_drift_from_the_others(two_ranks, store, tmp_path):
    recipe = toy_recipe(
        optimizer={"name": "muon"}, numerics={"precision": "bfloat16"}, execution={"consistency_steps": 1}
    )
    two_ranks.run(train_unlike, store.path, tmp_path / "run", recipe)
    assert len(metrics(tmp_path / "run")) == STEPS  # and the ranks were equal after each of them
    assert json.loads((newest(tmp_path / "run") / "training" / "state.json").read_text())["progress"]["products"] == (
        "float32"
    )


def train_unlike(world, *arguments) -> None:
    """train_rank, where rank 0 alone has bfloat16."""
    with mock.patch.object(agreement, "fast_products", return_value=[] if world.rank else ["bfloat16"]):
        train_rank(world, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("exchange", [{}, DILOCO["exchange"]], ids=["gradients", "diloco"])
def test_two_ranks_learn_resume_bit_for_bit_and_go_on_as_one(two_ranks, store, tmp_path, exchange):
    recipe = toy_recipe(**DILOCO | {"exchange": exchange})
    two_ranks.run(train_rank, store.path, tmp_path / "whole", recipe)
    for steps in (6, 20):
        two_ranks.run(train_rank, store.path, tmp_path / "stopped", recipe, max_steps=steps)
    assert_same_files(tmp_path / "whole", tmp_path / "stopped")
    numbers = losses(tmp_path / "whole")
    assert np.mean(numbers[-5:]) < np.mean(numbers[:5]) - 0.03
    two_ranks.run(train_rank, store.path, tmp_path / "other", recipe, max_steps=10)
    train(store, tmp_path / "other", **DILOCO | {"exchange": exchange})
    assert len(metrics(tmp_path / "other")) == STEPS
    if not exchange:
        one, other = (load_file(newest(tmp_path / run) / "model.safetensors") for run in ("whole", "other"))
        for name, each in one.items():
            np.testing.assert_allclose(other[name], each, atol=2e-4, err_msg=name)
