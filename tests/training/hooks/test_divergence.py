"""Divergence is noticed on all ranks alike, traced to tensor and rows, and answered as the recipe says."""

import math
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.batches.text.index import open_index
from bert_horovod.batches.text.mixture import MixedDataset
from bert_horovod.batches.text.store_dataset import StoreDataset
from bert_horovod.collectives.world import World
from bert_horovod.recipe.fields import Numbers
from bert_horovod.recipe.settings import Numerics, Phase
from bert_horovod.runs.checkpoint import paths, step_of
from bert_horovod.runs.directory import claim
from bert_horovod.runs.state import Progress
from bert_horovod.training import loop
from bert_horovod.training.hooks import divergence
from bert_horovod.training.hooks.divergence import (
    JUMP_STEPS,
    MEAN_DECAY,
    SETTLED,
    BadBatch,
    Diverged,
    DivergenceHook,
    check,
    inspecting,
    overflow_of_sums,
    pass_over,
)
from tests.toy_runs import at_step, logged, metrics, training_state
from tests.toys import toy_recipe
from tests.training.faulty_ranks import train_with_fault

pytestmark = pytest.mark.full

EXECUTION = {"micro_batch": 8, "checkpoint_steps": 5, "consistency_steps": 1}


@pytest.fixture
def faulty(store, two_ranks, tmp_path):
    """A function that trains with a fault and returns the UserError's text, if one ended it, and the directory."""

    def run(fault: str, first: int, last: int, ranks: int = 1, **sections) -> tuple[str | None, Path]:
        recipe = toy_recipe(**{"execution": EXECUTION, "phase": {"steps": 12}} | sections)
        os.close(claim(tmp_path / "run", recipe, store.hash))
        job = (store.path, tmp_path / "run", recipe, fault, first, last)
        if ranks == 1:
            return train_with_fault(World(), *job), tmp_path / "run"
        first_error, other_error = (answer.value for answer in two_ranks.run(train_with_fault, *job))
        assert first_error == other_error
        return first_error, tmp_path / "run"

    return run


def incidents(output_dir: Path) -> list[dict]:
    return [line for line in logged(output_dir) if "incident" in line]


@pytest.mark.parametrize(
    ("wire", "ranks", "micro_batches", "causes"),
    [
        ("float32", 1, 1, "their norm in float32"),
        ("float16", 1, 1, "their norm in float32"),
        ("float32", 1, 4, "their sum over micro-batches or their norm in float32"),
        ("float32", 2, 1, "their sum over ranks or their norm in float32"),
        ("float16", 2, 1, "their sum over ranks or the float16 wire or their norm in float32"),
        (
            "int8",
            2,
            2,
            "their sum over micro-batches or their sum over ranks or the int8 wire or their norm in float32",
        ),
    ],
)
def test_what_overflowed_is_something_that_the_run_has(wire, ranks, micro_batches, causes):
    assert overflow_of_sums(wire, ranks, micro_batches) == (
        f"each micro-batch's gradients are finite, but too large: {causes} overflowed"
    )


@pytest.mark.parametrize(("precision", "advised"), [("float32", False), ("bfloat16", False), ("float16", True)])
def test_another_precision_is_advised_only_where_it_holds_larger_numbers(precision, advised):
    progress = Progress(step=57, skipped_in_a_row=50, loss_scale=256.0 if advised else 1.0)
    with pytest.raises(Diverged, match="step 57: 50 updates in a row had gradients that are not finite") as caught:
        check(progress, Numerics(precision=precision), Phase(), 4.0, False, 512.0)
    assert ("numerics.precision" in str(caught.value)) == ("loss scale 256" in str(caught.value)) == advised


def test_a_rows_fault_on_one_rank_skips_the_update_on_all_and_names_the_rows(faulty, store, capsys):
    rows = open_index(store, 32, "next_sentence", True).rows
    first = 4 * 32 + 24  # in the fifth step: the last micro-batch of the second rank
    error, output_dir = faulty("not-finite", first, first + 2, ranks=2)
    assert error is None  # the state was compared over ranks after every step
    skipped = [line["skipped_steps"] for line in metrics(output_dir)]
    assert skipped == [0] * 4 + [1] * 8
    assert metrics(output_dir)[4]["loss"] is None
    (incident,) = incidents(output_dir)
    assert incident["step"] == 5
    assert "rank 1 found numbers that are not finite in cls.predictions" in incident["incident"]
    command = incident["incident"].partition("bert-horovod ")[2].split()
    assert command[-4:] == ["--row", str(first % rows), "--rows", "8"]
    capsys.readouterr()
    assert dispatch(parse(["bert-horovod", *command])) == 0
    assert f"row {first % rows}:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mixtures", "step", "jumped", "mean"),
    [
        (({"own": 1}, {"own": 1}), 20, 0, 2.0),
        (({"general": 1, "own": 0}, {"general": 0, "own": 1}), 20, 0, None),
        (({"general": 1, "own": 0}, {"general": 0, "own": 1}), 21, 0, 2.0),
        (({"general": 1, "own": 0}, {"general": 0, "own": 1}), 20, 3, 2.0),
    ],
)
def test_a_phase_of_other_stores_has_a_mean_of_its_own(mixtures, step, jumped, mean):
    """A language that is new to the model has a loss far above that of the one before."""
    (phase,) = toy_recipe().phase
    recipe = replace(toy_recipe(), phase=tuple(replace(phase, mixture=Numbers(each.items())) for each in mixtures))
    state = SimpleNamespace(progress=Progress(step=step, mean_loss=2.0, jumped_in_a_row=jumped))
    DivergenceHook(SimpleNamespace(recipe=recipe, state=state, phase=SimpleNamespace(number=1, begin=20))).phase()
    assert state.progress.mean_loss == mean


