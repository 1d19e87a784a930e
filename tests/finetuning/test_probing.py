"""Probes: a copy is fine-tuned while a run trains, which notices nothing; and a run's checkpoints one by one."""

import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.collectives.world import World
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.texts import Texts
from bert_horovod.finetuning.probing import STEPS, ProbeHook, probe_data, probe_job
from bert_horovod.finetuning.text_data import glue_data
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.training.hooks.base import Hook
from tests.toy_glue import write_checkpoint, write_glue
from tests.toy_runs import logged, newest, train_rank, train_recipe
from tests.toys import toy_recipe

RECIPE = toy_recipe(phase={"steps": 4}, execution={"evaluate_steps": 2, "checkpoint_steps": 2})


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Texts:
    return Texts(glue_data("sst2", Files(write_glue(tmp_path_factory.mktemp("probe") / "glue", 40, 10))))


def run_numbers(output_dir: Path) -> list[tuple]:
    names = ("step", "loss", "gradient_norm", "held_out_mlm_loss")
    return [tuple(line.get(name) for name in names) for line in logged(output_dir) if "probe_accuracy" not in line]


def probes(output_dir: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["probe_accuracy"]) for line in logged(output_dir) if "probe_accuracy" in line]


def assert_untouched(probed: Path, plain: Path) -> None:
    assert run_numbers(probed) == run_numbers(plain)
    parameters, expected = (read_directory(newest(each)).parameters for each in (probed, plain))
    for name, value in expected.items():
        np.testing.assert_array_equal(parameters[name], value)


@pytest.mark.full
def test_a_probed_run_gives_the_numbers_of_one_that_is_not_probed(store, data, tmp_path):
    train_recipe(RECIPE, store, tmp_path / "plain")
    train_recipe(RECIPE, store, tmp_path / "probed", hooks=(partial(ProbeHook, data),))
    assert [step for step, _ in probes(tmp_path / "probed")] == [2, 4]
    assert all(0 <= accuracy <= 1 for _, accuracy in probes(tmp_path / "probed"))
    assert_untouched(tmp_path / "probed", tmp_path / "plain")


@pytest.mark.slow
def test_two_ranks_probe_together(two_ranks, store, data, tmp_path):
    two_ranks.run(train_rank, store.path, tmp_path / "plain", RECIPE)
    two_ranks.run(train_probed, store.path, tmp_path / "probed", data)
    assert [step for step, _ in probes(tmp_path / "probed")] == [2, 4]
    assert_untouched(tmp_path / "probed", tmp_path / "plain")


def train_probed(world: World, store: Path, output_dir: Path, data: Texts) -> None:
    """A job for two_ranks."""
    train_rank(world, store, output_dir, RECIPE, hooks=(partial(ProbeHook, data),))


class StopWhileProbing(Hook):
    """Sends this process SIGTERM in the first fine-tuning step."""

    def phase(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
def test_a_request_to_stop_while_probing_stops_the_run(store, data, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "bert_horovod.finetuning.probing.probe_job",
        lambda *arguments: replace((job := probe_job(*arguments)), hooks=(*job.hooks, StopWhileProbing)),
    )
    train_recipe(RECIPE, store, tmp_path / "run", hooks=(partial(ProbeHook, data),))
    assert newest(tmp_path / "run").name == "step-00000002"
    assert not probes(tmp_path / "run")


@pytest.mark.full
def test_a_probe_is_short(data, tmp_path):
    long = glue_data("sst2", Files(write_glue(tmp_path / "glue", 8 * 32 * STEPS, 10)))
    finetuning = Finetuning(Texts(long), find_checkpoint(write_checkpoint(tmp_path / "checkpoint")))
    recipe = probe_job(finetuning, tmp_path / "run", ["data.packing=false"], 1).recipe
    assert (recipe.total_steps, recipe.execution.evaluate_steps) == (STEPS, STEPS)
    (tmp_path / "glue" / "test.tsv").write_text("index\tsentence\n0\tgood\n")
    assert glue_data("sst2", Files(tmp_path / "glue")).test
    assert not probe_data("sst2", Files(tmp_path / "glue")).data.test
    assert probe_job(finetuning, tmp_path / "run", ["phase.0.steps=5"], 1).recipe.total_steps == 5
