"""The result does not depend on how a global batch is split over ranks and micro-batches."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_horovod.model.shapes import pretraining_shapes
from tests.toy_runs import logged, metrics, train, train_rank
from tests.toys import toy_recipe

pytestmark = pytest.mark.full
OWN_VALUES = ("loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "gradient_norm")


@pytest.fixture(scope="module")
def run(store, two_ranks, tmp_path_factory) -> Callable[..., Path]:
    """A function that trains on one rank or two, and returns the output directory."""

    def train_layout(ranks: int = 1, max_steps: int | None = None, **sections) -> Path:
        output_dir = tmp_path_factory.mktemp("run")
        if ranks == 1:
            return train(store, output_dir, max_steps, **sections)
        two_ranks.run(train_rank, store.path, output_dir, toy_recipe(**sections), max_steps=max_steps)
        return output_dir

    return train_layout


@pytest.fixture(scope="module")
def whole(run) -> Path:
    """One rank, one micro-batch of 32."""
    return run()


@pytest.fixture(scope="module")
def halves(run) -> Path:
    """Two ranks, one micro-batch of 16 each."""
    return run(ranks=2, execution={"micro_batch": 16})


@pytest.fixture(scope="module")
def accumulated(run) -> Path:
    """One rank, four micro-batches of 8."""
    return run(execution={"micro_batch": 8})


def assert_same_curves(one: Path, other: Path, tolerance: float = 1e-5) -> None:
    lines = list(zip(metrics(one), metrics(other), strict=True))
    assert len(lines) == 20
    for a, b in lines:
        for name in OWN_VALUES:
            assert math.isclose(a[name], b[name], rel_tol=tolerance), (a["step"], name, a[name], b[name])


@pytest.mark.parametrize("layout", ["halves", "accumulated"])
def test_two_ranks_or_micro_batches_give_the_losses_of_one_large_batch(whole, layout, request):
    assert_same_curves(whole, request.getfixturevalue(layout))


def test_a_batch_that_does_not_divide_gives_the_same_losses(whole, run):
    assert_same_curves(whole, run(ranks=2, execution={"micro_batch": 7}))


def test_clipping_was_at_work_in_these_runs_and_the_losses_fall(whole):
    lines = metrics(whole)
    assert max(line["gradient_norm"] for line in lines) > toy_recipe().optimizer.max_grad_norm
    assert lines[-1]["mlm_loss"] < lines[0]["mlm_loss"]


def test_each_gradient_byte_is_reduced_once_a_step(whole, halves, run):
    shapes = pretraining_shapes(toy_recipe().model, True).values()
    payload = 4 * sum(math.prod(shape) for shape in shapes)
    split = run(ranks=2, max_steps=2, numerics={"wire": "float16"}, execution={"micro_batch": 4})
    assert {line["bytes_reduced"] for line in metrics(whole)} == {0}
    assert {line["bytes_reduced"] for line in metrics(halves)} == {payload}
    assert {line["bytes_reduced"] for line in metrics(split)} == {payload // 2}


def test_a_metrics_line_has_every_field(whole):
    expected = {
        *("step", "phase", "epoch", *OWN_VALUES, "exchange_norm", "learning_rate", "loss_scale", "skipped_steps"),
        *("rows_per_s", "tokens_per_s", "flops_per_s", "flops_share", "step_s", "input_wait_s", "saving_s"),
        *("reduce_wait_s", "compute_s", "slowest_compute_s", "slowest_rank", "bytes_reduced", "wire_bytes"),
        *("memory_bytes", "time"),
    }
    assert metrics(whole)[0].keys() == expected


def test_the_held_out_rows_are_evaluated_at_the_end(whole, halves):
    last = [logged(output_dir)[-1] for output_dir in (whole, halves)]
    assert last[0]["step"] == last[1]["step"] == 20
    assert math.isclose(last[0]["held_out_mlm_loss"], last[1]["held_out_mlm_loss"], rel_tol=1e-5)
    assert 0 < last[0]["held_out_nsp_loss"] < 2


@pytest.mark.parametrize(
    ("precision", "wire", "ranks", "micro_batch", "band"),
    [
        pytest.param("bfloat16", "float32", 1, 8, 0.02, marks=pytest.mark.slow),
        pytest.param("bfloat16", "float32", 2, 16, 0.02, marks=pytest.mark.slow),
        ("bfloat16", "float16", 2, 16, 0.02),
        pytest.param("float16", "float16", 2, 8, 0.01, marks=pytest.mark.slow),  # a golden run, too
    ],
)
def test_narrow_precision_stays_in_a_band_around_float32(precision, wire, ranks, micro_batch, band, whole, run):
    numerics = {"precision": precision, "wire": wire}
    narrow = run(ranks=ranks, numerics=numerics, execution={"micro_batch": micro_batch})
    for a, b in zip(metrics(whole), metrics(narrow), strict=True):
        assert math.isclose(a["mlm_loss"], b["mlm_loss"], rel_tol=band), (a["step"], a["mlm_loss"], b["mlm_loss"])


@pytest.mark.slow
@pytest.mark.parametrize("xla", ["elementwise", "layers"])  # elementwise: a golden run, too
def test_xla_gives_the_same_losses(whole, run, xla):
    assert_same_curves(whole, run(execution={"xla": xla}), tolerance=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("lamb", marks=pytest.mark.slow), "lans"])
def test_the_layer_wise_rules_agree_across_layouts(name, run):
    runs = [run(optimizer={"name": name}, execution={"micro_batch": micro_batch}) for micro_batch in (32, 8)]
    for a, b in zip(*map(metrics, runs), strict=True):
        assert math.isclose(a["loss"], b["loss"], rel_tol=1e-5), a["step"]
