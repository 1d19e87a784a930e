"""Bad directories: each is refused with a message that names what is wrong."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_horovod.errors import DamagedData, ReportedError
from bert_horovod.interchange.huggingface import read_directory
from tests.interchange.conftest import VOCABULARY, random_model

QUERY = "bert.encoder.layer.1.attention.self.query.weight"
EMBEDDINGS = "bert.embeddings.word_embeddings.weight"


def set_config(directory, **values):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_tensors(directory, **changes):
    """Replace tensors (None: remove); names with __ for dots."""
    tensors = load_file(directory / "model.safetensors")
    for name, values in changes.items():
        tensors[name.replace("__", ".")] = values
    present = {name: values for name, values in tensors.items() if values is not None}
    save_file(present, directory / "model.safetensors", {"format": "pt"})


def assert_refused(directory, *words):
    with pytest.raises(DamagedData if "damaged" in words else ReportedError) as caught:
        read_directory(directory)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_directory_and_missing_config(tmp_path):
    assert_refused(tmp_path / "nowhere", "no config.json", "nowhere")
    assert_refused(tmp_path, "no config.json")


@pytest.mark.parametrize("text", ["{", "[]", "", "\xff"])
def test_damaged_config(pretraining_directory, text):
    (pretraining_directory / "config.json").write_text(text, encoding="latin-1")
    assert_refused(pretraining_directory, "config.json", "damaged")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_type": "xlnet"}, ["model_type", "xlnet", "bert"]),
        ({"model_type": None}, ["model_type", "bert"]),
        ({"hidden_act": "relu"}, ["hidden_act", "relu", "gelu_new"]),
        ({"position_embedding_type": "relative_key"}, ["position_embedding_type", "relative_key", "absolute"]),
        ({"is_decoder": True}, ["is_decoder"]),
        ({"hidden_size": "12"}, ["hidden_size", "12"]),
        ({"num_attention_heads": 5}, ["num_attention_heads", "5"]),
        ({"num_hidden_layers": 1}, ["encoder.layer.1", "1 layers"]),
        ({"num_hidden_layers": 3}, ["missing", "bert.encoder.layer.2."]),
        ({"intermediate_size": 21}, ["intermediate.dense.", "[20", "[21"]),
    ],
    ids=str,
)
def test_config_of_another_model(pretraining_directory, values, words):
    set_config(pretraining_directory, **values)
    assert_refused(pretraining_directory, *words)


def test_weights_that_are_not_there_and_a_pointer_in_their_place(pretraining_directory):
    (pretraining_directory / "model.safetensors").unlink()
    assert_refused(pretraining_directory, "no model.safetensors")
    (pretraining_directory / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\nsize 9\n")
    assert_refused(pretraining_directory, "model.safetensors is a pointer of Git LFS", "git lfs pull")


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_damaged_weights(pretraining_directory, kept):
    path = pretraining_directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert_refused(pretraining_directory, "model.safetensors", "damaged")


def test_missing_tensor(pretraining_directory):
    change_tensors(pretraining_directory, **{QUERY: None})
    assert_refused(pretraining_directory, "1 encoder tensors are missing", QUERY)


def test_wrong_shape(pretraining_directory):
    change_tensors(pretraining_directory, **{QUERY: np.zeros((12, 11), np.float32)})
    assert_refused(pretraining_directory, QUERY, "[12, 11]", "[12, 12]")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_values_that_are_not_finite(pretraining_directory, value):
    values = np.zeros((12, 12))
    values[3, 4] = value
    change_tensors(pretraining_directory, **{QUERY: values})
    assert_refused(pretraining_directory, QUERY, "1 values", "not finite")


def test_quantised_weights(pretraining_directory):
    change_tensors(pretraining_directory, **{QUERY: np.zeros((12, 12), np.int8)})
    assert_refused(pretraining_directory, QUERY, "I8")


def test_untied_decoder(pretraining_directory):
    weights = load_file(pretraining_directory / "model.safetensors")
    change_tensors(pretraining_directory, cls__predictions__decoder__weight=weights[EMBEDDINGS] + 1)
    assert_refused(pretraining_directory, "decoder.weight", EMBEDDINGS, "tied")


def test_two_different_biases(pretraining_directory):
    change_tensors(pretraining_directory, cls__predictions__decoder__bias=np.ones(len(VOCABULARY), np.float32))
    assert_refused(pretraining_directory, "decoder.bias", "cls.predictions.bias")


def test_the_same_tensor_under_two_names(pretraining_directory):
    change_tensors(pretraining_directory, embeddings__word_embeddings__weight=np.zeros((1,), np.float32))
    assert_refused(pretraining_directory, "two tensors", EMBEDDINGS)


@pytest.mark.parametrize(
    ("index", "word"),
    [
        ("{", "damaged"),
        ("{}", "damaged"),
        ('{"weight_map": []}', "damaged"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "gone.safetensors"),
        ('{"weight_map": {"a": "../other.safetensors"}}', "same directory"),
    ],
)
def test_bad_index_of_shards(pretraining_directory, index, word):
    (pretraining_directory / "model.safetensors").unlink()
    (pretraining_directory / "model.safetensors.index.json").write_text(index)
    assert_refused(pretraining_directory, word)


def test_vocabulary_of_another_size(pretraining_directory):
    (pretraining_directory / "vocab.txt").write_text("\n".join([*VOCABULARY, "more"]), encoding="utf-8")
    assert_refused(pretraining_directory, "vocab.txt", f"{len(VOCABULARY) + 1} tokens", f"size = {len(VOCABULARY)}")
    (pretraining_directory / "vocab.txt").write_text("\n", encoding="utf-8")
    assert_refused(pretraining_directory, "vocab.txt", "is empty")


def test_added_token_beyond_the_embeddings(pretraining_directory):
    (pretraining_directory / "added_tokens.json").write_text(json.dumps({"extra": 500}))
    assert_refused(pretraining_directory, "'extra' has the id 500", f"transformers for it is {len(VOCABULARY)}")
    (pretraining_directory / "added_tokens.json").write_text(json.dumps({"extra": len(VOCABULARY)}))
    assert_refused(pretraining_directory, f"{len(VOCABULARY) + 1} tokens", f"vocab_size = {len(VOCABULARY)}")


def test_added_tokens_may_complete_the_vocabulary(tmp_path):
    random_model("BertForMaskedLM").save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\r\n".join(VOCABULARY[:-1]), encoding="utf-8")
    (tmp_path / "added_tokens.json").write_text(json.dumps({VOCABULARY[-1]: len(VOCABULARY) - 1}))
    assert read_directory(tmp_path).vocabulary == VOCABULARY


def test_damaged_tokenizer_files(pretraining_directory):
    (pretraining_directory / "vocab.txt").write_bytes(b"\xff\xfe")
    assert_refused(pretraining_directory, "vocab.txt", "is not UTF-8 text")
    (pretraining_directory / "vocab.txt").unlink()
    (pretraining_directory / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    assert_refused(pretraining_directory, "BPE", "WordPiece")
    (pretraining_directory / "tokenizer.json").write_text("{}")
    assert_refused(pretraining_directory, "tokenizer.json", "damaged")
