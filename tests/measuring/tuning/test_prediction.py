"""What settings should come to before they are tried."""

import pytest

from bert_horovod.costs.derived import derive
from bert_horovod.costs.planner import accumulation_bytes, update_bytes
from bert_horovod.measuring.tuning.prediction import ESTIMATE_MARGIN, Prediction, with_settings
from bert_horovod.measuring.tuning.trials import Trial
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe_files.loading import load_recipe
from tests.horovod_runs import PROJECT

MINI = load_recipe(PROJECT / "run" / "recipes" / "bert-mini.toml")
BASE = load_recipe(PROJECT / "run" / "recipes" / "bert-base.toml")
FIRST = {"micro_batch": 64, "xla": "auto", "recompute": "none", "threads": 0}
TRIAL = Trial(step_s=1.5, micro_batch_s=0.6, update_s=0.2, reduce_wait_s=0.03, input_wait_s=0.01)


def prediction(recipe, memory_bytes: float | None = None) -> Prediction:
    return Prediction(recipe, 0, 1, [(20, 1)] * len(recipe.phase), memory_bytes, None)


def test_a_step_is_its_micro_batches_its_sums_and_its_update_at_the_pace_of_a_trial():
    mini, parameters = prediction(MINI), derive(MINI, MINI.phase[0], 1).parameters
    pace = mini.pace(FIRST, TRIAL)
    rate = update_bytes(MINI, pretraining_shapes(MINI.model, MINI.objective.pairs), 2, 1) / 0.2
    expected_s = 2 * 0.6 + 0.2 + accumulation_bytes(MINI, parameters, 2) / rate + 0.04
    assert mini.step_s(FIRST, pace) == pytest.approx(expected_s)
    eight = FIRST | {"micro_batch": 16}  # as many rows, eight times added up
    more_s = (accumulation_bytes(MINI, parameters, 8) - accumulation_bytes(MINI, parameters, 2)) / rate
    assert mini.step_s(eight, pace) - mini.step_s(FIRST, pace) == pytest.approx(more_s, rel=1e-6)
    padded = FIRST | {"micro_batch": 100}  # two of 100 rows for 128
    assert mini.step_s(padded, pace) - mini.step_s(FIRST, pace) == pytest.approx(2 * 0.6 * 36 / 64)


def test_recomputation_is_more_work():
    mini = prediction(MINI)
    pace = mini.pace(FIRST, TRIAL)
    seconds = [mini.step_s(FIRST | {"recompute": each}, pace) for each in ("none", "attention", "layer")]
    assert seconds == sorted(set(seconds))


def test_memory_is_that_of_the_phase_that_needs_most_and_a_margin_is_left_to_the_estimate():
    base = prediction(BASE)
    needed = base.memory_bytes(FIRST)
    assert needed == derive(with_settings(BASE, FIRST), BASE.phase[1], 1, (20, 1)).memory_bytes
    assert base.fits(FIRST)  # nothing is known of the memory
    assert prediction(BASE, 1.01 * needed / ESTIMATE_MARGIN).fits(FIRST)
    assert not prediction(BASE, 0.99 * needed / ESTIMATE_MARGIN).fits(FIRST)
