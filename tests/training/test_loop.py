"""What one process promises of a run: skipped steps, input waits, phases, traces."""

import dataclasses
import time

import numpy as np
import pytest

from bert_horovod.batches.text.rows import Rows
from bert_horovod.batches.text.store_dataset import StoreDataset
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.optimizers import loss_scale
from bert_horovod.runs.status_files import read_sign
from bert_horovod.training import ahead
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.hooks.epochs import MANY_EPOCHS, EpochHook
from bert_horovod.training.run import FIRST_STEP_S
from tests.toy_runs import assert_same_files, logged, metrics, newest, train, train_recipe, training_state
from tests.toys import toy_recipe

pytestmark = pytest.mark.full


def test_a_starved_input_shows_in_the_wait_and_in_the_throughput(store, tmp_path, monkeypatch):
    train(store, tmp_path / "fed", max_steps=6)
    assemble = Rows.assemble

    def slow(self: Rows, positions: np.ndarray) -> dict[str, np.ndarray]:
        time.sleep(0.5)
        return assemble(self, positions)

    monkeypatch.setattr(Rows, "assemble", slow)
    monkeypatch.setattr("bert_horovod.training.inputs._MOST_STEPS", 1)  # else the first call makes all rows
    train(store, tmp_path / "starved", max_steps=6)
    fed, starved = metrics(tmp_path / "fed")[-1], metrics(tmp_path / "starved")[-1]
    assert fed["input_wait_s"] < starved["input_wait_s"]
    assert starved["rows_per_s"] < 32 / 0.25  # however fast the machine is, a batch takes half a second
    assert starved["rows_per_s"] < fed["rows_per_s"]
    assert starved["loss"] == fed["loss"]


