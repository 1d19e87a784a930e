"""`bert-horovod tune` and the benchmark by which it measures, as they are typed."""

import json
import re

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.commands import tune
from bert_horovod.measuring.tuning import tuner
from bert_horovod.measuring.tuning.candidates import Machine
from bert_horovod.measuring.tuning.trials import Settings, Trial
from bert_horovod.recipe_files.loading import load_recipe, recipe_to_toml
from bert_horovod.recipe_files.tuned import tuned_overrides
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


def settings_of(words: list[str]) -> Settings:
    """The last of --set for each key, as a trial's command has them."""
    overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    return dict(re.match(r"execution\.(\w+)=\"?(\w+)\"?", each).groups() for each in overrides)


@pytest.fixture
def quick(monkeypatch) -> list[list[str]]:
    """Trials of a table in place of processes: larger micro-batches are quicker; the commands that were asked for."""
    asked = []

    def run_trial(words: list[str], limit_s: float) -> Trial:
        asked.append(words)
        assert limit_s == 600
        rows = int(settings_of(words)["micro_batch"])
        return Trial(step_s=32 / rows, rows_per_s=rows, micro_batch_s=0.1, update_s=10.0, wall_s=1.0)

    monkeypatch.setattr(tuner, "run_trial", run_trial)
    monkeypatch.setattr(tune, "_machine", lambda arguments: (Machine(2, 2), {"processor": "P", "gpus": []}))
    return asked


def test_the_settings_are_printed_written_and_taken_by_a_run(toy, quick, tmp_path, capsys):
    output = tmp_path / "tuned.toml"
    assert run("tune", toy, "--index_dir", str(tmp_path / "index"), "--output", str(output)) == 0
    printed = capsys.readouterr()
    assert printed.out == output.read_text()
    assert printed.out.startswith(
        "# bert-horovod tune: toy.toml, phase 0, 1 rank(s), P, 2 cores\n"
        "# 32 rows/s; 4.000 times those of the recipe as it was\n[execution]\nmicro_batch = 32\n"
    )
    first, *others = [line for line in printed.err.splitlines() if re.match(r" *\d+  ", line)]
    assert first == "  1  the recipe as it is: 8 rows/s (1 s)"
    assert any(re.fullmatch(r" *\d+  micro_batch=32: 32 rows/s \(1 s; at most \d+ s left\)", each) for each in others)
    assert re.search(r"^\d+ candidates measured, \d+ cannot win; \d+ s$", printed.err, re.M)
    assert load_recipe(toy["--recipe"], tuned_overrides(output)).execution.micro_batch == 32
    assert (
        load_recipe(toy["--recipe"], [*tuned_overrides(output), "execution.micro_batch=4"]).execution.micro_batch == 4
    )


def test_an_interrupt_ends_the_search_and_json_tells_what_was_found(toy, quick, tmp_path, capsys, monkeypatch):
    index = ("--index_dir", str(tmp_path / "index"))
    assert run("tune", toy, *index, "--json") == 0
    tuned = json.loads(capsys.readouterr().out)
    assert (tuned["settings"]["micro_batch"], tuned["gain"], tuned["changed"]) == (32, 4, True)
    in_search = [words[: words.index("--give_up_above")] for words in quick if "--give_up_above" in words]
    assert len({tuple(words) for words in in_search}) == len(in_search)  # no settings are tried twice

    def stopped(words: list[str], limit_s: float) -> Trial:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuner, "run_trial", stopped)
    assert run("tune", toy, *index) == 130


