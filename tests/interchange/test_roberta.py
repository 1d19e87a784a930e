"""Directories of RoBERTa and XLM-R: transformers and this program read each other's, and compute the same."""

import json

import pytest

from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.errors import UserError
from bert_horovod.interchange.architectures import MASKED_TOKENS, Architecture
from bert_horovod.interchange.huggingface import read_directory, write_directory
from bert_horovod.interchange.tokenizer_files import read_tokenizer
from bert_horovod.model.architectures.families import family_of, name_of_bert, names_of_heads
from bert_horovod.model.architectures.roberta import RobertaModel
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import pretraining_shapes
from tests.interchange.comparing import compare_head, compare_masked_tokens
from tests.interchange.conftest import VOCABULARY, random_model
from tests.toy_tokenizers import write_kind
from tests.toys import TOY_MODEL

OURS = TOY_MODEL | {"vocab_size": 64, "max_position_embeddings": 40, "layer_norm_eps": 1e-5}
THEIRS = OURS | {"max_position_embeddings": 42, "type_vocab_size": 1}
EAGER = {"attn_implementation": "eager"}


@pytest.mark.full
@pytest.mark.parametrize("kind", ["XLMRoberta", "Camembert"])
def test_a_directory_of_transformers_gives_its_logits_and_gradients(tmp_path, kind):
    original = random_model(f"{kind}ForMaskedLM", 0.1, **THEIRS, **EAGER, hidden_act="gelu_new")
    original.save_pretrained(tmp_path)
    pretrained = read_directory(tmp_path)
    assert pretrained.model == RobertaModel(**OURS, hidden_act="gelu_new")
    compare_masked_tokens(original, pretrained, 40)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_heads_are_transformers_both_ways(tmp_path, kind):
    words = read_tokenizer(write_kind(tmp_path / "tokenizer", "robertas"), None)
    sizes = THEIRS | {"vocab_size": len(words.vocabulary)}
    original = random_model(f"RobertaFor{kind}", 0.1, **sizes, **EAGER, num_labels=2)
    compare_head(tmp_path, original, words.vocabulary, words.settings, padding=1)


@pytest.mark.full
def test_transformers_loads_our_directory_and_gives_our_logits_and_gradients(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = read_tokenizer(write_kind(tmp_path / "tokenizer", "robertas"), None)
    model = RobertaModel(**OURS | {"vocab_size": len(tokenizer.vocabulary)})
    values = initial_values(pretraining_shapes(model, False), 0.1, 0)
    masked = Architecture(MASKED_TOKENS, False)
    write_directory(tmp_path / "ours", model, masked, values, tokenizer.vocabulary, tokenizer.settings)
    load = transformers.AutoModelForMaskedLM.from_pretrained
    theirs, info = load(tmp_path / "ours", output_loading_info=True, **EAGER)
    assert type(theirs).__name__ == "RobertaForMaskedLM"
    assert not any(info.values()), info
    assert (theirs.config.pad_token_id, theirs.config.max_position_embeddings) == (1, 42)
    pretrained = read_directory(tmp_path / "ours")
    assert pretrained.model == model
    compare_masked_tokens(theirs.eval(), pretrained, 40)


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


def test_a_tokenizer_with_another_id_of_padding_is_refused(tmp_path):
    model = RobertaModel(**OURS)
    values = initial_values(pretraining_shapes(model, False), 0.1, 0)
    write_directory(tmp_path, model, Architecture(MASKED_TOKENS, False), values, VOCABULARY, UNCASED)
    (tmp_path / "tokenizer.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"pad_token_id": 1}))
    with pytest.raises(UserError, match=r"the token of padding, \[PAD\], has the id 0; .* expected 1, because"):
        read_directory(tmp_path)
