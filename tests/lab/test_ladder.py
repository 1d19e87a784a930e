"""The ladder: what is trained next follows from the lines that are kept, and so does what is taken."""

import argparse
import math

import pytest

from bert_horovod.errors import RunError
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.reporting.tables import table
from lab import curves, ladder
from lab.curve_recipes import recipe_path

TABLE = ladder.read_ladder()
LADDER = TABLE._replace(
    rows=(
        ladder.Row("faster", ("phase.0.learning_rate=5e-3",)),
        ladder.Row("dearer", ("objective.masked_fraction=0.4",), timed=True),
        ladder.Row("batch 32", batch=32, root=True),
        ladder.Row("rival", ("optimizer.beta_2=0.9",), rival=True),
        ladder.Row("mean", mean=5),
    ),
    after=(
        ladder.After("old", "recipe", (7,), fresh=True),
        ladder.After("new, twice the rate", "winner", (7,), rate=2.0),
    ),
)


def climbed(losses: dict[str, list[float]], fresh: str | None = "other", ratio: float = 1.25) -> dict[str, tuple]:
    """All verdicts, if each row's seeds had these losses: (taken, steps, settings of the first seed) by row."""
    lines, settings = {}, {}
    for _ in range(100):
        *verdicts, last = ladder.walk(LADDER, lines, "store", fresh)
        if isinstance(last, ladder.Verdict):
            return {each.row: (each.taken, each.steps, settings.get(each.row)) for each in [*verdicts, last]}
        lacking = last[0]  # the others are trained as if broken off and taken up again
        line = {"key": lacking.key, "ratio": ratio}
        if isinstance(lacking, ladder.Run):
            number = TABLE.seeds.index(lacking.seed) if lacking.seed in TABLE.seeds else 0
            line = {"key": lacking.key, "loss": losses[lacking.row][number], "accuracy": 0.5, "processor_s": 1.0}
            settings.setdefault(lacking.row, lacking.settings)
        lines[lacking.key] = line
    raise AssertionError("it never ends")


def test_a_row_is_taken_if_all_seeds_win_and_by_enough_and_the_next_rows_build_on_it():
    base = {ladder.BASE: [4.0, 4.1, 4.2], "old": [9.0], "new, twice the rate": [9.0]}
    verdicts = climbed(
        base
        | {
            "faster": [3.9, 4.0, 4.1],  # taken
            "dearer": [3.8, 3.9, 4.11],  # loses on the third seed
            "batch 32": [3.85, 3.96, 4.05],  # taken
            "rival": [3.0, 3.0, 3.0],  # never
            "mean": [3.84, 3.94, 4.04],  # wins by 0.013
        }
    )
    assert {row: taken for row, (taken, *_) in verdicts.items()} == {
        ladder.BASE: True,
        "faster": True,
        "dearer": False,
        "batch 32": True,
        "rival": False,
        "mean": False,
        "old": False,
        "new, twice the rate": False,
    }
    assert verdicts["dearer"][1] == 720  # a step takes 1.25 times as long
    assert verdicts["batch 32"][1] == 1800
    best = {"phase.0.learning_rate": "0.003536", "phase.0.global_batch": "32", "phase.0.steps": "1800"}
    assert verdicts["rival"][2] == best | {"optimizer.beta_2": "0.9", "data.seed": "1"}
    assert verdicts["old"][2] == {"phase.0.learning_rate": "0.0025", "data.seed": "7"}
    assert verdicts["new, twice the rate"][2] == best | {"phase.0.learning_rate": "0.007072", "data.seed": "7"}


