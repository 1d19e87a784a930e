"""What counts as a normal loss."""

import argparse
import dataclasses
import json
import math
import shlex
from pathlib import Path

import pytest

from bert_horovod.batches.text.store_dataset import StoreDataset
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.runs import reference_curves
from bert_horovod.runs.reference_curves import (
    DIRECTORY,
    Reference,
    curve_settings,
    read_reference,
    references_of,
    text_key_of,
)
from tests.horovod_runs import PROJECT
from tests.toys import toy_recipe

REFERENCE = Reference("toy", "3 seeds", "a command", {}, 3, 20, (6.0, 5.0), (0.1, 0.05), (0.2, 0.2))


@pytest.mark.parametrize("losses", [None, 1, 2, 20])
def test_the_band_is_wider_for_fewer_losses(losses):
    count = losses or 20
    reach = 4 * math.sqrt(0.05**2 * 4 / 3 + 0.2**2 / count - 0.2**2 / 20)
    assert REFERENCE.bounds(1, losses) == pytest.approx((5 - reach, 5 + reach))


def test_beyond_its_windows_nothing_is_known():
    assert REFERENCE.bounds(2) is None
    assert REFERENCE.judge(60, [100.0] * 20) is None
    assert REFERENCE.judge(40, []) is None


def test_a_loss_outside_is_told_with_what_to_look_at():
    assert REFERENCE.judge(40, [5.1] * 20) is None
    above, below = REFERENCE.judge(40, [5.3] * 20), REFERENCE.judge(40, [4.6] * 20)
    band = "runs of this recipe are between 4.77 and 5.23 (3 seeds)"
    assert above.startswith(f"at step 40 the loss is 5.30, and {band}; look at the learning rate")
    assert below.startswith(f"at step 40 the loss is 4.60, and {band}; look at the data")
    assert REFERENCE.judge(35, [5.3] * 2) is None  # two losses may be so by chance


def test_a_single_step_is_expected_on_the_line_through_the_windows_middles():
    for window, middle in ((0, 10.5), (1, 30.5)):
        low, high = REFERENCE.bounds(window, 1)
        near = [REFERENCE.at(step) for step in (math.floor(middle), math.ceil(middle))]
        assert sum(each.low for each in near) / 2 == pytest.approx(low)
        assert sum(each.high for each in near) / 2 == pytest.approx(high)
    slope = (REFERENCE.bounds(1, 1).low - REFERENCE.bounds(0, 1).low) / 20
    for step in (1, 20, 39):
        assert REFERENCE.at(step + 1).low - REFERENCE.at(step).low == pytest.approx(slope)
    one = dataclasses.replace(REFERENCE, means=(6.0,), spreads=(0.1,), noises=(0.2,))
    assert one.at(1) == one.at(20) == one.bounds(0, 1)


def test_marks_are_about_runs_with_their_settings_and_bands_about_runs_without_others(monkeypatch, tmp_path):
    monkeypatch.setattr(reference_curves, "DIRECTORY", tmp_path)
    band = {"seeds": 2, "means": [1.0], "spreads": [1.0], "noises": [1.0]}

    def write(name: str, settings: dict, **more: object) -> None:
        about = {"name": name, "runs": "", "command": "", "settings": settings}
        (tmp_path / f"{name}.json").write_text(json.dumps(about | more), encoding="utf-8")

    recipe, width = toy_recipe(), toy_recipe().model.hidden_size
    write("band", curve_settings(recipe), **band)
    write("band of a part", {"model.hidden_size": width}, **band)
    write("marks", {"model.hidden_size": width})
    write("wide", {"model.hidden_size": 12345})
    assert [each.name for each in references_of(recipe, "")] == ["band", "marks"]
    # A setting that was not there when the file was written counts if it is not its default.
    older = {key: value for key, value in curve_settings(recipe).items() if key != "objective.ngram"}
    write("band", older, **band)
    assert [each.name for each in references_of(recipe, "")] == ["band", "marks"]
    assert [each.name for each in references_of(toy_recipe(objective={"ngram": 3}), "")] == ["marks"]


def test_a_band_of_one_text_is_not_about_another(monkeypatch, tmp_path, store):
    monkeypatch.setattr(reference_curves, "DIRECTORY", tmp_path)
    about = {"name": "small", "runs": "", "command": "", "settings": curve_settings(toy_recipe()), "texts": ["ab"]}
    (tmp_path / "small.json").write_text(json.dumps(about), encoding="utf-8")
    assert [each.name for each in references_of(toy_recipe(), "ab")] == ["small"]
    assert references_of(toy_recipe(), "cd") == references_of(toy_recipe(), "") == []
    dataset = StoreDataset(store, toy_recipe())
    assert text_key_of(toy_recipe(), dataset) == store.text_key
    assert text_key_of(toy_recipe(objective={"ngram": 3}), dataset) == ""  # nothing is about such runs


def test_the_quickstarts_band_is_of_its_own_text_alone():
    recipe = load_recipe(PROJECT / "run" / "recipes" / "quickstart.toml")
    (text,) = read_reference(DIRECTORY / "quickstart.json").texts
    assert [each.name for each in references_of(recipe, text)] == ["quickstart"]
    assert references_of(recipe, "ab" * 16) == []


def test_the_seed_and_number_formats_and_how_the_work_is_done_do_not_count():
    one = toy_recipe(data={"seed": 3}, numerics={"wire": "float16"}, execution={"micro_batch": 1})
    assert curve_settings(one) == curve_settings(toy_recipe())
    assert curve_settings(toy_recipe(exchange={"method": "onebit_adam"})) != curve_settings(one)


@pytest.mark.parametrize("path", sorted(DIRECTORY.glob("*.json")), ids=lambda path: path.stem)
def test_what_ships_is_about_recipes_that_ship(path: Path):
    reference = read_reference(path)
    assert len(reference.means) == len(reference.spreads) == len(reference.noises)
    assert all(mark.low <= mark.high and mark.source for mark in reference.marks)
    assert reference.means or reference.marks
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", type=Path)
    parser.add_argument("--set", action="append", default=[])
    command, _ = parser.parse_known_args(shlex.split(reference.command))
    recipes = [command.recipe] if command.recipe else sorted((PROJECT / "run" / "recipes").glob("*.toml"))
    known = [curve_settings(load_recipe(PROJECT / recipe, command.set)) for recipe in recipes]
    assert any(reference.settings.items() <= settings.items() for settings in known)
