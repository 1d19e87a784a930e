"""The checkpoint to start from: what of it is taken, and what is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.text.store_dataset import StoreDataset
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.corpus.store import Store
from bert_horovod.errors import RunError, UserError
from bert_horovod.interchange.huggingface import write_directory
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe_files.loading import recipe_from_table
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.initial import Initial, load_initial
from tests.toy_runs import train_recipe
from tests.toys import toy_recipe, toy_recipe_table

RECIPE = toy_recipe()
PAIR_HEAD = {
    "bert.pooler.dense.weight",
    "bert.pooler.dense.bias",
    "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
}


def recipe_with(**model):
    return recipe_from_table(toy_recipe_table(model=model))


def write_model(
    directory: Path,
    store: Store,
    model: Model = RECIPE.model,
    pairs: bool = True,
    vocabulary: list[str] | None = None,
    lowercase: bool = True,
) -> dict[str, np.ndarray]:
    """Write a Hugging Face directory to start from; returns its parameters."""
    parameters = initial_values(pretraining_shapes(model, pairs), model.initializer_range, seed=5)
    settings = TokenizerSettings(lowercase)
    write_directory(directory, model, Pretraining(pairs), parameters, vocabulary or store.vocabulary, settings)
    return parameters


def load(directory: Path, recipe: Recipe, store: Store) -> dict[str, np.ndarray]:
    task = Pretraining(recipe.objective.pairs)
    return load_initial(
        find_checkpoint(directory, "--init_checkpoint"), recipe.model, task, StoreDataset(store, recipe)
    )


def refusal(directory: Path, store: Store, recipe=RECIPE) -> str:
    with pytest.raises(UserError) as caught:
        load(directory, recipe, store)
    assert str(caught.value).startswith(f"--init_checkpoint {directory}")
    return str(caught.value)


def test_parameters_to_start_from_are_read(tmp_path, store):
    expected = write_model(tmp_path / "init", store)
    parameters = load(tmp_path / "init", RECIPE, store)
    assert parameters.keys() == expected.keys()
    for name, value in parameters.items():
        np.testing.assert_array_equal(value, expected[name])


def test_heads_that_the_run_has_not_are_left_out_and_missing_ones_are_left_to_be_initialised(tmp_path, store):
    without = recipe_from_table(toy_recipe_table(objective={"pair": "none"}))
    with_heads = write_model(tmp_path / "with", store)
    assert load(tmp_path / "with", without, store).keys() == with_heads.keys() - PAIR_HEAD
    write_model(tmp_path / "without", store, pairs=False)
    assert load(tmp_path / "without", RECIPE, store).keys() == with_heads.keys() - PAIR_HEAD


def test_another_vocabulary_is_refused_by_the_first_difference(tmp_path, store):
    vocabulary = list(store.vocabulary)
    vocabulary[9], vocabulary[10] = vocabulary[10], vocabulary[9]
    write_model(tmp_path / "init", store, vocabulary=vocabulary)
    text = refusal(tmp_path / "init", store)
    assert "another vocabulary" in text
    assert "first differ at id 9" in text
    write_model(tmp_path / "longer", store, recipe_with(vocab_size=65).model, vocabulary=[*store.vocabulary, "more"])
    assert "first differ at id 64" in refusal(tmp_path / "longer", store)


def test_a_directory_without_a_vocabulary_is_taken_if_the_sizes_fit(tmp_path, store):
    expected = write_model(tmp_path / "init", store)
    (tmp_path / "init" / "vocab.txt").unlink()
    assert load(tmp_path / "init", RECIPE, store).keys() == expected.keys()


def test_another_casing_is_refused_by_the_option_that_mends_it(tmp_path, store):
    write_model(tmp_path / "init", store, lowercase=False)
    assert "has another tokenizer (cased) than the data in" in refusal(tmp_path / "init", store)
    assert f"prepare the data with --vocab {tmp_path / 'init'}" in refusal(tmp_path / "init", store)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("hidden_size", 16, ["bert.embeddings.word_embeddings.weight has shape [64, 16]", "leave [model] out"]),
        ("intermediate_size", 48, ["bert.encoder.layer.0.intermediate.dense.weight has shape [48, 32]"]),
        ("num_hidden_layers", 1, ["has num_hidden_layers = 1, the recipe has model.num_hidden_layers = 2"]),
        ("num_attention_heads", 4, ["has num_attention_heads = 4, the recipe has model.num_attention_heads = 2"]),
        ("hidden_act", "gelu_new", ["has hidden_act = 'gelu_new', the recipe has model.hidden_act = 'gelu'"]),
        ("layer_norm_eps", 1e-5, ["has layer_norm_eps = 1e-05, the recipe has model.layer_norm_eps = 1e-12"]),
    ],
)
def test_other_shapes_and_another_computation_with_the_same_are_refused(tmp_path, store, key, value, words):
    write_model(tmp_path / "init", store, recipe_with(**{key: value}).model)
    text = refusal(tmp_path / "init", store)
    assert all(word in text for word in words)


def test_a_checkpoint_of_the_other_architecture_is_refused_by_the_settings_that_make_it(tmp_path, store):
    albert = recipe_with(embedding_size=16, shared_layers=1)
    write_model(tmp_path / "bert", store)
    write_model(tmp_path / "albert", store, albert.model)
    text = refusal(tmp_path / "bert", store, albert)
    assert "is a BERT, the recipe's model.embedding_size = 16 and model.shared_layers = 1 make an ALBERT" in text
    text = refusal(tmp_path / "albert", store)
    assert "is an ALBERT, the recipe's model.embedding_size = 0 and model.shared_layers = 0 make a BERT" in text


@pytest.mark.parametrize("ours", [0, 2])
def test_other_sharing_is_refused_where_all_tensors_would_fit(tmp_path, store, ours):
    write_model(tmp_path / "init", store, recipe_with(embedding_size=16, shared_layers=1).model)
    text = refusal(tmp_path / "init", store, recipe_with(embedding_size=16, shared_layers=ours))
    assert f"has 1 layers with parameters, the recipe has model.shared_layers = {ours}" in text


def test_dropout_may_differ_from_that_of_the_model_to_start_from(tmp_path, store):
    write_model(tmp_path / "init", store, recipe_with(hidden_dropout_prob=0.3).model)
    assert load(tmp_path / "init", RECIPE, store)


def test_a_start_from_a_checkpoint_that_its_run_has_removed_is_told_as_such(store, tmp_path):
    gone = tmp_path / "other" / "checkpoints" / "step-00000004"
    write_model(gone, store, RECIPE.model)
    start = Initial(find_checkpoint(gone))
    shutil.rmtree(gone)
    with pytest.raises(RunError, match=f"the checkpoint {gone} was removed, by the run that made it, before this run"):
        train_recipe(toy_recipe(), store, tmp_path / "run", initial=start)


def test_a_start_from_a_mirror_is_recorded_by_its_url_not_by_where_it_was_fetched_to(store, tmp_path):
    write_model(tmp_path / "run" / "checkpoints" / "step-00000004", store)
    opened = find_checkpoint(tmp_path / "run", "--init_checkpoint", "s3://lab/run")
    assert Initial(opened).start.checkpoint == "s3://lab/run/checkpoints/step-00000004"