def test_no_command_is_named_that_would_show_other_rows():
    told = BadBatch(rank=1, epoch=2, row=144, rows=8, tensor="cls.predictions.bias", more=0).describe(flags="")
    assert told.endswith("Its rows: 8 from row 144 of epoch 2 on")


STORE = SimpleNamespace(path=Path("a store"))
INDEXED, OWN = StoreDataset(STORE, toy_recipe(), Path("an index")), StoreDataset(STORE, toy_recipe())
MIXED = MixedDataset({"a": SimpleNamespace(path=Path("one"))}, toy_recipe(), Path("index"))


@pytest.mark.parametrize(
    ("dataset", "phases_before", "flags"),
    [
        (OWN, 0, "--data_dir 'a store' --recipe 'a run/recipe.toml'"),
        (INDEXED, 0, "--data_dir 'a store' --index_dir 'an index' --recipe 'a run/recipe.toml'"),
        (MIXED, 0, "--data_dir a=one --index_dir index --recipe 'a run/recipe.toml'"),
        (OWN, 1, None),
        (SimpleNamespace(path=Path("train.csv")), 0, None),  # of a fine-tuning
    ],
)
def test_rows_are_shown_by_inspect_where_it_has_them(dataset, phases_before, flags):
    job, progress = SimpleNamespace(dataset=dataset, output_dir=Path("a run")), Progress(phases_before=phases_before)
    run = SimpleNamespace(job=job, state=SimpleNamespace(progress=progress), phase=SimpleNamespace(number=1))
    assert inspecting(run) == (f"{flags} --phase 1" if flags else "")


# The loss is far up in steps 27 to `jumped`.
@pytest.mark.parametrize(
    ("jumped", "steps", "every", "stop", "words", "saved"),
    [
        (27, 32, 9, False, None, [9, 18, 28, 32]),  # 27 was due
        (28, 60, 9, True, None, [9, 18, 29]),
        (60, 60, 25, False, ["step 36: ", "for 10 steps far", "step-00000025 begins before it"], [25]),
        (60, 60, 99, True, ["step 36: ", "another --output_dir"], []),
        (60, 30, 25, False, ["step 30: ", "for 4 steps far", "within 10 steps and before the end"], [25]),
    ],
)
def test_a_jump_of_the_loss_is_divergence_if_it_lasts(faulty, monkeypatch, jumped, steps, every, stop, words, saved):
    if stop:
        asking = at_step(27, lambda run: (run.job.output_dir / "stop").touch())
        monkeypatch.setattr(loop, "HOOKS", (*loop.HOOKS, asking))
    execution = EXECUTION | {"micro_batch": 32, "checkpoint_steps": every, "keep_checkpoints": 9}
    error, output_dir = faulty("jump", 26 * 32, jumped * 32, phase={"steps": steps}, execution=execution)
    assert [step_of(path.name) for path in paths(output_dir)] == saved
    told, *back = [line["incident"] for line in incidents(output_dir)]
    assert re.match(
        r"step 27: the loss is \d+, and was [45]\.\d+ in the mean of the steps before; if it stays up", told
    )
    if words is None:
        assert error is None
        assert re.fullmatch(rf"step {jumped + 1}: the loss is back at [45]\.\d+", *back)
        assert training_state(output_dir)["progress"]["mean_loss"] < 5
        return
    for word in [*words, "Lower the phase's learning_rate (now ", ", lengthen its warmup (now "]:
        assert word in error
    assert ("--init_checkpoint" in error) == bool(saved)


