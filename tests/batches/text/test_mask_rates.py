"""Masks whose rate follows the step, and masks that do not repeat, beside transcriptions in plain Python."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest

from bert_horovod.batches.positions import step_positions
from bert_horovod.batches.text.mask_rates import STAIRS, MaskRate, full_row_slots, mask_rate
from bert_horovod.batches.text.masks import Circles
from bert_horovod.batches.text.rows import open_rows
from bert_horovod.costs.derived import derive, describe
from bert_horovod.costs.planner import Device, Network, plan_phase
from bert_horovod.errors import UserError
from bert_horovod.measuring.configuration import row_slots
from bert_horovod.recipe_files.loading import load_recipe, recipe_from_table
from tests.batches.reading import ORDINARY, WITH_PIECES, index_windows, make_rows, unmasked
from tests.batches.text.test_masks import masked_places, per_sequence

FALLING = MaskRate(0.4, 0.1, steps=50, global_batch=8)
RISING = MaskRate(0.1, 0.3, steps=50, global_batch=8)


def transcribed(rate: MaskRate, position: int, tokens: int) -> int:
    """The masks of a sequence, by the rule: f0 + (f1 - f0) t / T of its tokens, rounded, at least one."""
    step = min(position // rate.global_batch, rate.steps)
    return max(1, round((rate.first + (rate.last - rate.first) * step / rate.steps) * tokens))


@pytest.mark.parametrize("rate", [FALLING, RISING])
@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("kind", [{}, {"whole_word_masking": True}, {"ngram": 3}])
def test_each_sequence_has_the_masks_of_its_rows_step(make_store, rate, packing, kind):
    rows = make_rows(make_store(sentences=100, vocabulary=WITH_PIECES), 64, "none", packing, rate=rate, **kind)
    for position in (0, 7, 8, 137, 208, 392, 399, 400, 10**6):
        batch = rows.assemble(np.array([position]))
        masks = per_sequence(batch, masked_places(batch)).tolist()
        tokens = per_sequence(batch, unmasked(batch) >= ORDINARY).tolist()
        expected = [transcribed(rate, position, each) for each in tokens]
        assert masks == expected if not kind else all(map(int.__le__, masks, expected))


@pytest.mark.parametrize(("steps", "stairs"), [(50, 2), (1000, 2), (1400, 3), (10_000, 8)])
@pytest.mark.parametrize("rate", [FALLING, RISING])
def test_slots_go_in_two_to_eight_stairs(make_store, rate, steps, stairs):
    rows = make_rows(make_store(sentences=100), 64, "none", True, rate=replace(rate, steps=steps))
    some = range(0, steps + 10, max(1, steps // 50))
    slots = [rows.assemble(np.arange(8 * step, 8 * step + 8))["masked_ids"].shape[1] for step in some]
    assert slots == sorted(slots, reverse=rate is FALLING)
    assert len(set(slots)) == stairs
    assert max(slots) == rows.masked_slots
    assert slots[-1] == slots[len(slots) * 9 // 10]  # rows beyond the phase's end


def test_a_phase_of_fewer_steps_than_stairs_and_an_end_that_is_no_multiple_are_covered():
    for steps in (1, 3, 8, 13, 1000, 9000):
        rate = MaskRate(0.5, 0.05, steps, global_batch=3)
        positions = np.arange(3 * steps + 6)
        stairs = rate.stair(positions)
        assert np.all(np.diff(stairs) >= 0)
        assert len(rate.stairs) == {1: 1, 9000: STAIRS}.get(steps, 2) == stairs.max() + 1
        assert np.all(rate.at(positions) <= np.array(rate.stairs)[stairs])


@pytest.mark.parametrize("masks", ["drawn", "disjoint"])
def test_rows_are_functions_of_their_position_at_any_rate(make_store, masks):
    rows = make_rows(make_store(sentences=100), 32, "none", True, rate=FALLING, masks=masks)
    whole = rows.assemble(np.arange(160, 168))  # step 20
    for ranks in (2, 3):
        parts = []
        for rank in range(ranks):
            numbers = np.concatenate([each for each, _ in step_positions(20, 8, rank, ranks, 3)])
            batch = rows.assemble(numbers)
            parts.append({name: array[numbers >= 0] for name, array in batch.items()})
        for name, array in whole.items():
            assert np.array_equal(np.concatenate([part[name] for part in parts]), array), name
    assert len(rows.assemble(np.array([-1]))["masked_weights"].nonzero()[0]) == 0


def test_a_phases_own_constant_rate_is_the_objectives(make_store):
    store = make_store(sentences=60)
    one = {"objective": {"masked_fraction": 0.3, "pair": "none"}, "phase": [{"sequence_length": 32}]}
    other = {"objective": {"pair": "none"}, "phase": [{"sequence_length": 32, "masked_fraction": 0.3}]}
    ours, theirs = (
        open_rows(store, recipe_from_table(table), 0, "train").assemble(np.arange(40)) for table in (one, other)
    )
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_held_out_rows_have_one_rate_and_drawn_masks_whatever_the_phase(make_store):
    store = make_store(sentences=60, held_out=0.3)
    phases = [{"sequence_length": 32, "masked_fraction": 0.4, "masked_fraction_end": 0.1}, {"sequence_length": 32}]
    tables = [
        {"phase": phases, "objective": {"pair": "none", "masks": "disjoint"}},
        {"phase": phases[1:], "objective": {"pair": "none"}},
    ]
    falling, plain = map(recipe_from_table, tables)
    expected = open_rows(store, plain, 0, "held_out").assemble(np.arange(20))
    for phase in (0, 1):
        batch = open_rows(store, falling, phase, "held_out").assemble(np.arange(20))
        assert all(np.array_equal(batch[name], expected[name]) for name in batch)


def predictions(rows, store, epochs: int) -> dict[int, list[list[int]]]:
    """The tokens, numbered in their window, that are predicted in each epoch: by the window's number."""
    windows, seen = index_windows(rows._index, store), defaultdict(list)
    for epoch in range(epochs):
        positions = np.arange(epoch * rows.count, (epoch + 1) * rows.count)
        batch = rows.assemble(positions)
        masked, ids = masked_places(batch), unmasked(batch)
        for row, numbers in enumerate(rows.windows(positions)):
            for slot, number in enumerate(numbers[numbers >= 0].tolist()):
                _, first, second = windows[number]
                places = np.flatnonzero((batch["sequence_ids"][row] == slot + 1) & (ids[row] >= ORDINARY))
                order = np.arange(first + second)
                if batch["next_sentence_labels"][row, slot]:  # the segments are swapped
                    order = np.roll(order, -first)
                seen[number].append(order[masked[row, places]].tolist())
    return seen


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("pair", ["none", "sentence_order"])
def test_disjoint_masks_predict_each_token_once_before_any_twice(make_store, pair, packing):
    store = make_store(sentences=40)
    rows = make_rows(store, 32, pair, packing, masked_fraction=0.3, masks="disjoint")
    rate = MaskRate(0.3, 0.3)
    turned = 0
    for number, epochs in predictions(rows, store, 9).items():
        tokens = sum(index_windows(rows._index, store)[number][1:])
        counts = Counter(dict.fromkeys(range(tokens), 0))
        for masked in epochs:
            assert len(masked) == transcribed(rate, 0, tokens)
            counts.update(masked)
            assert max(counts.values()) - min(counts.values()) <= 1
        turned += max(counts.values()) >= 2
    assert turned > 10


