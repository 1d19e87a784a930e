"""An architecture is a file and a line in families.py: a toy one trains, is counted, exported, written and read."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.costs.derived import matrix_products
from bert_horovod.errors import UserError
from bert_horovod.interchange.architectures import MASKED_TOKENS, Architecture
from bert_horovod.interchange.huggingface import HuggingFace, read_directory, write_directory
from bert_horovod.interchange.serving_graph import Served, trained_outputs
from bert_horovod.model.architectures.families import FAMILIES, family_of
from bert_horovod.model.gpu_kernels.choice import why_not
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Model
from tests.interchange.conftest import VOCABULARY
from tests.model.architectures.toy_family import TYPES, Toy
from tests.model.forwards import dropout_of, forward_of, loss_and_gradients
from tests.model.reference import ALBERT, MODEL, add_targets, random_batch, random_parameters

SIZES = {name: getattr(MODEL, name) for name in ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size")}
TOY = Model(**SIZES, num_attention_heads=3, type_vocab_size=TYPES)


@pytest.fixture(autouse=True)
def toy(monkeypatch) -> Toy:
    family = Toy()
    monkeypatch.setitem(FAMILIES, family.model_type, family)
    return family


def test_a_models_settings_choose_its_architecture(toy):
    names = [family_of(model).model_type for model in (MODEL, ALBERT, TOY)]
    assert names == ["bert", "albert", "toy"]
    assert family_of(dataclasses.replace(MODEL, shared_layers=1)) is family_of(ALBERT)


def test_a_new_architecture_trains_every_parameter():
    parameters, shapes = random_parameters(TOY, pairs=True), pretraining_shapes(TOY, pairs=True)
    batch = add_targets(random_batch(((16,), (7, 6))))
    _, gradients = loss_and_gradients(forward_of(TOY, parameters, dropout_of(1)), shapes, batch, pairs=True)
    assert gradients.keys() == parameters.keys()
    assert all(gradient.any() for name, gradient in gradients.items() if "key.bias" not in name)


def test_a_new_architecture_is_exported_as_it_is_trained():
    architecture = Architecture(MASKED_TOKENS, pooler=False)
    parameters = random_parameters(TOY, pairs=False)
    ids = np.random.default_rng(3).integers(5, 30, (2, 16)).astype(np.int32)
    rows = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    served = Served(architecture, TOY, parameters, tf.int32).serve(**rows)
    trained = trained_outputs(architecture, TOY, parameters, rows)
    np.testing.assert_allclose(served["logits"].numpy(), trained["logits"], rtol=1e-4, atol=1e-4)


def test_a_new_architecture_has_directories_of_its_own(tmp_path):
    architecture = Architecture(MASKED_TOKENS, pooler=False)
    parameters = random_parameters(TOY, pairs=False)
    write_directory(tmp_path, TOY, architecture, parameters, list(VOCABULARY), UNCASED)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("toy", ["ToyForMaskedLM"])
    pretrained = read_directory(tmp_path)
    assert pretrained.model == TOY
    for name, array in parameters.items():
        np.testing.assert_array_equal(pretrained.parameters[name], array)


def test_a_model_of_no_architecture_is_refused_with_the_names_of_all(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": ["gpt2"]}))
    expected = r"model_type = \['gpt2'\]: expected 'bert' or 'albert' or 'roberta' or 'modernbert' or 'toy'"
    with pytest.raises(UserError, match=expected):
        _ = HuggingFace(tmp_path).model


def test_the_kernels_do_not_compute_a_layer_that_they_do_not_know():
    served = dataclasses.replace(TOY, hidden_size=128, num_attention_heads=2, intermediate_size=512)
    assert why_not((9, 0), served, (128,), "bfloat16", "layers") == "they do not compute the layers of a toy"
    assert why_not((9, 0), dataclasses.replace(served, type_vocab_size=2), (128,), "bfloat16", "layers") is None


def test_the_products_of_a_gated_layer_are_counted():
    products = {product.name: product for product in matrix_products(TOY, 2, 16, 3, 1, pairs=False)}
    bert = {product.name: product for product in matrix_products(MODEL, 2, 16, 3, 1, pairs=False)}
    assert products["intermediate"].flops == 2 * bert["intermediate"].flops
    assert products["output"] == bert["output"]
