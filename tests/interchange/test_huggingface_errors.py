"""Bad directories: each is refused with a message that names what is wrong."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_horovod.errors import DamagedData, ReportedError, UserError
from bert_horovod.interchange.huggingface import HuggingFace, read_directory
from tests.interchange.conftest import VOCABULARY
from tests.toys import TOY_MODEL

QUERY = "bert.encoder.layer.1.attention.self.query.weight"
EMBEDDINGS = "bert.embeddings.word_embeddings.weight"


def assert_refused(directory, *words):
    with pytest.raises(DamagedData if "damaged" in words else ReportedError) as caught:
        read_directory(directory)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_directory_and_missing_config(tmp_path):
    assert_refused(tmp_path / "nowhere", "no config.json", "nowhere")
    assert_refused(tmp_path, "no config.json")


@pytest.mark.parametrize("text", ["{", "[]", "", "\xff", "[" * 100_000])
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
    path = pretraining_directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    assert_refused(pretraining_directory, *words)


@pytest.mark.parametrize(
    ("kind", "entry", "message"),
    [
        ("modernbert", {"norm_bias": True}, "norm_bias = True is not supported: expected False"),
        ("modernbert", {"hidden_activation": "silu"}, "hidden_activation = 'silu' is not supported: expected 'gelu'"),
        ("modernbert", {"layer_types": ["sliding_attention"] * 2}, "layer_types = .*expected 'full_attention' for"),
        ("modernbert", {"layer_types": ["full_attention"]}, "layer_types = .*not supported"),
        ("modernbert", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type = 'yarn'"),
        ("modernbert", {"rope_parameters": {"full_attention": {"rope_theta": "x"}}}, "global_rope_theta = 'x': "),
        ("modernbert", {"num_attention_heads": 32}, "model.num_attention_heads = 32: its heads of 1 numbers"),
        ("roberta", {"pad_token_id": 0}, "pad_token_id = 0 is not supported: expected 1"),
        ("roberta", {"type_vocab_size": 2}, "type_vocab_size = 2 is not supported: expected 1"),
        ("roberta", {"position_embedding_type": "relative_key"}, "type = 'relative_key' is not supported"),
        ("roberta", {"max_position_embeddings": "x"}, "model.max_position_embeddings = 'x': expected"),
        ("roberta", {"max_position_embeddings": 4}, "model.max_position_embeddings = 2: expected"),
        ("roberta", {"tie_word_embeddings": False}, "tie_word_embeddings = False is not supported"),
    ],
    ids=str,
)
def test_a_configuration_of_another_kind_is_refused(tmp_path, kind, entry, message):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "type_vocab_size": 1} | TOY_MODEL | entry))
    with pytest.raises(UserError, match=message):
        _ = HuggingFace(tmp_path).model


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


SQUARE = np.zeros((12, 12), np.float32)
TENSORS = [
    ({QUERY: None}, ["1 encoder tensors are missing", QUERY]),
    ({QUERY: SQUARE[:, :11].copy()}, [QUERY, "[12, 11]", "[12, 12]"]),
    *(({QUERY: np.diag([value, *[0.0] * 11])}, [QUERY, "1 values", "not finite"]) for value in (np.nan, np.inf, 1e300)),
    ({QUERY: SQUARE.astype(np.int8)}, [QUERY, "I8"]),
    ({"cls.predictions.decoder.weight": np.ones((len(VOCABULARY), 12))}, ["decoder.weight", EMBEDDINGS, "tied"]),
    ({"cls.predictions.decoder.bias": np.ones(len(VOCABULARY))}, ["decoder.bias", "cls.predictions.bias"]),
    ({"embeddings.word_embeddings.weight": np.zeros(1)}, ["two tensors", EMBEDDINGS]),
]


@pytest.mark.parametrize(("changes", "words"), TENSORS)
def test_tensors_that_lack_differ_or_are_no_numbers(pretraining_directory, changes, words):
    """`changes`: tensors in place of those of their names; None removes one."""
    path = pretraining_directory / "model.safetensors"
    tensors = load_file(path) | changes
    save_file({name: value for name, value in tensors.items() if value is not None}, path, {"format": "pt"})
    assert_refused(pretraining_directory, *words)


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
