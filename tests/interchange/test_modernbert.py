"""Directories of ModernBERT: transformers and this program read each other's, and compute the same."""

import json

import pytest

from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.interchange.architectures import ANSWERS, CLASSIFICATION, MASKED_TOKENS, Architecture
from bert_horovod.interchange.huggingface import HuggingFace
from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from tests.interchange.comparing import compare_head
from tests.interchange.conftest import VOCABULARY, random_model
from tests.toys import TOY_MODEL

TOY = TOY_MODEL | {"vocab_size": 64, "num_hidden_layers": 5, "intermediate_size": 48, "max_position_embeddings": 64}
TOY |= {"local_attention": 8, "global_rope_theta": 10_000.0}
IDS = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        pytest.param("SequenceClassification", {"classifier_pooling": "mean"}, marks=pytest.mark.full),
        pytest.param("SequenceClassification", {"classifier_pooling": "cls"}, marks=pytest.mark.full),
        pytest.param("QuestionAnswering", {}, marks=pytest.mark.full),
        ("TokenClassification", {}),
    ],
)
def test_heads_are_transformers_both_ways(tmp_path, kind, settings):
    settings = IDS | settings if kind == "QuestionAnswering" else IDS | settings | {"num_labels": 3}
    original = random_model(f"ModernBertFor{kind}", 0.05, **TOY, **settings, attn_implementation="eager")
    compare_head(tmp_path, original, words(TOY["vocab_size"]), UNCASED)


def words(size: int) -> list[str]:
    """A vocabulary of so many words."""
    return [*VOCABULARY, *(f"word{i}" for i in range(size - len(VOCABULARY)))]


def test_a_bare_encoder_has_the_names_without_its_heads():
    rename = family_of(ModernBertModel()).name_of_parameter
    names = ["bert.embeddings.tok_embeddings.weight", "layers.3.attn.Wqkv.weight", "final_norm.weight"]
    assert [rename(name) for name in names] == [
        "bert.embeddings.word_embeddings.weight",
        "bert.encoder.layer.3.attention.self.qkv.weight",
        "bert.encoder.LayerNorm.weight",
    ]


def test_keys_of_both_generations_of_transformers_are_read(tmp_path):
    path = tmp_path / "config.json"
    four = {"model_type": "modernbert", "num_hidden_layers": 4}
    path.write_text(json.dumps(four | {"global_attn_every_n_layers": 2, "global_rope_theta": 5e4}))
    model = HuggingFace(path.parent).model
    assert (model.global_attn_every_n_layers, model.global_rope_theta, model.local_rope_theta) == (2, 5e4, 1e4)
    new = four | {
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5e4},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    }
    path.write_text(json.dumps(new))
    model = HuggingFace(path.parent).model
    assert (model.global_attn_every_n_layers, model.global_rope_theta, model.local_rope_theta) == (2, 5e4, 300.0)


def test_a_local_theta_of_null_is_the_global_one_and_dropouts_are_told(tmp_path, capfd):
    path = tmp_path / "config.json"
    for entry in ({"local_rope_theta": None}, {"rope_parameters": {"sliding_attention": {"rope_theta": None}}}):
        path.write_text(json.dumps({"model_type": "modernbert", "global_rope_theta": 5e4, "mlp_dropout": 0.1} | entry))
        assert HuggingFace(path.parent).model.local_rope_theta == 5e4
    assert capfd.readouterr().err.count("config.json: mlp_dropout = 0.1 is passed over: training here has no") == 1


def test_classes_have_no_pooler():
    model = ModernBertModel(**TOY)
    for name in (CLASSIFICATION, ANSWERS, MASKED_TOKENS):
        parameters = Architecture(name, False, ("a", "b")).parameters(model)
        assert "cls.predictions.transform.dense.weight" in parameters
        assert not [each for each in parameters if "pooler" in each]
