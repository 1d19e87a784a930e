"""Synthetic rows are what the real ones are, but full; a step on them is a real one."""

import dataclasses

import numpy as np
import pytest

from bert_horovod.batches.text.rows import open_rows
from bert_horovod.measuring.configuration import row_slots
from bert_horovod.measuring.synthetic import LoneRank, phase_batch, repeated_rows, synthetic_batch, synthetic_step
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store


@pytest.mark.parametrize(("length", "slots", "sequences"), [(32, 5, 4), (16, 16, 1), (17, 3, 5)])
def test_a_batch_has_the_arrays_of_a_real_one_and_no_padding(tmp_path, length, slots, sequences):
    recipe = toy_recipe()
    store = write_toy_store(tmp_path / "store", shards=1, vocabulary=SMALL_VOCABULARY)
    real = open_rows(store, recipe, 0, "train").assemble(np.arange(3))
    batch = synthetic_batch(recipe.model, 3, length, slots, sequences)
    assert {name: (array.dtype, array.ndim) for name, array in batch.items()} == {
        name: (array.dtype, array.ndim) for name, array in real.items()
    }
    assert batch["input_ids"].shape == batch["position_ids"].shape == (3, length)
    assert batch["masked_ids"].shape == (3, slots)
    assert batch["sequence_starts"].shape == (3, sequences)
    assert batch["input_ids"].max() < recipe.model.vocab_size
    assert batch["sequence_ids"].min() == 1
    assert batch["sequence_ids"].max() == sequences
    assert (np.diff(batch["masked_positions"], axis=1) > 0).all()
    assert batch["masked_weights"].all()
    assert batch["sequence_weights"].all()
    for row, starts in zip(batch["position_ids"], batch["sequence_starts"], strict=True):
        assert np.flatnonzero(row == 0).tolist() == starts.tolist()


def test_slots_are_at_least_those_of_packed_rows(tmp_path):
    recipe = toy_recipe()
    rows = open_rows(write_toy_store(tmp_path / "store", shards=1, vocabulary=SMALL_VOCABULARY), recipe, 0, "train")
    slots, sequences = row_slots(recipe, recipe.phase[0])
    assert sequences >= rows.sequences
    assert slots >= rows.masked_slots
    single = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, packing=False))
    assert row_slots(single, recipe.phase[0])[1] == 1


@pytest.mark.full
@pytest.mark.parametrize(("precision", "size"), [("float32", 1), ("float16", 3)])
def test_a_step_trains_on_its_rows(precision, size):
    recipe = toy_recipe(execution={"micro_batch": 4}, numerics={"precision": precision})
    step = synthetic_step(recipe, phase_batch(recipe, recipe.phase[0]), 2, LoneRank(size))
    results = [step.run() for _ in range(3)]
    assert all(result.finite for result in results)
    assert results[2].sums["mlm_loss"] < results[0].sums["mlm_loss"]
    assert len(step.rows.micro_batches) == 2
    assert step.state.progress.step == step.state.progress.updates == 3


@pytest.mark.full
def test_a_step_works_on_the_rows_that_it_is_given():
    recipe = toy_recipe()
    batch = phase_batch(recipe, recipe.phase[0])
    step = synthetic_step(recipe, batch, micro_batches=2)
    unmasked = batch | {"masked_weights": np.zeros_like(batch["masked_weights"])}
    unmasked["masked_weights"][0, 0] = 1
    step.rows = repeated_rows(recipe, unmasked, 2)
    mlm_loss = step.run().sums["mlm_loss"]
    assert step.rows.counts["masked_tokens"] == 2
    assert mlm_loss == pytest.approx(2 * np.log(recipe.model.vocab_size), rel=0.2)  # of one token in two micro-batches