def test_disjoint_masks_are_another_order_for_each_window_and_each_phase_and_are_not_a_run_of_places(make_store):
    store = make_store(sentences=60)
    first, again, other = (
        predictions(make_rows(store, 32, "none", seed=seed, masks="disjoint"), store, 1) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    long = [tuple(epochs[0]) for epochs in first.values() if len(epochs[0]) >= 4]
    assert len(set(long)) > len(long) / 2
    assert any(np.diff(places).max() > 1 for places in long)


@pytest.mark.parametrize("rate", [FALLING, RISING])
def test_with_a_changing_rate_each_earlier_epoch_counts_at_its_largest(make_store, rate):
    circles = Circles(rate, 60, length=16, in_run=np.asarray)
    tokens = np.array([[5, 0], [16, 3]])
    for epoch in (0, 1, 4, 9):
        expected = [
            [
                sum(
                    max(transcribed(rate, position, n) for position in range(60 * e, 60 * e + 60)) for e in range(epoch)
                )
                % max(n, 1)
                for n in row
            ]
            for row in tokens.tolist()
        ]
        assert circles.begins(np.array([60 * epoch, 60 * epoch + 59]), tokens).tolist() == expected
    store = make_store(sentences=40)
    rows = make_rows(store, 32, "none", True, rate=MaskRate(0.3, 0.1, steps=40, global_batch=4), masks="disjoint")
    for number, epochs in predictions(rows, store, 3).items():
        counts = Counter(token for masked in epochs for token in masked)
        tokens = sum(index_windows(rows._index, store)[number][1:])
        assert max(counts.values()) == 1 or 3 * max(1, round(0.3 * tokens)) > tokens


DISJOINT = '[objective]\nmasks = "disjoint"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "objective.pair = 'next_sentence': objective.masks = 'disjoint' cannot follow it"),
        ('pair = "none"\nwhole_word_masking = true\n', "objective.whole_word_masking = True: objective.masks"),
        ('pair = "none"\nngram = 2\n', "objective.ngram = 2: objective.masks = 'disjoint' cannot follow it, because"),
        ('pair = "none"\npriority_words = "words.txt"\n', "objective.priority_words = 'words.txt': objective.masks"),
        ('pair = "none"\nmasked_fraction = 0.3\nheld_out_masked_fraction = 0.15\n', "objective.masked_fraction ="),
        ('pair = "none"\n[[phase]]\nmasked_fraction_end = 0.6\n', "phase.0.masked_fraction_end = 0.6: expected at"),
    ],
)
def test_what_masks_cannot_follow_is_refused_by_name(tmp_path, text, words):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(DISJOINT + text + ("" if "[[phase]]" in text else "[[phase]]\nmasked_fraction = 0.2\n"))
    with pytest.raises(UserError, match=words):
        load_recipe(recipe)