def test_a_peak_that_was_measured_too_low_is_raised_to_what_the_run_reaches(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bert_horovod.training.run.print_start", lambda *_: 1.0)
    train(store, tmp_path, max_steps=3, execution={"micro_batch": 8, "log_steps": 1})
    lines = metrics(tmp_path)
    assert lines[0]["flops_share"] == 1.0
    reached = 1.0
    for line in lines:
        reached = max(reached, line["flops_per_s"])
        assert line["flops_share"] == pytest.approx(line["flops_per_s"] / reached)
    assert "the peak of matrix products is at least " in capsys.readouterr().out


def test_an_overflow_skips_the_update_and_lowers_the_loss_scale(store, tmp_path, monkeypatch):
    monkeypatch.setattr(loss_scale, "INITIAL", 2.0**40)
    train(store, tmp_path, max_steps=6, numerics={"precision": "float16"})
    lines, progress = metrics(tmp_path), training_state(tmp_path)["progress"]
    assert [line["skipped_steps"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["loss_scale"] for line in lines] == [2.0 ** (39 - i) for i in range(6)]
    assert {line["gradient_norm"] for line in lines} == {None}  # not NaN, which strict readers of JSON refuse
    assert (progress["step"], progress["updates"]) == (6, 0)


def test_a_skipped_step_uses_up_its_rows_and_its_place_in_the_schedule(store, tmp_path, monkeypatch):
    train(store, tmp_path / "good", max_steps=3, numerics={"precision": "float16"})
    monkeypatch.setattr(loss_scale, "INITIAL", 2.0**40)
    train(store, tmp_path / "skips", max_steps=3, numerics={"precision": "float16"})
    skips, good = metrics(tmp_path / "skips"), metrics(tmp_path / "good")
    assert [line["learning_rate"] for line in skips] == [line["learning_rate"] for line in good]
    assert skips[0]["loss"] == good[0]["loss"]
    assert skips[1]["loss"] != skips[0]["loss"]


def test_many_skipped_steps_in_a_row_stop_the_run_with_a_diagnosis(store, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_horovod.training.hooks.divergence.MOST_SKIPPED", 3)
    monkeypatch.setattr(loss_scale, "INITIAL", 2.0**40)
    with pytest.raises(UserError, match=r"step 3: 3 updates in a row .* not finite .* learning_rate"):
        train(store, tmp_path, numerics={"precision": "float16"})
    sign = read_sign(tmp_path)
    assert sign.ended == "ended by an error"
    assert "The same command would diverge again" in sign.error
    assert not sign.again


@pytest.mark.slow
def test_the_sign_of_life_is_never_behind_the_newest_checkpoint_also_when_a_run_is_resumed(store, tmp_path):
    signs: dict[str, int] = {}

    class Reading(Hook):
        def begin(self, number: int) -> None:
            signs[f"begin {number}"] = read_sign(tmp_path).step

        def doing(self, what: str, more_s: float = 0) -> None:
            signs.setdefault(what, read_sign(tmp_path).step)

    recipe = toy_recipe(execution={"micro_batch": 8, "checkpoint_steps": 2})
    train_recipe(recipe, store, tmp_path, max_steps=4)
    train_recipe(recipe, store, tmp_path, max_steps=7, hooks=(Reading,))
    assert signs["loading the state"] == 4
    assert (signs["begin 5"], signs["begin 7"]) == (4, 6)


@pytest.mark.slow
def test_the_epochs_are_told_and_too_many_of_them_warned_of_once(store, tmp_path, capsys):
    recipe = toy_recipe(phase={"steps": 4})
    rows = StoreDataset(store, recipe).open(0, "train").count
    train_recipe(recipe, store, tmp_path / "few", hooks=(EpochHook,))
    told = capsys.readouterr()
    assert f"phase 0: 4 steps are {4 * 32 / rows:.1f} epochs of this token store" in told.out
    assert "epochs" not in told.err
    steps = (MANY_EPOCHS + 2) * rows // 32
    phases = (dataclasses.replace(recipe.phase[0], steps=2), dataclasses.replace(recipe.phase[0], steps=steps))
    train_recipe(dataclasses.replace(recipe, phase=phases), store, tmp_path / "many", max_steps=3, hooks=(EpochHook,))
    assert capsys.readouterr().err.count(f"expected at most {MANY_EPOCHS}, as BERT was published with") == 1


def test_fewer_max_steps_than_were_done_are_named(store, tmp_path, capsys):
    train(store, tmp_path, max_steps=4)
    train(store, tmp_path, max_steps=2)
    assert "nothing to do: the run is at step 4, beyond --max_steps 2, which counts" in capsys.readouterr().out


def test_what_starts_or_compiles_may_take_longer_than_a_stall(store, tmp_path):
    done = []

    class Listening(Hook):
        def doing(self, what: str, more_s: float = 0) -> None:
            done.append((what, more_s >= FIRST_STEP_S))

        def wants_times(self, step: int) -> bool:
            return step == 3

    execution = {"evaluate_steps": 2, "log_steps": 9}
    train_recipe(toy_recipe(phase={"steps": 4}, execution=execution), store, tmp_path, hooks=(Listening,))
    longer = [what for what, more in done if more]
    begin = ["loading the state", "opening the rows", "reading rows", "agreeing on counts", "planning and compiling"]
    # Of the first step the plan and the compilation have each a time of their own.
    assert longer == [*begin, "planning and compiling", "evaluating", "planning and compiling"]
    usual = [what for what, more in done if not more]
    assert [usual.count(what) for what in ("reading rows", "forward, backward and update", "evaluating")] == [3, 2, 1]


def test_results_that_are_read_one_step_late_change_nothing_but_the_order_of_work(store, tmp_path, monkeypatch):
    order = []

    class Listening(Hook):
        def begin(self, step: int) -> None:
            order.append(f"begin {step}")

        def step(self, event: StepEvent) -> None:
            order.append(f"end {event.step}")

    monkeypatch.setattr(loss_scale, "INITIAL", 2.0**26)
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 2)
    execution = {"log_steps": 1, "checkpoint_steps": 6, "evaluate_steps": 4}
    recipe = toy_recipe(phase={"steps": 9}, numerics={"precision": "float16"}, execution=execution)
    with_a_gpu = tmp_path / "late"
    train_recipe(recipe, store, tmp_path / "at once")
    monkeypatch.setattr(ahead, "has_gpu", lambda: True)
    train_recipe(recipe, store, with_a_gpu, hooks=(Listening,))
    # The first step compiles; the state is read after steps 4 and 8 (evaluation) and 6 (checkpoint).
    ends = [number for number in range(1, 9) if order.index(f"end {number}") < order.index(f"begin {number + 1}")]
    assert ends == [1, 4, 6, 8]
    compared = ("step", "loss", "gradient_norm", "loss_scale", "skipped_steps", "learning_rate", "held_out_mlm_loss")
    lines = [
        [[line.get(name) for name in compared] for line in metrics(directory)]
        for directory in (tmp_path / "at once", with_a_gpu)
    ]
    assert lines[0] == lines[1]
    assert 0 < metrics(with_a_gpu)[-1]["skipped_steps"] < 9
    assert newest(tmp_path / "at once").name == newest(with_a_gpu).name
    assert_same_files(tmp_path / "at once", with_a_gpu)
    assert training_state(tmp_path / "at once")["progress"] == training_state(with_a_gpu)["progress"]


def test_a_damaged_id_in_the_store_is_refused_before_it_reaches_the_model(store, tmp_path, monkeypatch):
    assemble = Rows.assemble

    def damaged(self: Rows, positions: np.ndarray) -> dict[str, np.ndarray]:
        batch = assemble(self, positions)
        batch["input_ids"][0, 1] = 64
        return batch

    monkeypatch.setattr(Rows, "assemble", damaged)
    with pytest.raises(DamagedData, match=r"id 64, the model has 64 entries.*verify"):
        train(store, tmp_path, max_steps=1)


def test_a_global_batch_without_pairs_has_no_pair_loss(store, tmp_path, monkeypatch):
    assemble = Rows.assemble

    def single_segments(self: Rows, positions: np.ndarray) -> dict[str, np.ndarray]:
        batch = assemble(self, positions)
        return batch | {"sequence_weights": np.zeros_like(batch["sequence_weights"])}

    monkeypatch.setattr(Rows, "assemble", single_segments)
    train(store, tmp_path, max_steps=1)
    line = metrics(tmp_path)[0]
    assert line["nsp_loss"] == line["nsp_accuracy"] == 0
    assert line["loss"] == line["mlm_loss"] > 0
    assert logged(tmp_path)[-1]["held_out_nsp_loss"] == 0


def test_the_evaluation_is_the_same_every_time(store, tmp_path):
    train(store, tmp_path, max_steps=2, phase={"learning_rate": 1e-30}, execution={"evaluate_steps": 1})
    losses = [line["held_out_mlm_loss"] for line in logged(tmp_path) if "held_out_mlm_loss" in line]
    assert len(losses) == 2
    assert losses[0] == losses[1]