def test_a_row_of_which_a_seed_diverged_is_not_taken_and_has_a_line():
    losses = {name: [4.0, 4.0, 4.0] for name in (ladder.BASE, *(each.name for each in (*LADDER.rows, *LADDER.after)))}
    assert not climbed(losses | {"faster": [3.0, math.inf, 3.0]})["faster"][0]
    shown = ladder.shown(ladder.Verdict("faster", [3.0, math.inf], [0.4, 0.0], [1.0, -math.inf], math.nan, 9, False))
    assert (shown["loss"], shown["least"], shown["spread"]) == (math.inf, -math.inf, None)
    table([{"configuration": "faster", **shown}], ladder.COLUMNS)


def test_what_needs_the_other_store_is_left_out_where_there_is_none():
    same = {name: [4.0, 4.0, 4.0] for name in (ladder.BASE, *(each.name for each in (*LADDER.rows, *LADDER.after)))}
    assert "old" not in climbed(same, fresh=None)


@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: row.name)
def test_each_row_makes_a_recipe(row):
    load_recipe(recipe_path(TABLE.recipe), ["objective.pair=none", "optimizer.name=muon", *row.set])


@pytest.mark.parametrize("after", TABLE.after, ids=lambda after: after.name)
def test_each_run_behind_the_ladder_makes_a_recipe(after):
    load_recipe(recipe_path(TABLE.recipe), after.set)


def test_a_mean_is_judged_on_rows_as_long_as_those_it_was_trained_on(monkeypatch, tmp_path):
    """A directory with a mean records no length, and `evaluate` takes rows of 128 then."""
    said = []

    def program(*words: object) -> str:
        said.append(list(map(str, words)))
        if words[0] == "pretrain":
            run = tmp_path / "key"
            run.mkdir()
            (run / "metrics.jsonl").write_text('{"step": 1, "loss": 9.0, "step_s": 0.1}\n')
        return '{"held_out_mlm_loss": 3.0, "held_out_mlm_accuracy": 0.4}'

    monkeypatch.setattr(curves, "program", program)
    monkeypatch.setattr(ladder, "FILE", tmp_path / "ladder.jsonl")
    run = ladder.Run("mean", 1, {}, load_recipe(recipe_path(TABLE.recipe), []), "key mean 5", mean=5)
    curves.climb_with(run, argparse.Namespace(work=tmp_path, stores=["--data_dir", tmp_path / "store"], fresh_dir=None))
    assert said[-1][:2] == ["evaluate", str(tmp_path / "mean")]
    assert " ".join(said[-1]).endswith("--sequence_length 64 --json")
    assert ladder.kept()["key mean 5"]["loss"] == 3.0


def test_a_run_that_diverged_is_kept_and_any_other_failure_ends_the_ladder(monkeypatch, tmp_path):
    said = {"text": ""}

    def program(*words: object) -> str:
        (tmp_path / "key").mkdir(exist_ok=True)
        raise RunError(f"{words[0]} ended with 2: error: {said['text']}")

    monkeypatch.setattr(curves, "program", program)
    monkeypatch.setattr(ladder, "FILE", tmp_path / "ladder.jsonl")
    run = ladder.Run("faster", 1, {}, load_recipe(recipe_path(TABLE.recipe), []), "key")
    arguments = argparse.Namespace(work=tmp_path, stores=["--data_dir", tmp_path / "store"], fresh_dir=None)
    said["text"] = "the disk is full"
    with pytest.raises(RunError, match="disk is full"):
        curves.climb_with(run, arguments)
    assert not ladder.kept()
    said["text"] = "step 30: the loss is nan. The same command would diverge again: give another recipe"
    curves.climb_with(run, arguments)
    assert ladder.kept()["key"]["loss"] == math.inf


def test_kept_lines_are_found_under_todays_keys():
    store_hash = "34465f2376b447bf0673f9f774fad104a144fe96783d9dcbc9c453c0377ee947"  # of what they were trained on
    verdicts = [each for each in ladder.walk(TABLE, ladder.kept(), store_hash) if isinstance(each, ladder.Verdict)]
    assert [verdict.row for verdict in verdicts[:4]] == [ladder.BASE, *(row.name for row in TABLE.rows[:3])]
