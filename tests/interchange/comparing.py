"""A model of transformers beside this program's: logits and gradients from the same rows, and heads both ways."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.interchange.architectures import ANSWERS, Architecture
from bert_horovod.interchange.huggingface import describe_directory, read_directory, write_directory
from bert_horovod.interchange.serving_graph import INPUTS, Served, trained_outputs
from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.encoder import encode
from bert_horovod.model.forward import ComputePolicy, DropoutState, Forward
from bert_horovod.model.heads import loss_sums, masked_token_logits
from bert_horovod.model.parameters import DECODER_WEIGHT_COPY, WORD_EMBEDDINGS
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.model.weights import cast_weights, parameter_gradients
from bert_horovod.recipe.sections import Model


def rows_of(vocabulary: int, length: int, padding: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and attention mask, [3, length]; the ends of rows are padding."""
    mask = np.arange(length) < np.ceil(np.array([1.0, 0.6, 0.1]) * length)[:, None]
    ids = np.random.default_rng(0).integers(5, vocabulary, mask.shape)
    return np.where(mask, ids, padding).astype(np.int32), mask.astype(np.int32)


def same_outputs(theirs, architecture: Architecture, model: Model, parameters: dict[str, np.ndarray]) -> list[str]:
    """Names of the outputs, which transformers' model, the code of training and the exported graph compute alike.

    The rows have 16, 9 and 1 tokens; what is computed at padding does not count.
    """
    torch = pytest.importorskip("torch")
    real = np.arange(16) < np.array([[16], [9], [1]])
    ids = np.where(real, np.random.default_rng(0).integers(1, model.vocab_size, real.shape), 0)
    arrays = (ids, real, real & (np.arange(16) >= 5))
    rows = {name: array.astype(np.int32) for name, array in zip(INPUTS, arrays, strict=True)}
    with torch.no_grad():
        expected = theirs(**{name: torch.tensor(value.astype(np.int64)) for name, value in rows.items()})
    parameters = {name: parameters[name] for name in architecture.parameters(model)}
    trained = trained_outputs(architecture, model, parameters, rows)
    served = Served(architecture, model, parameters, tf.int32).serve(**rows)
    assert trained.keys() == served.keys()
    for name in trained:
        logits = expected["sop_logits" if name not in expected else name].numpy()  # an ALBERT's of pairs
        places = real if logits.shape[:2] == real.shape else ...
        for ours in (trained[name], served[name].numpy()):
            np.testing.assert_allclose(ours[places], logits[places], rtol=1e-4, atol=1e-4, err_msg=name)
    return sorted(trained)


def _batch_of(ids: np.ndarray, mask: np.ndarray) -> dict[str, tf.Tensor]:
    places = np.tile(np.arange(ids.shape[1], dtype=np.int32), (len(ids), 1))
    arrays = {"input_ids": ids, "token_type_ids": 0 * ids, "position_ids": places, "sequence_ids": mask}
    return {name: tf.constant(array, tf.int32) for name, array in arrays.items()}


