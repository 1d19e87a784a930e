"""lab/precision.py: the same recipe in several precisions."""

import pytest

from bert_horovod.recipe_files.loading import recipe_to_toml
from tests.lab.scripts import cells, load_script, run_script
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store

STEPS = 8


@pytest.fixture(scope="module")
def precision():
    return load_script("precision")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "store"
    return write_toy_store(path, held_out=0.1, vocabulary=SMALL_VOCABULARY)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    path.write_text(recipe_to_toml(toy_recipe()))
    return path


def logged(*losses: float | None) -> list[dict]:
    return [{"loss": loss, "skipped_steps": 0, "step_s": 0.5} for loss in losses]


@pytest.mark.slow
def test_variants_stand_beside_the_reference(store, recipe):
    variants = "float32-off,float32-off-layer,bfloat16-off"
    words = ("--steps", STEPS, "--variants", variants, "--set", "execution.micro_batch=16")
    done = run_script("precision", "--data_dir", store.path, "--recipe", recipe, *words)
    assert done.returncode == 0, done.stderr
    heading, *lines = done.stdout.splitlines()
    assert "float32-off-layer: step 8/8" in done.stderr
    reference, again, recomputed, half = (dict(zip(cells(heading), cells(line), strict=True)) for line in lines)
    assert [row["configuration"] for row in (reference, again, recomputed, half)] == [
        "float32, XLA off",
        "float32, XLA off",
        "float32, XLA off, recompute layer",
        "bfloat16, XLA off",
    ]
    assert reference["largest difference"] == "-"
    assert float(again["largest difference"]) == 0
    assert float(recomputed["largest difference"]) < 1e-5
    assert 1e-5 < float(half["largest difference"]) < 0.05
    assert float(reference["loss at step 1"]) == pytest.approx(float(half["loss at step 1"]), rel=0.01)
    assert {"at 2", "at 4", "at 8", "skipped", "step s"} <= set(reference)


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_left_out(store, recipe):
    scale = "numerics.initial_loss_scale=1e38"
    words = ("--steps", STEPS, "--variants", "float16-off", "--set", scale, "--set", "numerics.max_skipped_steps=2")
    done = run_script("precision", "--data_dir", store.path, "--recipe", recipe, *words)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert "left out: float16-off ended with" in done.stderr
    assert "2 updates in a row had gradients that are not finite" in done.stderr


def test_differences_are_from_the_reference_step_by_step(precision):
    reference = logged(*[4.0] * 30)
    losses = [4.0] * 30
    losses[3], losses[29] = 5.0, 3.0
    row = precision.result("bfloat16-elementwise", logged(*losses), reference)
    assert row["largest"] == 0.25
    assert row["last"] == pytest.approx(-1 / 20)
    assert row["quarter"] == pytest.approx(29 / 7)  # steps 1 to 7
    assert row["half"] == 4.0  # steps 6 to 15
    assert row["end"] == pytest.approx(3.9)