def test_a_jump_that_lasts_is_gone_back_from_and_its_rows_are_passed_over(faulty, store):
    numerics, phase = {"on_divergence": "rollback"}, {"steps": 40}
    error, output_dir = faulty("jump", 26 * 32 + 16, 36 * 32, ranks=2, numerics=numerics, phase=phase)
    assert error is None
    rows = open_index(store, 32, "next_sentence", True).rows
    (incident,) = incidents(output_dir)
    assert "step 36: the loss is" in incident["incident"]
    assert "Back to step 25; passing over the rows of the 11 steps since (rollback 1" in incident["incident"]
    steps = metrics(output_dir)
    assert [line["step"] for line in steps] == list(range(1, 41))
    assert max(line["loss"] for line in steps) < 6
    state = training_state(output_dir)
    assert state["progress"]["passed_over"] == {"0": 11}
    assert state["position"]["epoch"] * rows + state["position"]["row"] == 32 * 51


# Finite gradients, and updates that are too large for float32.
@pytest.mark.parametrize("optimizer", [{"weight_decay": 1e30}, {"name": "muon", "adamw_rate": 1e30}])
def test_a_run_does_not_end_well_with_parameters_that_are_not_finite(faulty, optimizer):
    execution = EXECUTION | {"consistency_steps": 0}
    error, output_dir = faulty("none", 0, 0, optimizer=optimizer, phase={"steps": 4}, execution=execution)
    assert re.match(r"step 4: .* not finite, so no checkpoint is written. Lower the learning rates and weight", error)
    assert paths(output_dir) == []


@pytest.mark.slow
def test_a_run_that_goes_on_diverging_stops(faulty, monkeypatch):
    monkeypatch.setattr(divergence, "MOST_ROLLBACKS", 2)
    monkeypatch.setattr(divergence, "MOST_SKIPPED", 1)
    error, _ = faulty("not-finite", 6 * 32, 1 << 40, numerics={"on_divergence": "rollback"})
    assert "The run has gone back to step 5 2 times and diverged each time" in error


def progress(**values) -> Progress:
    return Progress(step=40, updates=40, **values)


@pytest.mark.parametrize(
    ("numerics", "loss", "finite", "scale", "message"),
    [
        (Numerics(), 7.5, True, 1.0, r"step 40: the loss is 7.5, for 10 steps far above its mean of 4"),
        (Numerics(), math.nan, True, 1.0, r"the loss is nan"),
        (Numerics(precision="float16"), 4.0, False, 1.0, r"the loss scale has fallen to 1"),
        (Numerics(), 4.0, False, 1.0, r"50 updates in a row"),
    ],
)
def test_divergence_is_recognised(numerics, loss, finite, scale, message):
    skipped = 50 if "updates" in message else 7
    state = progress(mean_loss=4.0, skipped_in_a_row=skipped, jumped_in_a_row=JUMP_STEPS - 1)
    with pytest.raises(Diverged, match=message):
        check(state, numerics, Phase(), loss, finite, scale)


@pytest.mark.parametrize(
    ("numerics", "loss", "finite", "scale"),
    [
        (Numerics(), 6.9, True, 1.0),
        (Numerics(loss_jump=0.0), 1e9, True, 1.0),
        (Numerics(precision="float16"), math.inf, False, 2.0),
        (Numerics(), math.nan, False, 1.0),
    ],
)
def test_what_is_no_divergence_is_let_through(numerics, loss, finite, scale):
    check(progress(mean_loss=4.0, skipped_in_a_row=49), numerics, Phase(), loss, finite, scale)


def test_the_first_losses_may_go_the_wrong_way():
    state = Progress(step=SETTLED, updates=SETTLED, mean_loss=4.0)
    check(state, Numerics(), Phase(), 9.0, True, 1.0)
    assert state.mean_loss > 4.0


def test_a_jump_is_counted_and_leaves_the_mean_alone():
    state = progress(mean_loss=4.0)
    for steps in (1, 2):
        check(state, Numerics(), Phase(), 9.0, True, 1.0)
        assert (state.jumped_in_a_row, state.mean_loss) == (steps, 4.0)
    check(state, Numerics(), Phase(), math.nan, False, 1.0)  # a skipped step tells nothing
    assert state.jumped_in_a_row == 2
    check(state, Numerics(), Phase(), 6.9, True, 1.0)
    assert (state.jumped_in_a_row, state.mean_loss) == (0, pytest.approx(MEAN_DECAY * 4 + (1 - MEAN_DECAY) * 6.9))


def test_what_was_taken_since_the_checkpoint_is_passed_over_in_each_phase():
    phases = (Phase(steps=10), Phase(steps=10), Phase(steps=10))
    restored = Progress(step=8, skipped_in_a_row=2, passed_over={"0": 1})
    pass_over(restored, Progress(step=13, passed_over={"0": 4}), phases)
    assert restored.passed_over == {"0": 6, "1": 3}
    assert restored.skipped_in_a_row == 0