def compare_masked_tokens(theirs, pretrained, length: int) -> None:
    """Logits within 1e-4, and gradients of a masked-token loss within 1e-4 of the largest."""
    torch = pytest.importorskip("torch")
    model = pretrained.model
    padding = model.padding_id or 0
    ids, mask = rows_of(model.vocab_size, length, padding=padding)
    labels = np.where(np.random.default_rng(1).random(ids.shape) < 0.3, ids, -100) * mask - 100 * (1 - mask)
    outputs = theirs(
        input_ids=torch.tensor(ids, dtype=torch.long),
        attention_mask=torch.tensor(mask, dtype=torch.long),
        labels=torch.tensor(labels, dtype=torch.long),
    )
    outputs.loss.backward()
    parameters = {name: tf.constant(value) for name, value in pretrained.parameters.items()}
    batch = _batch_of(ids, mask)
    weights = cast_weights(parameters, tf.float32)
    hidden = encode(Forward(model, weights, ComputePolicy()), batch)[-1]
    logits = masked_token_logits(Forward(model, weights, ComputePolicy()), hidden[mask > 0])
    np.testing.assert_allclose(logits.numpy(), outputs.logits.detach().numpy()[mask > 0], rtol=1e-4, atol=1e-4)

    slots = int((labels >= 0).sum(1).max())
    places = np.argsort(labels < 0, axis=1, kind="stable")[:, :slots].astype(np.int32)
    masked = np.take_along_axis(labels, places, 1)
    batch |= {
        "masked_positions": tf.constant(places),
        "masked_ids": tf.constant(np.maximum(masked, 0), tf.int32),
        "masked_weights": tf.constant((masked >= 0).astype(np.float32)),
        "sequence_starts": tf.zeros([len(ids), 1], tf.int32),
    }
    dropout = DropoutState(tf.constant([1], tf.uint64), tf.constant(0, tf.uint64))
    rates = [field.name for field in dataclasses.fields(model) if field.init and field.name.endswith("dropout_prob")]
    in_training = dataclasses.replace(model, **dict.fromkeys(rates, 0.0))
    with tf.GradientTape() as tape:
        tape.watch(weights)
        sums = loss_sums(Forward(in_training, weights, ComputePolicy(), dropout), False, batch)
        loss = sums.mlm_loss / float((labels >= 0).sum())
    dense, lookups = parameter_gradients(tape.gradient(loss, weights), pretraining_shapes(model, False))
    assert float(loss) == pytest.approx(float(outputs.loss.detach()), rel=1e-5)
    ours = {name: gradient.numpy() for name, gradient in dense.items()}
    for name, part in lookups.items():
        np.add.at(ours[name], part.indices.numpy(), part.values.numpy())
    rename, tied = family_of(model).name_of_parameter, {DECODER_WEIGHT_COPY: WORD_EMBEDDINGS}
    expected = {tied.get(rename(name), rename(name)): value.grad.numpy() for name, value in theirs.named_parameters()}
    largest = max(np.abs(gradient).max() for gradient in expected.values())
    assert ours.keys() == expected.keys()
    for name, gradient in ours.items():
        theirs_gradient = expected[name]
        if name == WORD_EMBEDDINGS:  # transformers' padding_idx has no gradient
            theirs_gradient, gradient = (np.delete(each, padding, 0) for each in (theirs_gradient, gradient))
        assert np.abs(gradient - theirs_gradient).max() <= 1e-4 * largest, name


def both(architecture: Architecture, pretrained, ids: np.ndarray, mask: np.ndarray) -> list[dict[str, np.ndarray]]:
    """The outputs of the textbook version, as exported, and of the code of training."""
    parameters = {name: pretrained.parameters[name] for name in architecture.parameters(pretrained.model)}
    served = Served(architecture, pretrained.model, parameters, tf.int32)
    assert [spec.name for spec in served.signature] == ["input_ids", "attention_mask"]
    rows = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids}
    exported = {name: value.numpy() for name, value in served.serve(input_ids=ids, attention_mask=mask).items()}
    return [exported, trained_outputs(architecture, pretrained.model, parameters, rows)]


def compare_head(directory: Path, original, vocabulary: list[str], tokenizer, padding: int = 0) -> None:
    """A model with a head as it is saved gives its logits here; as it is written here it has the same tensors there."""
    torch = pytest.importorskip("torch")
    kind = type(original)
    original.save_pretrained(directory / "theirs")
    model, _, (chosen, *_) = describe_directory(directory / "theirs")
    assert chosen.class_name(model) == kind.__name__
    pretrained = read_directory(directory / "theirs", chosen)
    ids, mask = rows_of(model.vocab_size, 40, padding=padding)
    with torch.no_grad():
        expected = original(torch.tensor(ids, dtype=torch.long), torch.tensor(mask, dtype=torch.long))
    for outputs in both(chosen, pretrained, ids, mask):
        for name, values in outputs.items():
            real = mask > 0 if values.ndim == 3 or chosen.name == ANSWERS else slice(None)  # no padding
            np.testing.assert_allclose(values[real], expected[name].numpy()[real], rtol=1e-4, atol=1e-4)
    values = {name: pretrained.parameters[name] for name in chosen.parameters(model)}
    write_directory(directory / "ours", model, chosen, values, vocabulary, tokenizer)
    again, info = kind.from_pretrained(directory / "ours", output_loading_info=True)
    assert not any(info.values()), info
    for (name, value), (_, other) in zip(original.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(value, other), name
