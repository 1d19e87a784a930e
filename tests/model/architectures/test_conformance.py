"""What every architecture promises, of each line of lines.py: hidden states, gradients, transformers, training."""

import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.costs.buckets import computed_profile
from bert_horovod.costs.derived import derive
from bert_horovod.interchange.architectures import MASKED_TOKENS, Architecture
from bert_horovod.interchange.huggingface import describe_directory, read_directory, write_directory
from bert_horovod.model import plain
from bert_horovod.model.architectures.families import FAMILIES, family_of
from bert_horovod.model.encoder import encode, encode_at
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import pretraining_shapes
from tests.interchange.comparing import compare_masked_tokens
from tests.interchange.conftest import VOCABULARY
from tests.model.architectures.lines import LINES, SIZES, Line
from tests.model.forwards import forward_of, loss_and_gradients, tensors
from tests.model.reference import add_targets, random_batch, random_parameters
from tests.toy_runs import losses, newest, train_recipe
from tests.toys import toy_recipe

FULL = pytest.mark.full
BATCH = add_targets(random_batch())
IN_FILES = [name for name, line in LINES.items() if line.kind]


@pytest.fixture(scope="module", params=LINES)
def line(request) -> Line:
    return LINES[request.param]


@pytest.fixture(scope="module")
def parameters(line) -> dict[str, np.ndarray]:
    return random_parameters(line.model, pairs=False)


@pytest.fixture(scope="module")
def batch(line) -> dict[str, np.ndarray]:
    """Packed rows of ids and types that the model has."""
    types = np.minimum(BATCH["token_type_ids"], line.model.type_vocab_size - 1)
    return BATCH | {"token_type_ids": types.astype(np.int32)}


@pytest.fixture(scope="module")
def textbook_gradients(line, parameters, batch) -> tuple[float, dict[str, np.ndarray]]:
    """The loss by the textbook version, and its gradients."""
    given = tensors(parameters)
    with tf.GradientTape() as tape:
        tape.watch(given)
        hidden = family_of(line.model).textbook.encode(line.model, given, tensors(batch))[-1]
        hidden = tf.gather(hidden, batch["masked_positions"], batch_dims=1)
        logits = plain.masked_token_logits(line.model, given, hidden)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["masked_ids"], logits)
        loss = tf.reduce_sum(losses * batch["masked_weights"])
    gradients = tape.gradient(loss, given).items()
    return float(loss), {name: tf.convert_to_tensor(gradient).numpy() for name, gradient in gradients}


def test_every_architecture_has_a_line():
    assert {family_of(line.model).model_type for line in LINES.values()} == set(FAMILIES)


def test_hidden_states_of_packed_rows_are_those_of_the_textbook_and_of_the_transcription(line, parameters, batch):
    fast = encode(forward_of(line.model, parameters), tensors(batch))
    textbook = family_of(line.model).textbook.encode(line.model, tensors(parameters), tensors(batch))
    assert len(fast) == len(textbook) == line.model.num_hidden_layers + 1
    for row, numbers in enumerate(batch["sequence_ids"]):
        for number in set(numbers.tolist()) - {0}:
            place = (row, numbers == number)
            ids, types = batch["input_ids"][place], batch["token_type_ids"][place]
            expected = [each.numpy()[place] for each in textbook]
            if line.transcribed:
                expected = line.transcribed(line.model, parameters, ids, types)
            for ours, other, state in zip(fast, textbook, expected, strict=True):
                np.testing.assert_allclose(ours.numpy()[place], state, rtol=1e-4, atol=1e-4)
                np.testing.assert_allclose(other.numpy()[place], state, rtol=1e-4, atol=1e-4)


