"""The search for a micro-batch that fits, and real tries in processes of their own."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from bert_horovod.__main__ import parse
from bert_horovod.batches.text.mask_rates import mask_rate
from bert_horovod.errors import UserError
from bert_horovod.measuring import largest_micro_batch
from bert_horovod.measuring.largest_micro_batch import largest, least_padding, measure, parse_bytes
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import Phase
from bert_horovod.recipe_files.loading import load_recipe, recipe_from_table, recipe_to_toml
from tests.toys import recipe_of, toy_recipe


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GiB", 16 << 30),
        ("1.5 KiB", 1536),
        ("2TiB", 2 << 40),
        ("24GB", 24 * 10**9),
        ("12e9", 12 * 10**9),
        ("12E9B", 12 * 10**9),
        ("123", 123),
    ],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "16G", "16gib", "-1GiB", "0", "1.2.3GiB", "nan", "1e999", "half"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UserError, match=f"--limit {re.escape(text)}: expected a size in bytes, such as 16GiB"):
        parse_bytes(text)


@pytest.mark.parametrize("first", [1, 7, 100])
@pytest.mark.parametrize("most", [1, 2, 3, 10, 32, 33])
def test_the_largest_that_fits_is_found_up_to_the_most(most, first):
    for limit in range(most + 3):
        assert largest(lambda number, limit=limit: number <= limit, most, first) == min(limit, most)


def test_the_search_doubles_then_bisects_and_goes_never_above_the_most():
    asked = []
    assert largest(lambda number: asked.append(number) or number <= 300, 1000) == 296
    assert asked == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 384, 320, 288, 304, 296]


def test_the_whole_share_is_tried_where_it_is_near_for_it_needs_no_accumulators():
    assert largest(lambda number: number <= 20 or number == 30, 30) == 30
    assert largest(lambda number: number <= 20 or number == 300, 300) == 20


@pytest.mark.parametrize(
    ("batches", "world_size", "micro_batch", "expected"),
    [
        ((256,), 1, 200, 128),
        ((256,), 1, 128, 128),
        ((256,), 2, 100, 64),
        ((256,), 3, 50, 43),
        ((5000, 3000), 2, 260, 250),
        ((100, 96), 1, 60, 50),
    ],
)
def test_of_micro_batches_that_make_as_many_steps_the_one_with_least_padding_is_taken(
    batches, world_size, micro_batch, expected
):
    recipe = recipe_of(phase=tuple(Phase(global_batch=batch) for batch in batches))
    assert least_padding(recipe, micro_batch, world_size) == expected


def test_a_phase_whose_mask_rate_falls_is_tried_with_its_most_masks(monkeypatch):
    tried = []

    def run_bench(words: list[str]) -> dict[str, int]:
        tried.append(load_recipe(Path(words[words.index("--recipe") + 1]), []))
        return {"memory_bytes": 100}

    monkeypatch.setattr(largest_micro_batch, "run_bench", run_bench)
    recipe = toy_recipe(objective={"masked_fraction": 0.3})
    falling = dataclasses.replace(recipe.phase[0], masked_fraction_end=0.1)
    assert measure(dataclasses.replace(recipe, phase=(falling,)), 0, 1, 1 << 30).fits
    assert mask_rate(tried[0], tried[0].phase[0]).stairs == [0.3]


@pytest.mark.slow
def test_a_try_measures_its_own_peak_beside_the_estimate():
    small, large = (measure(toy_recipe(), 0, rows, 64 << 30, world_size=2) for rows in (1, 16))
    assert small.fits
    assert not small.ended
    assert 100 << 20 < small.peak_bytes < 4 << 30
    assert (small.micro_batches, large.micro_batches) == (16, 1)
    assert large.estimate_bytes > small.estimate_bytes > 0
    assert small.ratio == small.peak_bytes / small.estimate_bytes


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "layer"])
def test_the_estimate_is_within_15_percent_of_the_peak(recompute):
    table = {
        "model": {
            "vocab_size": 8000,
            "hidden_size": 256,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
        },
        "data": {"packing": False},
        "phase": [{"sequence_length": 128, "global_batch": 64}],
        "execution": {"micro_batch": 64, "recompute": recompute, "xla": "off"},
    }
    attempt = measure(recipe_from_table(table), 0, 64, 64 << 30)
    assert 0.85 <= attempt.ratio <= 1.15


@pytest.mark.full
def test_a_try_far_above_the_limit_is_ended():
    attempt = measure(toy_recipe(), 0, 1, 100 << 20)
    assert attempt.ended
    assert not attempt.fits
    assert attempt.peak_bytes > 100 << 20


def test_what_fails_for_another_reason_than_memory_is_not_taken_for_it():
    recipe = toy_recipe()
    execution = dataclasses.replace(recipe.execution, threads=100_000_000_000)  # which its own process refuses
    with pytest.raises(UserError, match=r"execution\.threads = 100000000000: expected"):
        measure(dataclasses.replace(recipe, execution=execution), 0, 1, 64 << 30)


def arguments(tmp_path, recipe: Recipe, *more: str):
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_to_toml(recipe), encoding="utf-8")
    return parse(["bert-horovod", "bench", "memory", "--recipe", str(path), *more])


def run(tmp_path, *more: str) -> None:
    """The command on two phases, of 2 and 3 rows a step."""
    short = Phase(sequence_length=16, global_batch=3, steps=1)
    long = Phase(sequence_length=32, global_batch=2, steps=1)
    recipe = recipe_of(**{**vars(toy_recipe()), "phase": (short, long)})
    command = arguments(tmp_path, recipe, *more)
    command.run(command)


@pytest.mark.slow
def test_the_command_tries_the_longest_phase_and_then_the_others(tmp_path, capsys):
    run(tmp_path, "--limit", "64GiB", "--json")
    answer = json.loads(capsys.readouterr().out)
    assert [(attempt["phase"], attempt["micro_batch"]) for attempt in answer["tries"]] == [(1, 1), (1, 2), (0, 2)]
    assert (answer["limit_bytes"], answer["world_size"]) == (64 << 30, 1)
    assert (answer["largest_micro_batch"], answer["micro_batch"], answer["micro_batches"]) == (2, 2, [2, 1])


@pytest.mark.slow
def test_the_command_prints_each_try_and_the_line_to_copy(tmp_path, capsys):
    run(tmp_path, "--limit", "64GiB", "--world_size", "2")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "limit 64.00 GiB"
    assert [line.split()[:3] for line in lines[2:4]] == [["1", "32", "1"], ["0", "16", "1"]]
    assert all(line.endswith("  fits") for line in lines[2:4])
    assert "phase 0: 3 rows a step: 2 rank(s) x 2 micro-batch(es) of 1; 1 of these rows are empty" in lines
    assert lines[-1] == "--set execution.micro_batch=1"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--limit", "100MiB"), r"--limit 0\.10 GiB: not even one row of 32 positions fits \(phase 1\): .* more than"),
        (("--limit", "1GiB", "--world_size", "3"), r"global_batch = 2 is a batch that the ranks cannot share"),
    ],
)
def test_what_cannot_be_is_one_clear_message(tmp_path, more, message):
    with pytest.raises(UserError, match=message):
        run(tmp_path, *more)
