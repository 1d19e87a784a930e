"""Rows as batches/ packs them, through the model."""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.batches.text.index import open_index
from bert_horovod.batches.text.mask_rates import MaskRate
from bert_horovod.batches.text.rows import Rows
from bert_horovod.batches.words import token_roles
from bert_horovod.model.encoder import encode
from bert_horovod.model.forward import ComputePolicy, Forward
from bert_horovod.model.heads import pair_logits
from bert_horovod.model.weights import cast_weights
from bert_horovod.recipe.sections import Model
from bert_horovod.recipe.settings import Objective
from tests.model.reference import random_parameters
from tests.toys import SMALL_VOCABULARY, write_toy_store

LENGTH = 48
MODEL = Model(
    vocab_size=len(SMALL_VOCABULARY),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=LENGTH,
)
PARAMETERS = random_parameters(MODEL, pairs=True)


@pytest.mark.parametrize("pair", ["next_sentence", "sentence_order", "none"])
def test_a_packed_row_gives_each_sequence_the_hidden_states_and_the_pair_scores_it_has_alone(tmp_path, pair):
    store = write_toy_store(tmp_path / "store", longest=8, vocabulary=SMALL_VOCABULARY)
    index = open_index(store, LENGTH, pair, True)
    objective = Objective(pair=pair)
    rows = Rows(store, index, token_roles(store, objective), objective, MaskRate(0.15, 0.15), seed=1)
    batch = rows.assemble(np.arange(40))
    row, slot = np.nonzero(np.arange(1, rows.sequences + 1) <= batch["sequence_ids"].max(axis=1, keepdims=True))
    assert len(row) > 60
    # The same sequences, one in a row of its own each.
    names = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
    alone = {name: np.zeros((len(row), LENGTH), np.int32) for name in names}
    for i, (r, s) in enumerate(zip(row, slot, strict=True)):
        place = batch["sequence_ids"][r] == s + 1
        for name in names:
            alone[name][i, : place.sum()] = 1 if name == "sequence_ids" else batch[name][r, place]
    weights = cast_weights({name: tf.constant(value) for name, value in PARAMETERS.items()}, tf.float32)
    forward = Forward(MODEL, weights, ComputePolicy())

    def states(arrays: dict[str, np.ndarray]) -> tf.Tensor:
        return encode(forward, {name: tf.constant(arrays[name]) for name in names})[-1]

    together, apart = states(batch), states(alone)
    for i, (r, s) in enumerate(zip(row, slot, strict=True)):
        place = batch["sequence_ids"][r] == s + 1
        np.testing.assert_allclose(together[r][place], apart[i][: place.sum()], rtol=1e-5, atol=1e-5)
    starts = batch["sequence_starts"][row, slot]
    scores = pair_logits(forward, tf.constant(together.numpy()[row, starts]))
    expected = pair_logits(forward, apart[:, 0])
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
