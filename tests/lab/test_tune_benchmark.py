"""lab/tune.py: the grid, its best cells and tune's choice in turns, and the table."""

import pytest

from bert_horovod.measuring.tuning.trials import Trial
from bert_horovod.recipe_files.loading import recipe_to_toml
from tests.lab.scripts import cells, load_script, run_here
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[object]:
    directory = tmp_path_factory.mktemp("tune")
    store = write_toy_store(directory / "store", vocabulary=SMALL_VOCABULARY)
    (directory / "toy.toml").write_text(recipe_to_toml(toy_recipe(execution={"micro_batch": 8})), encoding="utf-8")
    return ["--recipe", directory / "toy.toml", "--data_dir", store.path, "--work", directory / "work"]


def test_the_grid_is_measured_once_and_compared_with_the_choice_in_turns(words, tmp_path, monkeypatch, capsys):
    script, asked = load_script("tune"), []

    def run_trial(command: list[str], limit_s: float) -> Trial:
        asked.append(command)
        rows = next(int(word.partition("=")[2]) for word in command if word.startswith("execution.micro_batch="))
        return Trial(step_s=32 / rows, rows_per_s=rows, wall_s=10.0)

    chosen = {"micro_batch": 16, "xla": "off", "recompute": "none", "threads": 1}
    monkeypatch.setattr(script, "run_trial", run_trial)
    monkeypatch.setattr(script, "tune", lambda grid: {"settings": chosen, "gain": 2.0, "search_s": 15.0})
    grid = ["--rows", "8", "--rows", "16", "--rows", "32", "--xla", "off", "--threads", "1", "--recompute", "none"]
    monkeypatch.setattr("sys.argv", ["tune.py", *map(str, words[:-1]), str(tmp_path), *grid])
    assert script.main() == 0
    heading, line = capsys.readouterr().out.splitlines()
    row = dict(zip(cells(heading), cells(line), strict=True))
    assert [*row][:2] == ["recipe", "cells"]
    assert (row["recipe"], row["cells"], row["rows/s"], row["its rows/s"]) == ("toy", "3", "32", "16")
    assert (row["grid's best"], row["tune's choice"]) == ("32 rows, off, 1 thread(s)", "16 rows, off, 1 thread(s)")
    assert (row["grid's time"], row["tune's time"], row["of the time"]) == ("30 s", "15 s", "50.0%")
    assert (row["ratio"], row["over the recipe"]) == ("0.500", "2.000 x")
    assert len(asked) == 3 + 3 * 3
    assert script.main() == 0
    assert len(asked) == 12  # all of it was kept


@pytest.mark.slow
def test_a_toy_is_tuned_beside_a_grid_of_two(words):
    grid = ["--rows", 8, "--rows", 32, "--xla", "off", "--threads", 1, "--recompute", "none", "--seconds", 0.2]
    done = run_here("tune", *words, *grid)
    assert done.returncode == 0, done.stderr
    heading, line = done.stdout.splitlines()
    row = dict(zip(cells(heading), cells(line), strict=True))
    assert row["cells"] == "2"
    assert float(row["ratio"]) > 0
