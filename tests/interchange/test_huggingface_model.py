"""The same weights give the same numbers in transformers and here."""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.model import encoder, heads
from bert_horovod.model.forward import ComputePolicy, Forward
from bert_horovod.model.weights import cast_weights
from tests.interchange.conftest import SIZES, random_model

pytestmark = pytest.mark.full

LENGTHS = (16, 9, 1)  # real tokens per row; the rest is padding


@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
def test_hidden_states_and_logits_agree_with_transformers(tmp_path, act, torch):
    original = random_model("BertForPreTraining", hidden_act=act)
    original.save_pretrained(tmp_path)
    pretrained = read_directory(tmp_path)

    rows, length = len(LENGTHS), max(LENGTHS)
    generator = np.random.default_rng(0)
    real = np.arange(length)[None] < np.array(LENGTHS)[:, None]
    ids = np.where(real, generator.integers(1, SIZES["vocab_size"], (rows, length)), 0).astype(np.int32)
    types = np.where(real, np.arange(length) >= 5, 0).astype(np.int32)
    positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    with torch.no_grad():
        theirs = original(
            input_ids=torch.tensor(ids, dtype=torch.long),
            token_type_ids=torch.tensor(types, dtype=torch.long),
            attention_mask=torch.tensor(real.astype(np.int64)),
            output_hidden_states=True,
        )

    batch = {
        "input_ids": tf.constant(ids),
        "token_type_ids": tf.constant(types),
        "position_ids": tf.constant(positions),
        "sequence_ids": tf.constant(real.astype(np.int32)),
    }
    parameters = {name: tf.constant(values) for name, values in pretrained.parameters.items()}
    forward = Forward(pretrained.model, cast_weights(parameters, tf.float32), ComputePolicy())
    states = encoder.encode(forward, batch)
    tokens = heads.masked_token_logits(forward, states[-1][real])
    pairs = heads.pair_logits(forward, states[-1][:, 0])

    assert len(states) == len(theirs.hidden_states)
    for ours, expected in zip(states, theirs.hidden_states, strict=True):
        np.testing.assert_allclose(ours.numpy()[real], expected.numpy()[real], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(tokens.numpy(), theirs.prediction_logits.numpy()[real], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(pairs.numpy(), theirs.seq_relationship_logits.numpy(), rtol=1e-4, atol=1e-4)
