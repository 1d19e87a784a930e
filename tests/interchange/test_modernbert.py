"""Directories of ModernBERT: transformers and this program read each other's, and compute the same."""

import json

import numpy as np
import pytest

from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.errors import UserError
from bert_horovod.interchange.architectures import ANSWERS, CLASSIFICATION, MASKED_TOKENS, Architecture
from bert_horovod.interchange.huggingface import describe_directory, read_directory, read_model, write_directory
from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.tasks.span import Span
from tests.interchange.comparing import both, compare_masked_tokens, rows_of
from tests.interchange.conftest import VOCABULARY

TOY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "local_attention": 8,
    "global_rope_theta": 10_000.0,
}
TWO_LAYERS = TOY | {"num_hidden_layers": 2}
ETTIN_17M = TOY | {
    "vocab_size": 50368,
    "hidden_size": 256,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "intermediate_size": 384,
    "local_attention": 32,
    "max_position_embeddings": 8192,
    "global_rope_theta": 160_000.0,
}
ETTIN = pytest.param(ETTIN_17M, 160, marks=pytest.mark.slow)
IDS = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}


def random_model(kind: str, sizes: dict, scale: float = 0.05, **settings):
    """A transformers model in evaluation mode, every parameter random."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(**IDS, **{**sizes, **settings}, attn_implementation="eager")
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * scale)
    return model


@pytest.mark.full
@pytest.mark.parametrize(("sizes", "length"), [(TWO_LAYERS, 40), ETTIN], ids=["two-layers", "ettin-17m"])
def test_transformers_loads_our_directory_and_gives_our_logits_and_gradients(tmp_path, sizes, length):
    transformers = pytest.importorskip("transformers")
    model = ModernBertModel(**sizes)
    values = initial_values(pretraining_shapes(model, False), 0.05, 0)
    words = [*VOCABULARY, *(f"word{i}" for i in range(sizes["vocab_size"] - len(VOCABULARY)))]
    write_directory(tmp_path, model, Architecture(MASKED_TOKENS, False), values, words, UNCASED)
    theirs, info = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path, output_loading_info=True, attn_implementation="eager"
    )
    assert type(theirs).__name__ == "ModernBertForMaskedLM"
    assert not any(info.values()), info
    assert theirs.config.attention_dropout == 0
    pretrained = read_directory(tmp_path)
    assert pretrained.model == model
    compare_masked_tokens(theirs.eval(), pretrained, length)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    inputs = tokenizer("the cat sat", "on a mat")
    assert set(inputs) == {"input_ids", "attention_mask"}
    expected = ["[CLS]", "the", "cat", "sat", "[SEP]", "on", "a", "mat", "[SEP]"]
    assert [VOCABULARY[token] for token in inputs["input_ids"]] == expected


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        pytest.param("SequenceClassification", {"classifier_pooling": "mean"}, marks=pytest.mark.full),
        pytest.param("SequenceClassification", {"classifier_pooling": "cls"}, marks=pytest.mark.full),
        ("TokenClassification", {}),
    ],
)
def test_a_classifier_of_texts_and_one_of_words_are_transformers(tmp_path, kind, settings):
    torch = pytest.importorskip("torch")
    original = random_model(f"ModernBertFor{kind}", TOY, num_labels=3, **settings)
    original.save_pretrained(tmp_path)
    model, _, architectures = describe_directory(tmp_path)
    chosen = architectures[0]
    assert (chosen.class_name(model), len(chosen.labels)) == (f"ModernBertFor{kind}", 3)
    pretrained = read_directory(tmp_path, chosen)
    ids, mask = rows_of(model.vocab_size, 40)
    with torch.no_grad():
        expected = original(torch.tensor(ids, dtype=torch.long), torch.tensor(mask, dtype=torch.long)).logits.numpy()
    real = mask > 0 if expected.ndim == 3 else slice(None)  # of words: no padding
    for outputs in both(chosen, pretrained, ids, mask):
        np.testing.assert_allclose(outputs["logits"][real], expected[real], rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_a_head_of_answers_is_transformers_both_ways(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    original = random_model("ModernBertForQuestionAnswering", TOY)
    original.save_pretrained(tmp_path / "theirs")
    model, _, architectures = describe_directory(tmp_path / "theirs")
    assert architectures[0].class_name(model) == "ModernBertForQuestionAnswering"
    pretrained = read_directory(tmp_path / "theirs", Span())
    ids, mask = rows_of(model.vocab_size, 40)
    with torch.no_grad():
        expected = original(torch.tensor(ids, dtype=torch.long), torch.tensor(mask, dtype=torch.long))
    for outputs in both(architectures[0], pretrained, ids, mask):
        for side in ("start_logits", "end_logits"):
            logits = getattr(expected, side).numpy()
            np.testing.assert_allclose(outputs[side][mask > 0], logits[mask > 0], rtol=1e-4, atol=1e-4)
    values = {name: pretrained.parameters[name] for name in Span().parameters(model)}
    words = [*VOCABULARY, *(f"word{i}" for i in range(model.vocab_size - len(VOCABULARY)))]
    write_directory(tmp_path / "ours", model, Span(), values, words, UNCASED)
    again, info = transformers.AutoModelForQuestionAnswering.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(info.values()), info
    for (name, value), (_, other) in zip(original.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(value, other), name


def test_a_bare_encoder_has_the_names_without_its_heads():
    rename = family_of(ModernBertModel()).name_of_parameter
    names = ["bert.embeddings.tok_embeddings.weight", "layers.3.attn.Wqkv.weight", "final_norm.weight"]
    assert [rename(name) for name in names] == [
        "bert.embeddings.word_embeddings.weight",
        "bert.encoder.layer.3.attention.self.qkv.weight",
        "bert.encoder.LayerNorm.weight",
    ]


def test_names_come_back_from_files():
    family, model = family_of(ModernBertModel()), ModernBertModel()
    names = list(pretraining_shapes(model, False))
    assert [family.name_of_parameter(family.name_in_file(name)) for name in names] == names
    assert family.name_in_file(names[-1]) == "decoder.bias"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"norm_bias": True}, "norm_bias = True is not supported: expected False"),
        ({"hidden_activation": "silu"}, "hidden_activation = 'silu' is not supported: expected 'gelu'"),
        ({"layer_types": ["sliding_attention"] * 5}, "layer_types = .*not supported; expected 'full_attention' for"),
        ({"layer_types": ["full_attention"]}, "layer_types = .*not supported"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type = 'yarn'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": "x"}}}, "model.global_rope_theta = 'x': expected"),
        ({"num_attention_heads": 32}, "model.num_attention_heads = 32: its heads of 1 numbers"),
    ],
    ids=str,
)
def test_a_configuration_of_another_kind_is_refused(tmp_path, entry, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "modernbert"} | TOY | entry))
    with pytest.raises(UserError, match=message):
        read_model(path)


def test_keys_of_both_generations_of_transformers_are_read(tmp_path):
    path = tmp_path / "config.json"
    old = {
        "model_type": "modernbert",
        "num_hidden_layers": 4,
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 5e4,
    }
    path.write_text(json.dumps(old))
    model = read_model(path)
    assert (model.global_attn_every_n_layers, model.global_rope_theta, model.local_rope_theta) == (2, 5e4, 1e4)
    new = {
        "model_type": "modernbert",
        "num_hidden_layers": 4,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5e4},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    }
    path.write_text(json.dumps(new))
    model = read_model(path)
    assert (model.global_attn_every_n_layers, model.global_rope_theta, model.local_rope_theta) == (2, 5e4, 300.0)


def test_a_local_theta_of_null_is_the_global_one_and_dropouts_are_told(tmp_path, capfd):
    path = tmp_path / "config.json"
    for entry in ({"local_rope_theta": None}, {"rope_parameters": {"sliding_attention": {"rope_theta": None}}}):
        path.write_text(json.dumps({"model_type": "modernbert", "global_rope_theta": 5e4, "mlp_dropout": 0.1} | entry))
        assert read_model(path).local_rope_theta == 5e4
    assert capfd.readouterr().err.count("config.json: mlp_dropout = 0.1 is passed over: training here has no") == 1


def test_classes_have_no_pooler():
    model = ModernBertModel(**TOY)
    for name in (CLASSIFICATION, ANSWERS, MASKED_TOKENS):
        parameters = Architecture(name, False, ("a", "b")).parameters(model)
        assert "cls.predictions.transform.dense.weight" in parameters
        assert not [each for each in parameters if "pooler" in each]
