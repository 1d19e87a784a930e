"""Mixtures of token stores: shares of tokens, and rows that depend on the run's position where they must."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.mixing import PERIOD, RUN, _laid
from bert_horovod.batches.source import open_source_once
from bert_horovod.batches.text.mask_rates import masked_count
from bert_horovod.batches.text.mixture import MixedDataset, dataset_of, open_mixture
from bert_horovod.batches.text.store_dataset import StoreDataset
from bert_horovod.collectives.world import World
from bert_horovod.corpus.stores import data_dirs, named_paths, open_stores
from bert_horovod.errors import UserError
from bert_horovod.storage import reading
from bert_horovod.storage.reading import open_regular
from tests.toys import VOCABULARY, toy_recipe

SHARES = {"a": 0.001, "b": 0.009, "c": 0.29, "d": 0.7}
SIZES = {"a": {"sentences": 4}, "b": {"longest": 6}, "c": {"sentences": 60}, "d": {"documents": 9}}


@pytest.fixture
def stores(make_store):
    return {name: make_store(held_out=0.2, **sizes) for name, sizes in SIZES.items()}


def mixed(stores, mixture=None, **sections):
    data = {"mixture": mixture or SHARES, "packing": sections.pop("packing", True)}
    return toy_recipe(data=data, **sections)


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("pair", ["next_sentence", "none"])
def test_the_share_of_tokens_in_a_phase_is_the_weight(stores, packing, pair):
    recipe = mixed(stores, packing=packing, objective={"pair": pair})
    mixture = open_mixture(stores, recipe, 0)
    tokens = np.zeros(4)
    for begin in range(0, 100_000, 4000):
        batch = mixture.assemble(np.arange(begin, begin + 4000))
        tokens += np.bincount(batch["stores"], np.count_nonzero(batch["sequence_ids"], axis=1), minlength=4)
    assert np.abs(tokens / tokens.sum() - list(SHARES.values())).max() < 0.005
    assert mixture.order.read(100_000).tolist() == np.bincount(mixture.order.at(np.arange(100_000))[0]).tolist()


def test_a_store_is_less_than_three_rows_away_from_its_share_across_the_border_of_two_phases(stores):
    recipe = mixed(stores)
    phases = [replace(recipe.phase[0], steps=steps, global_batch=RUN) for steps in (520, 640, 404)]  # 100,096 rows
    recipe, ahead = replace(recipe, phase=phases), []
    for number, phase in enumerate(phases):
        order = open_mixture(stores, recipe, number).order
        batches = order.at(np.arange(phase.steps * RUN))[0].reshape(-1, RUN)
        counts = np.array([np.bincount(batch, minlength=4) for batch in batches])
        ahead.append(np.cumsum(np.vstack([np.zeros(4), counts - order.rows * RUN / PERIOD]), axis=0))
    for before, after in pairwise(ahead):
        to_the_border = before[-1] - before  # from each of its batches on
        assert np.max(to_the_border.max(axis=0) + after.max(axis=0)) < 3
        assert np.min(to_the_border.min(axis=0) + after.min(axis=0)) > -3
    assert np.abs(sum(of_phase[-1] for of_phase in ahead)).max() < 3


def test_a_run_behind_a_phase_reads_the_rows_of_the_next_phase(stores):
    recipe = mixed(stores)
    both, then = (replace(recipe, phase=recipe.phase * phases) for phases in (2, 1))
    positions = np.arange(100)
    next_phase, behind = open_mixture(stores, both, 1), open_mixture(stores, then, 0, phases_before=1)
    assert np.array_equal(next_phase.assemble(positions)["input_ids"], behind.assemble(positions)["input_ids"])


def test_a_row_is_the_same_alone_and_among_others_and_minus_one_is_padding(stores):
    mixture = open_mixture(stores, mixed(stores), 0)
    positions = np.array([5, 70_000, -1, 3, 64])
    batch = mixture.assemble(positions)
    assert {name: array.shape[0] for name, array in batch.items()} == dict.fromkeys(batch, 5)
    for number, position in enumerate(positions):
        alone = mixture.assemble(np.array([position]))
        assert all(np.array_equal(array[0], batch[name][number]) for name, array in alone.items())
    assert not batch["masked_weights"][2].any()
    assert not batch["sequence_ids"][2].any()
    assert batch["masked_ids"].shape[1] == mixture.slots["masked"]


def test_a_falling_mask_rate_falls_with_the_runs_position_in_every_store(stores):
    steps, rows = 64, 64
    phase = {"steps": steps, "global_batch": rows, "masked_fraction": 0.5, "masked_fraction_end": 0.1}
    recipe = mixed(stores, {"a": 1, "b": 1, "c": 1, "d": 1}, packing=False, phase=phase, objective={"pair": "none"})
    mixture = open_mixture(stores, recipe, 0)
    for step in (0, 20, 63):
        batch = mixture.assemble(step * rows + np.arange(rows))
        tokens = np.count_nonzero(batch["sequence_ids"], axis=1) - 2
        masked = np.count_nonzero(batch["masked_weights"], axis=1)
        assert np.array_equal(masked, masked_count(tokens, 0.5 - 0.4 * step / steps))
        assert len(np.unique(batch["stores"])) == 4


def test_disjoint_masks_predict_each_token_of_a_store_once_before_any_twice(make_store):
    """With a rate that falls: an epoch of a store counts with the rates that the run has at its borders."""
    stores = {name: make_store(shards=1, documents=3, sentences=8) for name in ("a", "b")}
    phase = {"steps": 400, "global_batch": 4, "masked_fraction": 0.3, "masked_fraction_end": 0.15}
    objective = {"pair": "none", "masks": "disjoint"}
    recipe = mixed(stores, {"a": 0.8, "b": 0.2}, packing=False, phase=phase, objective=objective)
    mixture = open_mixture(stores, recipe, 0)
    for number, name in enumerate(stores):
        rows = mixture.counts[name]
        epochs = [mixture.order.of_run(number, np.arange(rows * e, rows * (e + 1))) for e in range(5)]
        seen: dict[tuple, int] = {}
        turns = 0.0
        for positions in epochs:
            batch = mixture.assemble(positions)
            assert set(batch["stores"]) == {number}
            original = batch["input_ids"].copy()
            used = batch["masked_weights"] > 0
            row, slot = np.nonzero(used)
            place = batch["masked_positions"][row, slot]
            original[row, place] = batch["masked_ids"][row, slot]
            for r, p in zip(row, place, strict=True):
                key = (original[r].tobytes(), int(p))
                seen[key] = seen.get(key, 0) + 1
            ends = np.array([positions[0], positions[-1]]) // 4
            turns += max(0.3 - 0.15 * np.minimum(ends, 400) / 400)
            if turns < 0.95:  # the first turn is not over
                assert max(seen.values()) == 1


def test_two_stores_of_the_same_text_are_read_in_two_orders(make_store):
    one = make_store()
    mixture = open_mixture({"a": one, "b": one}, mixed({}, {"a": 1, "b": 1}), 0)
    a, b = (mixture.assemble(mixture.order.of_run(number, np.arange(8))) for number in (0, 1))
    assert not np.array_equal(a["input_ids"], b["input_ids"])


def test_by_size_all_stores_are_read_equally_often(stores):
    mixture = open_mixture(stores, toy_recipe(), 0)
    epochs = mixture.epochs(3 * mixture.count)
    assert max(abs(often - 3) for often in epochs.values()) < 0.1
    flat = open_mixture(stores, toy_recipe(data={"mixture_temperature": 0.0}), 0)
    assert set(flat.shares.values()) == {0.25}


def test_a_store_of_weight_0_has_no_rows_and_is_still_judged(stores):
    weights = SHARES | {"d": 0}
    dataset = dataset_of(stores, mixed(stores, weights))
    assert set(dataset.open(0, "train").assemble(np.arange(3000))["stores"]) == {0, 1, 2}
    held_out = dataset.open(0, "held_out")
    assert list(held_out.rows) == list(SHARES)
    assert held_out.weights["d"] == 0


def test_a_store_without_a_held_out_part_is_passed_over(stores, make_store):
    held_out = dataset_of(stores | {"d": make_store()}, mixed(stores)).open(0, "held_out")
    assert list(held_out.rows) == ["a", "b", "c"]
    with pytest.raises(UserError, match="has no held-out sections"):
        dataset_of({"a": make_store()}, toy_recipe()).open(0, "held_out")


def test_one_store_without_a_name_is_as_ever_and_the_order_of_flags_changes_nothing(stores):
    a, b = stores["a"], stores["b"]
    assert isinstance(dataset_of({"": a}, toy_recipe()), StoreDataset)
    assert dataset_of({"": a}, toy_recipe()).hash == a.hash
    words = [f"x={a.path}", f"y={b.path}"]
    hashes = {MixedDataset(open_stores(each), toy_recipe()).hash for each in (words, words[::-1])}
    assert len(hashes) == 1
    assert hashes != {MixedDataset(open_stores([f"y={a.path}", f"x={b.path}"]), toy_recipe()).hash}
    assert data_dirs(open_stores(words[::-1])) == f"--data_dir x={a.path} --data_dir y={b.path}"


def test_what_data_dir_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own=law").mkdir()
    assert list(named_paths(["own=law"])) == [""]  # such a path exists
    assert list(named_paths(["A=law"])) == [""]  # no name
    assert named_paths(["own=a=b"])["own"].name == "a=b"
    assert list(named_paths([f"own={300 * 'a'}"])) == ["own"]  # a name that no file can have
    for words, expected in (
        (["own=a", "own=b"], "own=a has this name already"),
        (["own=a", "b"], "--data_dir b: several stores need names"),
        (["a", "b"], "several stores need names"),
        (["own=", "general=b"], "--data_dir own=: expected NAME=DIR, found no DIR"),  # not the working directory
    ):
        with pytest.raises(UserError, match=expected):
            named_paths(words)


def test_what_stores_have_in_common_is_read_once(make_store, tmp_path, monkeypatch):
    """A run of twenty stores then begins about as fast as a run of one that is as large."""
    words = [f"{name}={make_store(held_out=0.2).path}" for name in "abc"]
    (tmp_path / "terms.txt").write_text("word5\n")
    recipe = toy_recipe(objective={"priority_words": str(tmp_path / "terms.txt")})
    read: Counter[str] = Counter()

    def read_regular(path, *arguments):
        read[Path(path).name] += 1
        return open_regular(path, *arguments)

    monkeypatch.setattr(reading, "open_regular", read_regular)
    stores = open_stores(words)
    assert (read["manifest.json"], read["vocab.txt"]) == (3, 1)
    dataset = dataset_of(stores, recipe)
    assert dataset.hash
    dataset.open(0, "train")  # makes the indexes
    monkeypatch.setattr(MixedDataset, "make_files", lambda *_: None)  # imports TensorFlow
    _laid.cache_clear()
    read.clear()
    for split in ("train", "held_out"):
        open_source_once(dataset, 0, split, World())
    assert (read["terms.txt"], read["index.json"], read["vocab.txt"]) == (2, 6, 0)
    dataset.open(0, "train")
    assert _laid.cache_info().misses == 1


def test_stores_that_cannot_be_mixed_are_refused(stores, make_store):
    a = stores["a"]
    other = make_store(vocabulary=[*VOCABULARY[:-1], "other"])
    with pytest.raises(UserError, match=f"two vocabularies, which first differ at id {len(VOCABULARY) - 1}"):
        open_stores([f"a={a.path}", f"b={other.path}"])
    with pytest.raises(UserError, match=f"b={a.path} and a={a.path} are one store; name it once"):
        open_stores([f"a={a.path}", f"b={a.path}"])
    for weights, named, expected in (
        ({"a": 1}, {"a": a, "b": a}, "data.mixture = {a = 1.0} has no weight of b, which --data_dir names"),
        ({"a": 1, "b": 1, "c": 1}, {"a": a, "b": a}, "has a weight of c; expected the names of --data_dir: a, b"),
        ({"a": 1}, {"": a}, "names one store; expected --data_dir a=DIR"),
    ):
        with pytest.raises(UserError, match=expected):
            dataset_of(named, mixed({}, weights))