def test_ranks_are_started_by_launch(toy, quick, tmp_path, monkeypatch):
    machine = Machine(2, 2, world_size=2, local_size=2)
    monkeypatch.setattr(tune, "_machine", lambda arguments: (machine, {"processor": "P", "gpus": []}))
    more = ("--index_dir", str(tmp_path), "-np", "2", "-H", "localhost:2", "--set", "execution.evaluate_rows=4")
    assert run("tune", toy, *more, "--memory", "1GiB") == 0
    words = quick[0]
    assert words[:9] == ["launch", "-np", "2", "-H", "localhost:2", "--", "bench", "throughput", "--recipe"]
    assert words[words.index("--memory") + 1] == str(1 << 30)
    assert "execution.evaluate_rows=4" in words
    parse(["bert-horovod", *words])
    parse(["bert-horovod", *words[6:]])
    assert settings_of(words)["bucket_bytes"] == "20000"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-np", "0"), "-np 0: expected at least 1"),
        (("-np", "3", "-H", "localhost:2"), "-np 3 is more than the slots of the hosts, 2"),
        (("-np", "64"), "global_batch = 32 is a batch that the ranks cannot share"),
        (("--phase", "1"), "--phase 1: the recipe has phases 0 to 0"),
        (("--seconds", "0"), "--seconds 0: expected a number above 0"),
        (("--limit", "nan"), "--limit nan: expected a number above 0"),
        (("--memory", "much"), "--memory much: expected a size in bytes"),
        (("--output", "/absent/tuned.toml"), "--output /absent/tuned.toml: there is no directory /absent; make it"),
        (("--set", "model.vocab_size=99"), "model.vocab_size = 99, but the token store"),
        (("--set", "execution.micro_bach=1"), "unknown key execution.micro_bach"),
    ],
)
def test_a_bad_value_is_one_message_before_anything_is_measured(toy, words, message, capsys, tmp_path):
    assert run("tune", toy, "--index_dir", str(tmp_path), *words) == 2
    assert message in capsys.readouterr().err


def test_a_rank_does_not_tune(toy, monkeypatch, capsys):
    for name, value in (("RANK", "0"), ("SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "2")):
        monkeypatch.setenv(f"HOROVOD_{name}", value)
    assert run("tune", toy) == 2
    assert "tune starts the ranks itself" in capsys.readouterr().err


def test_the_benchmark_times_steps_on_rows_of_a_store(toy, capsys):
    assert run("bench throughput", toy, "--seconds", "0.1", "--json") == 0
    timing = json.loads(capsys.readouterr().out)
    assert timing["rows_per_s"] * timing["step_s"] == pytest.approx(32)
    assert timing["micro_batches"] == 4
    assert len(timing["steps"]) >= 2
    assert timing["step_s"] > 3 * timing["micro_batch_s"] > 0  # two micro-batches are timed, the step has four
    assert timing["configuration"].startswith("2 x 32, 8 rows x 32")


def test_the_benchmark_ends_early_where_a_step_takes_too_long(toy, capsys, tmp_path):
    tuned = tmp_path / "tuned.toml"
    tuned.write_text("[execution]\nmicro_batch = 32\n")
    words = ("--seconds", "60", "--give_up_above", "1e-9", "--tuned", str(tuned))
    assert run("bench throughput", toy, *words) == 0
    output = capsys.readouterr().out
    assert "2 x 32, 32 rows x 32" in output
    assert "1 rank(s), 1 micro-batch(es) of" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--phase", "1"), "--phase 1: the recipe has phases 0 to 0"),
        (("--seconds", "-1"), "--seconds -1: expected 0 or more"),
        (("--memory", "much"), "--memory much: expected a size in bytes"),
        (("--tuned", "absent.toml"), "cannot read --tuned absent.toml"),
    ],
)
def test_a_bad_value_of_the_benchmark_is_one_message(toy, words, message, capsys):
    assert run("bench throughput", toy, *words) == 2
    assert message in capsys.readouterr().err


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
def test_a_toy_is_tuned_by_real_steps(toy, tmp_path, capsys):
    words = ("--index_dir", str(tmp_path), "--seconds", "0.2", "--json")
    assert run("tune", toy, *words) == 0
    tuned = json.loads(capsys.readouterr().out)
    assert tuned["rows_per_s"] > 0
    assert tuned["gain"] > 0
    assert tuned["tried"] >= 4


@pytest.mark.slow
def test_two_ranks_are_tuned_by_real_steps(toy, tmp_path, capsys):
    words = ("--index_dir", str(tmp_path), "--seconds", "0.2", "-np", "2", "--memory", "900MiB", "--json")
    assert run("tune", toy, *words, "--set", "phase.0.global_batch=4") == 0
    tuned = json.loads(capsys.readouterr().out)
    assert tuned["rows_per_s"] > 0
    assert "bucket_bytes" in tuned["settings"]
