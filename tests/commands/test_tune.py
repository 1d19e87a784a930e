"""`bert-horovod tune`, as it is typed."""

import json
import re

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.commands import tune
from bert_horovod.measuring import tuning
from bert_horovod.measuring.tuning import Machine
from bert_horovod.recipe_files.loading import load_recipe, recipe_to_toml, tuned_overrides
from tests.measuring.test_tuning import settings_of
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> dict[str, str]:
    """A recipe whose steps are four micro-batches of 8, and a store for it."""
    directory = tmp_path_factory.mktemp("tune")
    recipe = directory / "toy.toml"
    recipe.write_text(recipe_to_toml(toy_recipe(execution={"micro_batch": 8})), encoding="utf-8")
    store = write_toy_store(directory / "store", held_out=0.1, vocabulary=SMALL_VOCABULARY)
    return {"--recipe": str(recipe), "--data_dir": str(store.path)}


def run(command: str, toy: dict[str, str], *words: str) -> int:
    flags = [word for pair in toy.items() for word in pair]
    return dispatch(parse(["bert-horovod", *command.split(), *flags, *words]))


@pytest.fixture
def quick(monkeypatch) -> list[list[str]]:
    """A table in place of processes: larger micro-batches are quicker; the commands that were asked for."""
    asked = []

    def run_bench(words: list[str], limit_s: float) -> dict[str, float]:
        asked.append(words)
        assert limit_s == 600
        return {"rows_per_s": float(settings_of(words).get("micro_batch", 8))}

    monkeypatch.setattr(tuning, "run_bench", run_bench)
    monkeypatch.setattr(tune, "_machine", lambda arguments: (Machine(2, 2), {"processor": "P", "gpus": []}))
    return asked


def test_the_settings_are_printed_written_and_taken_by_a_run(toy, quick, tmp_path, capsys):
    output = tmp_path / "tuned.toml"
    assert run("tune", toy, "--index_dir", str(tmp_path / "index"), "--output", str(output)) == 0
    printed = capsys.readouterr()
    assert printed.out == output.read_text()
    assert printed.out.startswith(
        "# bert-horovod tune: toy.toml, 1 rank(s), P, 2 cores\n"
        "# 16 rows/s; 2.000 times the recipe as it is (rounds: 2.000 to 2.000); 2.000 times the second best\n"
        "[execution]\nmicro_batch = 16\n"
    )
    told, first, second, *_, last = printed.err.splitlines()
    assert re.match(r"\d settings in 3 rounds, phase 0, 1 rank\(s\); the recipe as it is comes first", told)
    assert first.startswith("  1  the recipe as it is: 8 rows/s; at most ")
    assert second.startswith("  2  micro_batch=16: 16 rows/s; at most ")
    assert last.endswith("; done")
    assert load_recipe(toy["--recipe"], tuned_overrides(output)).execution.micro_batch == 16
    later = [*tuned_overrides(output), "execution.micro_batch=4"]
    assert load_recipe(toy["--recipe"], later).execution.micro_batch == 4


def test_given_settings_race_with_the_recipes_and_an_interrupt_ends_it(toy, quick, capsys, monkeypatch):
    tries = ("--try", "micro_batch=4", "--try", "execution.micro_batch=32", "xla=off", "--steps", "7", "--json")
    assert run("tune", toy, *tries) == 0
    tuned = json.loads(capsys.readouterr().out)
    assert (tuned["settings"], tuned["gains"]) == ({"micro_batch": 32, "xla": "off"}, [4.0] * 3)
    assert len(quick) == 3 + 2 + 2  # micro_batch=4 is far behind after a round, and so is the recipe, which stays
    assert quick[0][quick[0].index("--steps") + 1] == "7"

    def stopped(words: list[str], limit_s: float) -> dict[str, float]:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "run_bench", stopped)
    assert run("tune", toy, *tries) == 130


def test_ranks_are_started_by_launch(toy, quick, tmp_path, monkeypatch):
    machine = Machine(2, 2, world_size=2, local_size=2)
    monkeypatch.setattr(tune, "_machine", lambda arguments: (machine, {"processor": "P", "gpus": []}))
    more = ("--index_dir", str(tmp_path), "-np", "2", "-H", "localhost:2", "--set", "execution.evaluate_rows=4")
    assert run("tune", toy, *more) == 0
    words = quick[0]
    assert words[:8] == ["launch", "-np", "2", "-H", "localhost:2", "--", "bench", "step"]
    assert int(words[words.index("--memory") + 1]) > 1 << 20
    assert "execution.evaluate_rows=4" in words
    parse(["bert-horovod", *words])
    parse(["bert-horovod", *words[6:]])
    assert any("bucket_bytes" in settings_of(words) for words in quick)


def test_a_rank_does_not_tune(toy, monkeypatch, capsys):
    for name, value in (("RANK", "0"), ("SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "2")):
        monkeypatch.setenv(f"HOROVOD_{name}", value)
    assert run("tune", toy) == 2
    assert "tune starts the ranks itself" in capsys.readouterr().err


@pytest.mark.full
def test_a_run_takes_the_settings(toy, tmp_path, capsys):
    tuned, output = tmp_path / "tuned.toml", tmp_path / "run"
    tuned.write_text("[execution]\nmicro_batch = 16\nlog_steps = 7\n")
    words = ("--output_dir", str(output), "--max_steps", "1", "--tuned", str(tuned), "--set", "execution.log_steps=5")
    assert run("pretrain", toy, *words) == 0
    execution = load_recipe(output / "recipe.toml").execution
    assert (execution.micro_batch, execution.log_steps) == (16, 5)
    tuned.write_text("[optimizer]\nname = 'sgd'\n")
    assert run("pretrain", toy, *words) == 2
    assert "unknown key optimizer; known are: execution" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_toy_is_tuned_by_real_steps(toy, tmp_path, capsys, ranks):
    words = ("--index_dir", str(tmp_path), "--steps", "1", "-np", str(ranks), "--json", "--try", "micro_batch=16")
    assert run("tune", toy, *words) == 0
    tuned = json.loads(capsys.readouterr().out)
    assert tuned["rows_per_s"] > 0
    assert len(tuned["gains"]) == 3
