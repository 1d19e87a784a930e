"""Runs of several token stores: equal on any number of ranks, and resumed as they were."""

import math
import os
import re
import signal
from pathlib import Path
from typing import ClassVar

import pytest

from bert_horovod.batches.text.mixture import dataset_of
from bert_horovod.collectives.world import World
from bert_horovod.commands import pretrain
from bert_horovod.corpus.store import Store
from bert_horovod.corpus.stores import open_stores
from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.directory import claim
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.run import Run
from tests.commands.test_pretrain import opened
from tests.toy_runs import at_step, incidents, logged, losses, metrics, pretrain_arguments, train_recipe
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store
from tests.training.test_inputs import wait_until
from tests.two_ranks import Ranks

WEIGHTS = {"data": {"seed": 7, "mixture": {"general": 0.7, "own": 0.3}}}
SECTIONS = {"model": {"num_hidden_layers": 1}, "phase": {"steps": 8}, "objective": {"pair": "none"}, **WEIGHTS}
RECIPE = toy_recipe(**SECTIONS, execution={"checkpoint_steps": 4, "evaluate_steps": 4})


@pytest.fixture(scope="module")
def words(store, tmp_path_factory) -> list[str]:
    """What --data_dir names: two stores, one of them with other tokens in its rows."""
    own = write_toy_store(
        tmp_path_factory.mktemp("own") / "store", seed=9, longest=9, held_out=0.1, vocabulary=SMALL_VOCABULARY
    )
    return [f"general={store.path}", f"own={own.path}"]


class DoneHook(Hook):
    """Keeps what the run tells the watchdog that it does."""

    done: ClassVar[list[str]] = []

    def doing(self, what: str, more_s: float) -> None:
        self.done.append(what)


def train_stores(world: World, words: list[str], output_dir: Path, recipe: Recipe, **job) -> None:
    train_recipe(recipe, open_stores(words), output_dir, world, **job)


@pytest.fixture(scope="module")
def alone(words, tmp_path_factory) -> Path:
    output_dir = tmp_path_factory.mktemp("alone")
    DoneHook.done.clear()
    train_stores(World(), words, output_dir, RECIPE, hooks=(DoneHook,))
    return output_dir


def test_each_store_is_evaluated_as_an_activity_of_its_own(alone):
    """Else the watchdog ends a run of twenty stores, each of which takes its time."""
    assert [what for what in DoneHook.done if what.startswith("evaluating ")] == 2 * [
        "evaluating general",
        "evaluating own",
    ]


def test_the_metrics_have_the_losses_of_each_store_and_their_mean_by_weights(alone):
    for line in metrics(alone):
        of_stores = [line["mlm_loss.general"], line["mlm_loss.own"]]
        assert min(of_stores) < line["mlm_loss"] < max(of_stores)
    evaluations = [line for line in logged(alone) if "held_out_mlm_loss" in line]
    assert [line["step"] for line in evaluations] == [4, 8]
    for line in evaluations:
        mean = 0.7 * line["held_out_mlm_loss.general"] + 0.3 * line["held_out_mlm_loss.own"]
        assert math.isclose(line["held_out_mlm_loss"], mean, rel_tol=1e-9)
    card = (alone / "checkpoints" / "step-00000008" / "README.md").read_text()
    assert "`general`: `store`, `own`: `store`" in card
    assert "[data.mixture]\ngeneral = 0.7\nown = 0.3" in card


@pytest.mark.full
def test_a_run_that_stopped_and_went_on_with_its_stores_in_another_order_is_the_same(alone, words, tmp_path):
    train_stores(World(), words, tmp_path, RECIPE, max_steps=4)
    train_stores(World(), words[::-1], tmp_path, RECIPE)
    assert losses(tmp_path) == losses(alone)


@pytest.mark.full
def test_two_ranks_have_the_losses_of_one(alone, words, two_ranks, tmp_path):
    two_ranks.run(train_stores, words, tmp_path, RECIPE)
    assert losses(tmp_path) == pytest.approx(losses(alone), rel=1e-5)


def train_until_killed(world: World, words: list[str], output_dir: Path, recipe: Recipe) -> None:
    """End this rank between two checkpoints: a job for ranks."""

    def end(_: Run) -> None:
        wait_until((output_dir / "checkpoints" / "step-00000004").is_dir)
        os.kill(os.getpid(), signal.SIGKILL)

    train_stores(world, words, output_dir, recipe, hooks=(at_step(6, end),))


@pytest.mark.full
def test_three_ranks_have_the_losses_of_one_and_after_a_kill_one_goes_on_with_them(alone, words, tmp_path):
    three = Ranks(3)
    with pytest.raises(AssertionError, match=r"rank \d ended"):
        three.run(train_until_killed, words, tmp_path, RECIPE)
    train_stores(World(), words, tmp_path, RECIPE)
    assert losses(tmp_path) == pytest.approx(losses(alone), rel=1e-5)
    assert not incidents(tmp_path)


@pytest.mark.full
def test_a_resumed_run_keeps_its_stores(words, store: Store, tmp_path):
    """Else it would go on with rows of other texts."""
    flags = pretrain_arguments(tmp_path, store, tmp_path / "run", **SECTIONS)
    files = dict(zip((flag.removeprefix("--") for flag in flags[::2]), flags[1::2], strict=True))
    del files["data_dir"]
    os.close(claim(tmp_path / "run", RECIPE, dataset_of(open_stores(words), RECIPE).hash))
    general, own = words
    other = f"law={own.partition('=')[2]}"
    for named, mixture, expected in (
        (words, "{general = 1, own = 1}", "data.mixture: {general = 0.7, own = 0.3} -> {general = 1.0, own = 1.0}"),
        ([general], "{general = 1}", "belongs to a run on other data"),
        ([general, other], "{general = 0.7, law = 0.3}", "belongs to a run on other data"),
        ([general, other], "{general = 0.7, own = 0.3}", "has no weight of law"),
    ):
        more = [word for name in named for word in ("--data_dir", name)]
        with pytest.raises(UserError, match=re.escape(expected)):
            pretrain.run(opened(files, *more, "--set", f"data.mixture={mixture}"))
