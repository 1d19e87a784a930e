"""Directories of RoBERTa and XLM-R: transformers and this program read each other's, and compute the same."""

import json

import numpy as np
import pytest

from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.errors import UserError
from bert_horovod.interchange.architectures import ANSWERS, MASKED_TOKENS, Architecture
from bert_horovod.interchange.huggingface import describe_directory, read_directory, read_model, write_directory
from bert_horovod.interchange.tokenizer_files import read_tokenizer
from bert_horovod.model.architectures.families import family_of, name_of_bert, names_of_heads
from bert_horovod.model.architectures.roberta import RobertaModel
from bert_horovod.model.parameters import POSITION_EMBEDDINGS, initial_values
from bert_horovod.model.shapes import pretraining_shapes
from tests.interchange.comparing import both, compare_masked_tokens, rows_of
from tests.interchange.conftest import VOCABULARY
from tests.toy_tokenizers import write_kind

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
OURS = SIZES | {"max_position_embeddings": 40, "layer_norm_eps": 1e-5}
THEIRS = OURS | {"max_position_embeddings": 42, "type_vocab_size": 1}


def random_model(kind: str, configuration: str = "RobertaConfig", **settings):
    """A transformers model in evaluation mode, every parameter random."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, configuration)(**THEIRS | settings, attn_implementation="eager")
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize(
    ("kind", "configuration", "activation"),
    [
        ("RobertaForMaskedLM", "RobertaConfig", "gelu_new"),
        pytest.param("XLMRobertaForMaskedLM", "XLMRobertaConfig", "gelu_new", marks=pytest.mark.full),
        pytest.param("CamembertForMaskedLM", "CamembertConfig", "gelu_new", marks=pytest.mark.full),
    ],
)
def test_a_directory_of_transformers_gives_its_logits_and_gradients(tmp_path, kind, configuration, activation):
    original = random_model(kind, configuration, hidden_act=activation)
    original.save_pretrained(tmp_path)
    pretrained = read_directory(tmp_path)
    assert pretrained.model == RobertaModel(**OURS, hidden_act=activation)
    compare_masked_tokens(original, pretrained, 40)


@pytest.mark.full
def test_transformers_loads_our_directory_and_gives_our_logits_and_gradients(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = read_tokenizer(write_kind(tmp_path / "tokenizer", "robertas"), None)
    model = RobertaModel(**OURS | {"vocab_size": len(tokenizer.vocabulary)})
    values = initial_values(pretraining_shapes(model, False), 0.1, 0)
    write_directory(
        tmp_path / "ours", model, Architecture(MASKED_TOKENS, False), values, tokenizer.vocabulary, tokenizer.settings
    )
    theirs, info = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert type(theirs).__name__ == "RobertaForMaskedLM"
    assert not any(info.values()), info
    assert (theirs.config.pad_token_id, theirs.config.max_position_embeddings) == (1, 42)
    pretrained = read_directory(tmp_path / "ours")
    assert pretrained.model == model
    compare_masked_tokens(theirs.eval(), pretrained, 40)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_heads_are_transformers_both_ways(tmp_path, kind):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    words = read_tokenizer(write_kind(tmp_path / "tokenizer", "robertas"), None)
    original = random_model(f"RobertaFor{kind}", num_labels=2, vocab_size=len(words.vocabulary))
    original.save_pretrained(tmp_path / "theirs")
    model, _, (chosen, *_) = describe_directory(tmp_path / "theirs")
    assert chosen.class_name(model) == f"RobertaFor{kind}"
    pretrained = read_directory(tmp_path / "theirs", chosen)
    ids, mask = rows_of(model.vocab_size, 40, padding=1)
    with torch.no_grad():
        expected = original(torch.tensor(ids, dtype=torch.long), torch.tensor(mask, dtype=torch.long))
    for outputs in both(chosen, pretrained, ids, mask):
        for name, values in outputs.items():
            real = mask > 0 if values.ndim == 3 or chosen.name == ANSWERS else slice(None)  # no padding
            np.testing.assert_allclose(values[real], expected[name].numpy()[real], rtol=1e-4, atol=1e-4)
    values = {name: pretrained.parameters[name] for name in chosen.parameters(model)}
    write_directory(tmp_path / "ours", model, chosen, values, words.vocabulary, words.settings)
    again, info = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(info.values()), info
    for (name, value), (_, other) in zip(original.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(value, other), name


def test_names_come_back_from_files():
    model = RobertaModel()
    family, names = family_of(model), list(pretraining_shapes(model, False))
    in_file = [family.name_in_file(name) for name in names]
    assert in_file[0] == "roberta.embeddings.word_embeddings.weight"
    assert in_file[-1] == "lm_head.bias"
    assert names_of_heads(model, name_of_bert("XLMRobertaForSequenceClassification")) == {
        "bert.pooler.dense.weight": "classifier.dense.weight",
        "bert.pooler.dense.bias": "classifier.dense.bias",
        "classifier.weight": "classifier.out_proj.weight",
        "classifier.bias": "classifier.out_proj.bias",
    }
    assert names_of_heads(model, "BertForTokenClassification") == {}


def test_two_rows_of_positions_belong_to_no_token():
    assert pretraining_shapes(RobertaModel(), False)[POSITION_EMBEDDINGS] == (514, 768)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"pad_token_id": 0}, "pad_token_id = 0 is not supported: expected 1"),
        ({"type_vocab_size": 2}, "type_vocab_size = 2 is not supported: expected 1"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key' is not supported"),
        ({"max_position_embeddings": "x"}, "model.max_position_embeddings = 'x': expected"),
        ({"max_position_embeddings": 4}, "model.max_position_embeddings = 2: expected"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = False is not supported"),
    ],
    ids=str,
)
def test_a_configuration_of_another_kind_is_refused(tmp_path, entry, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "roberta"} | THEIRS | entry))
    with pytest.raises(UserError, match=message):
        read_model(path)


def test_a_tokenizer_with_another_id_of_padding_is_refused(tmp_path):
    model = RobertaModel(**OURS)
    values = initial_values(pretraining_shapes(model, False), 0.1, 0)
    write_directory(tmp_path, model, Architecture(MASKED_TOKENS, False), values, VOCABULARY, UNCASED)
    (tmp_path / "tokenizer.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"pad_token_id": 1}))
    with pytest.raises(UserError, match=r"the token of padding, \[PAD\], has the id 0; .* expected 1, because"):
        read_directory(tmp_path)