def test_plan_estimate_and_benchmarks_count_the_places_of_all_stairs():
    phase = {"sequence_length": 128, "global_batch": 256, "steps": 10_000}
    tables = ({"masked_fraction": 0.4, "masked_fraction_end": 0.1}, {"masked_fraction": 0.4}, {"masked_fraction": 0.25})
    falling, high, mean = (recipe_from_table({"phase": [phase | table]}) for table in tables)
    assert full_row_slots(falling, falling.phase[0]) == (34, 50)  # of 125 tokens; each stair at its largest
    assert mask_rate(mean, mean.phase[0]).stairs == [0.25]
    ours, most, least = (derive(each, each.phase[0], 1) for each in (falling, high, mean))
    assert ours.memory_bytes == most.memory_bytes > least.memory_bytes
    assert least.flops_per_row < ours.flops_per_row < most.flops_per_row
    assert row_slots(falling, falling.phase[0]) == row_slots(high, high.phase[0])
    device, network = Device("a GPU", 1e14, 1e12), Network(1e9)
    seconds = [plan_phase(each, 0, 8, device, network).step_s for each in (falling, high, mean)]
    assert seconds[2] < seconds[0] < seconds[1]
    assert "40.0% of the tokens masked, 10.0% at its end; 50 places of a full row at most" in describe(falling, 8)
