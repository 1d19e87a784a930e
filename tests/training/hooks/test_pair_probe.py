"""A run is judged by pairs while it trains, and notices nothing."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.pair_files import COLUMNS
from bert_horovod.corpus.store import open_store
from bert_horovod.recipe_files.loading import recipe_to_toml
from bert_horovod.training.hooks.metrics import Interval, MetricsHook
from bert_horovod.training.hooks.pair_probe import PairProbeHook, hook
from tests.commands.conftest import command
from tests.horovod_runs import run_python
from tests.toy_runs import logged, newest, train_rank, train_recipe
from tests.toys import toy_recipe

RECIPE = toy_recipe(phase={"steps": 4}, execution={"evaluate_steps": 2, "checkpoint_steps": 2})


@pytest.fixture
def pairs(tmp_path) -> Path:
    lines = [dict(zip(COLUMNS, (f"word{i} word{i + 1}", f"word{i + 1} word{i}"), strict=True)) for i in range(40)]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return tmp_path / "pairs.jsonl"


def judged(output_dir: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["probe_pairs"]) for line in logged(output_dir) if "probe_pairs" in line]


def numbers(output_dir: Path) -> list[tuple]:
    lines = [line for line in logged(output_dir) if "probe_pairs" not in line]
    return [tuple(line.get(name) for name in ("step", "loss", "gradient_norm", "held_out_mlm_loss")) for line in lines]


def test_the_time_of_judging_is_not_that_of_steps(monkeypatch):
    """As that of evaluating: else it counts as effective training."""
    clock = iter([0.0, 10.0, 13.0])
    monkeypatch.setattr("bert_horovod.training.hooks.metrics.time.monotonic", lambda: next(clock))
    metrics = MetricsHook(SimpleNamespace(phase="open"))
    metrics._interval = Interval()
    PairProbeHook._go_on(SimpleNamespace(run=SimpleNamespace(doing=metrics.doing)))
    metrics.doing("forward, backward and update", 0)
    assert metrics._interval.saving_s == 3


@pytest.mark.full
def test_a_judged_run_has_the_numbers_of_another_and_the_accuracy_of_evaluate(store, pairs, tmp_path, capsys):
    train_recipe(RECIPE, store, tmp_path / "plain")
    run = train_recipe(RECIPE, store, tmp_path / "run", hooks=(hook([pairs], RECIPE.model, store),))
    assert [step for step, _ in judged(run)] == [2, 4]
    assert numbers(run) == numbers(tmp_path / "plain")
    assert capsys.readouterr().out.count("(40 pairs, ") == 1
    assert command("evaluate", newest(run), "--pairs", pairs, "--json") == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == judged(run)[-1][1]


@pytest.mark.full
def test_pretrain_judges_by_the_recipe_and_the_report_shows_it(store, pairs, tmp_path):
    recipe = dataclasses.replace(RECIPE, execution=dataclasses.replace(RECIPE.execution, probe="pairs"))
    (tmp_path / "recipe.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    run = tmp_path / "run"
    flags = ("--recipe", tmp_path / "recipe.toml", "--data_dir", store.path, "--output_dir", run, "--probe_dir", pairs)
    done = run_python("-m", "bert_horovod", "pretrain", *map(str, flags))
    assert done.returncode == 0, done.stderr
    assert [step for step, _ in judged(run)] == [2, 4]
    assert command("report", run, "--output", tmp_path / "page.html") == 0
    assert '"probe_pairs"' in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_two_ranks_judge_together(two_ranks, store, pairs, tmp_path):
    two_ranks.run(train_judged, store.path, tmp_path / "run", pairs)
    run = train_recipe(RECIPE, store, tmp_path / "one", hooks=(hook([pairs], RECIPE.model, store),))
    assert judged(tmp_path / "run") == judged(run)


def train_judged(world: World, store: Path, output_dir: Path, pairs: Path) -> None:
    """A job for two_ranks."""
    train_rank(world, store, output_dir, RECIPE, hooks=(hook([pairs], RECIPE.model, open_store(store)),))
