"""Profiles computed from products."""

from dataclasses import replace

import numpy as np
import pytest

from bert_horovod.batches.text.mask_rates import full_row_slots
from bert_horovod.costs.buckets import computed_profile, touched_rows
from bert_horovod.costs.derived import derive, flops_per_row
from bert_horovod.model.parameters import WORD_EMBEDDINGS
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe_files.loading import recipe_from_table

RATE = 1e12


def profile_of(recipe, ranks: int = 1, trained_layers: int = 0):
    return computed_profile(recipe, replace(recipe.phase[0], trained_layers=trained_layers), ranks, RATE)


def toy(recompute: str = "none", pair: str = "next_sentence", length: int = 128):
    return recipe_from_table(
        {
            "model": {"num_hidden_layers": 3},
            "objective": {"pair": pair},
            "phase": [{"sequence_length": length}],
            "execution": {"micro_batch": 4, "recompute": recompute},
        }
    )


@pytest.mark.parametrize(("pair", "length"), [("next_sentence", 128), ("none", 128), ("none", 512)])
def test_forward_is_a_third_of_the_products(pair, length):
    recipe = toy(pair=pair, length=length)
    profile = profile_of(recipe)
    flops = 4 * derive(recipe, recipe.phase[0], 1).flops_per_row
    assert profile.end_s == pytest.approx(flops / RATE, rel=1e-9)
    assert profile.forward_s == pytest.approx(profile.end_s / 3, rel=1e-9)


def test_gradients_come_from_the_head_to_the_embeddings():
    profile = profile_of(toy())
    assert profile.ready_s.keys() == pretraining_shapes(toy().model, True).keys()
    layers = [profile.ready_s[f"bert.encoder.layer.{i}.attention.self.query.weight"] for i in range(3)]
    head = profile.ready_s["cls.predictions.bias"]
    assert (
        profile.forward_s
        < head
        == profile.ready_s[WORD_EMBEDDINGS]
        < layers[2]
        < layers[1]
        < layers[0]
        == profile.end_s
    )
    assert profile.ready_s["bert.embeddings.position_embeddings.weight"] == profile.end_s
    assert layers[2] - head < 0.8 * (layers[1] - layers[2])  # the last layer computes what a head reads
    assert layers[1] - layers[2] == pytest.approx(layers[0] - layers[1])


def test_recomputed_layers_take_half_as_long_again():
    plain, attention, layer = (profile_of(toy(each)) for each in ("none", "attention", "layer"))
    assert plain.forward_s == attention.forward_s == layer.forward_s
    name = "bert.encoder.layer.{}.output.dense.weight".format

    def of_layer(profile):
        return profile.ready_s[name(0)] - profile.ready_s[name(1)]

    def of_the_last(profile):  # which has fewer positions: those that a head reads
        return profile.ready_s[name(2)] - profile.ready_s["cls.predictions.bias"]

    assert of_layer(layer) == pytest.approx(1.5 * of_layer(plain))
    assert of_the_last(layer) == pytest.approx(1.5 * of_the_last(plain))
    assert of_the_last(attention) > of_the_last(plain)
    scores = 2 * 4 * 128 * 128 * 768 / RATE
    assert of_layer(attention) == pytest.approx(of_layer(plain) + scores)


def test_shared_layers_have_their_gradients_when_the_lowest_is_done():
    table = {"num_hidden_layers": 4, "embedding_size": 128}
    own, two, one = (
        profile_of(recipe_from_table({"model": table | {"shared_layers": groups}})) for groups in (0, 2, 1)
    )
    name = "bert.encoder.layer.{}.output.dense.weight".format
    assert own.end_s == two.end_s == one.end_s
    assert (two.ready_s[name(1)], two.ready_s[name(0)]) == pytest.approx((own.ready_s[name(2)], own.ready_s[name(0)]))
    assert one.ready_s[name(0)] == pytest.approx(own.ready_s[name(0)])
    assert one.ready_s[name(0)] < one.ready_s["bert.encoder.embedding_hidden_mapping_in.weight"] == one.end_s
    assert one.ready_s[WORD_EMBEDDINGS] == own.ready_s[WORD_EMBEDDINGS]


def test_looked_up_rows_are_those_of_all_ranks_and_at_most_the_vocabulary():
    one, many = (profile_of(toy(), ranks).rows[WORD_EMBEDDINGS] for ranks in (1, 1000))
    assert 0 < one < 4 * 128 < many <= 30522


def test_touched_rows_are_as_many_as_drawn_ones():
    random = np.random.default_rng(0)
    drawn = [len(set((1001 ** random.random(5000) - 1).astype(int).tolist())) for _ in range(20)]
    assert touched_rows(1000, 5000) == pytest.approx(np.mean(drawn), rel=0.02)
    assert touched_rows(1000, 1) == 1


@pytest.mark.parametrize("recompute", ["none", "layer"])
def test_backward_ends_below_the_layers_that_train(recompute):
    recipe = toy(recompute)
    whole, upper = (profile_of(recipe, trained_layers=layers) for layers in (0, 2))
    layer = "bert.encoder.layer.{}.output.dense.weight".format
    assert upper.forward_s == whole.forward_s
    assert upper.ready_s.keys() == {
        name for name in whole.ready_s if not name.startswith(("bert.embeddings.", "bert.encoder.layer.0."))
    }
    vocabulary = 2 * 4 * 19 * 30528 * 768 / RATE  # the frozen table has no gradient
    assert upper.ready_s[layer(1)] == pytest.approx(whole.ready_s[layer(1)] - vocabulary)
    assert upper.end_s == upper.ready_s[layer(1)]
    assert upper.rows == {}


def test_backward_of_upper_layers_takes_the_operations_that_a_row_is_counted_with():
    recipe = toy()
    flops = 4 * flops_per_row(recipe.model, 128, full_row_slots(recipe, recipe.phase[0]).mean, 1, True, 2)
    assert profile_of(recipe, trained_layers=2).end_s == pytest.approx(flops / RATE, rel=1e-9)