def test_the_last_layer_at_some_positions_is_that_at_all(line, parameters, batch):
    places, model = tf.constant(batch["masked_positions"]), forward_of(line.model, parameters)
    everywhere = tf.gather(encode(model, tensors(batch))[-1], places, batch_dims=1)
    np.testing.assert_allclose(encode_at(model, tensors(batch), places), everywhere, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "policy",
    [{}, {"recompute": "layer"}, *(pytest.param({"xla": each}, marks=FULL) for each in ("elementwise", "layers"))],
    ids=str,
)
def test_gradients_are_those_of_the_textbook(line, parameters, batch, textbook_gradients, policy):
    forward = forward_of(line.model, parameters, **policy)
    loss, ours = loss_and_gradients(forward, pretraining_shapes(line.model, False), batch, pairs=False)
    expected_loss, expected = textbook_gradients
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    largest = max(np.abs(gradient).max() for gradient in expected.values())
    assert ours.keys() == expected.keys()
    for name, gradient in expected.items():
        assert np.abs(ours[name] - gradient).max() <= 1e-5 * largest, name


@FULL
@pytest.mark.parametrize("name", IN_FILES)
def test_a_directory_of_transformers_gives_its_logits_and_gradients_and_so_does_ours(name, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    line = LINES[name]
    torch.manual_seed(0)
    config = getattr(transformers, line.configuration)(**SIZES | line.settings, attn_implementation="eager")
    original = getattr(transformers, line.kind)(config).eval()
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    original.save_pretrained(tmp_path / "theirs")
    pretrained = read_directory(tmp_path / "theirs")
    assert type(pretrained.model) is type(line.model)
    compare_masked_tokens(original, pretrained, 40)
    if family_of(line.model).model_type == "roberta":
        return  # whose tokenizer is of another kind: test_roberta.py writes its directory
    words = [*VOCABULARY, *(f"word{i}" for i in range(SIZES["vocab_size"] - len(VOCABULARY)))]
    model, architecture = pretrained.model, Architecture(MASKED_TOKENS, False)
    values = initial_values(pretraining_shapes(model, False), 0.05, 0)
    write_directory(tmp_path / "ours", model, architecture, values, words, UNCASED)
    theirs, info = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert type(theirs).__name__ == line.kind
    assert not any(info.values()), info
    again = read_directory(tmp_path / "ours")
    assert again.model == model
    compare_masked_tokens(theirs.eval(), again, 40)


def test_names_come_back_from_files(line):
    family, names = family_of(line.model), list(pretraining_shapes(line.model, False))
    in_file = [family.name_in_file(name) for name in names]
    assert len(set(in_file)) == len(names)
    assert [family.name_of_parameter(name) for name in in_file] == names


@FULL
@pytest.mark.parametrize("name", [name for name in IN_FILES if name != "roberta"])  # its store has another tokenizer
def test_it_trains_resumes_and_is_saved_by_its_own_class(name, store, tmp_path):
    line = LINES[name]
    recipe = toy_recipe(
        model={"num_hidden_layers": 4} | line.training,
        objective={"pair": "none"},
        phase={"steps": 4, "learning_rate": 0.01},
        execution={"micro_batch": 16, "checkpoint_steps": 2},
    )
    whole = train_recipe(recipe, store, tmp_path / "whole")
    shutil.copytree(whole, tmp_path / "stopped", symlinks=True)
    shutil.rmtree(newest(tmp_path / "stopped"))
    assert newest(tmp_path / "stopped").name == "step-00000002"
    train_recipe(recipe, store, tmp_path / "stopped")
    assert losses(whole) == losses(tmp_path / "stopped")
    files = [(newest(run) / "model.safetensors").read_bytes() for run in (whole, tmp_path / "stopped")]
    assert files[0] == files[1]
    model, shapes, (architecture, *_) = describe_directory(newest(whole))
    assert model == recipe.model
    assert architecture.class_name(model) == line.kind
    assert shapes == pretraining_shapes(model, False)


def test_backward_takes_as_long_as_its_products_are_counted(line):
    recipe = toy_recipe(objective={"pair": "none"})
    model = dataclasses.replace(line.model, vocab_size=recipe.model.vocab_size, max_position_embeddings=64)
    recipe = dataclasses.replace(recipe, model=model)
    operations = derive(recipe, recipe.phase[0], 1).flops_per_row * recipe.execution.micro_batch
    assert computed_profile(recipe, recipe.phase[0], 1, 1e9).end_s == pytest.approx(operations / 1e9, rel=1e-6)
