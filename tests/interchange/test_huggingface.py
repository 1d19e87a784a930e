"""Round trips through transformers."""

import json
import stat

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from bert_horovod.corpus.reading.tokenizer_settings import UNCASED, TokenizerSettings
from bert_horovod.interchange.huggingface import HuggingFace, read_directory, write_directory
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Model
from bert_horovod.tasks.label_attention import LabelAttention
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.tasks.span import Span
from bert_horovod.tasks.text_head import Classification, Multilabel, Regression, Reranking
from bert_horovod.tasks.token_classification import TokenClassification
from tests.interchange.conftest import SIZES, VOCABULARY, random_model
from tests.toy_glue import MODEL, write_checkpoint

HEADS = {"BertForPreTraining": True, "BertForMaskedLM": False}


def small_model(**settings):
    return Model(**{**SIZES, **settings})


def write_small(directory, pairs=True, lowercase=True, vocabulary=VOCABULARY, **settings):
    tokenizer = TokenizerSettings(lowercase)
    return write_checkpoint(directory, Pretraining(pairs), small_model(**settings), vocabulary, tokenizer)


def assert_equal_parameters(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
def test_round_trip_through_transformers_keeps_every_tensor(tmp_path, kind, act, torch, transformers):
    original = random_model(kind, hidden_act=act, layer_norm_eps=1e-6, attention_probs_dropout_prob=0.25)
    original.save_pretrained(tmp_path / "theirs")
    pretrained = read_directory(tmp_path / "theirs")
    assert pretrained.model == small_model(hidden_act=act, layer_norm_eps=1e-6, attention_probs_dropout_prob=0.25)
    assert pretrained.pairs is HEADS[kind]
    assert pretrained.vocabulary is None
    shapes = {name: x.shape for name, x in pretrained.parameters.items()}
    assert shapes == pretraining_shapes(pretrained.model, pretrained.pairs)

    pairs = Pretraining(pretrained.pairs)
    write_directory(tmp_path / "ours", pretrained.model, pairs, pretrained.parameters, VOCABULARY, UNCASED)
    again, info = getattr(transformers, kind).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    assert again.state_dict().keys() == original.state_dict().keys()
    for name, values in original.state_dict().items():
        assert torch.equal(again.state_dict()[name], values), name
    for key in (*SIZES, "hidden_act", "layer_norm_eps", "attention_probs_dropout_prob", "pad_token_id"):
        assert getattr(again.config, key) == getattr(original.config, key)

    reread = read_directory(tmp_path / "ours")
    assert_equal_parameters(reread.parameters, pretrained.parameters)
    assert reread.model == pretrained.model
    assert reread.vocabulary == VOCABULARY


@pytest.mark.full
def test_special_tokens_may_have_any_id(tmp_path, transformers):
    vocabulary = VOCABULARY[5:] + VOCABULARY[:5]
    write_small(tmp_path, pairs=False, vocabulary=vocabulary)
    assert transformers.AutoConfig.from_pretrained(tmp_path).pad_token_id == vocabulary.index("[PAD]")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("the")["input_ids"] == [vocabulary.index(token) for token in ("[CLS]", "the", "[SEP]")]


def test_transposed_views_are_written_in_the_right_order(tmp_path):
    model = small_model()
    parameters = initial_values(pretraining_shapes(model, True), model.initializer_range, seed=1)
    views = {name: np.asarray(values.T.copy().T, np.float64) for name, values in parameters.items()}
    assert not views["bert.pooler.dense.weight"].flags.c_contiguous
    write_directory(tmp_path, model, Pretraining(True), views, VOCABULARY, UNCASED)
    assert_equal_parameters(read_directory(tmp_path).parameters, parameters)


def test_written_files_are_plain(tmp_path):
    write_small(tmp_path / "new" / "directory")
    files = sorted((tmp_path / "new" / "directory").iterdir())
    assert [file.name for file in files] == ["config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"]
    assert len({stat.S_IMODE(file.stat().st_mode) for file in files}) == 1  # others may read what the umask allows
    with safe_open(files[1], "np") as weights:
        assert weights.metadata() == {"format": "pt"}


def test_writing_refuses_what_is_not_the_model_s(tmp_path):
    model = small_model()
    parameters = initial_values(pretraining_shapes(model, True), model.initializer_range, seed=1)
    with pytest.raises(ValueError, match=r"unknown .*bert\.pooler"):
        write_directory(tmp_path, model, Pretraining(False), parameters, VOCABULARY, UNCASED)
    wrong = {**parameters, "cls.predictions.bias": np.zeros(3, np.float32)}
    with pytest.raises(ValueError, match=r"cls\.predictions\.bias has shape \[3\]"):
        write_directory(tmp_path, model, Pretraining(True), wrong, VOCABULARY, UNCASED)
    with pytest.raises(ValueError, match="vocab_size"):
        write_directory(tmp_path, model, Pretraining(True), parameters, [*VOCABULARY, "more"], UNCASED)
    without_mask = ["x" if token == "[MASK]" else token for token in VOCABULARY]
    for words, message in ((without_mask, r"lacks \[MASK\]"), ([*VOCABULARY[:-1], "a\nb"], "line break")):
        with pytest.raises(ValueError, match=message):
            write_directory(tmp_path, model, Pretraining(True), parameters, words, UNCASED)
    assert not list(tmp_path.iterdir())


def test_bare_bert_model_gets_its_prefix_and_keeps_its_pooler(tmp_path):
    original = random_model("BertModel")
    original.save_pretrained(tmp_path)
    pretrained = read_directory(tmp_path)
    assert pretrained.pairs is False
    expected = {f"bert.{name}": values.numpy() for name, values in original.state_dict().items()}
    assert_equal_parameters(pretrained.parameters, expected)


def test_heads_of_other_tasks_are_left_out(tmp_path):
    random_model("BertForQuestionAnswering").save_pretrained(tmp_path)
    assert all(name.startswith("bert.") for name in read_directory(tmp_path).parameters)


def test_gamma_beta_decoder_and_position_ids_of_old_files(pretraining_directory):
    expected = read_directory(pretraining_directory).parameters
    path = pretraining_directory / "model.safetensors"
    tensors, old = load_file(path), {}
    for name, values in tensors.items():
        old[name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")] = values
    old["bert.embeddings.position_ids"] = np.arange(24)[None]
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    save_file(old, path, {"format": "pt"})
    assert_equal_parameters(read_directory(pretraining_directory).parameters, expected)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_float_types_become_float32(tmp_path, dtype, torch):
    original = random_model("BertForPreTraining").to(getattr(torch, dtype))
    original.save_pretrained(tmp_path)
    parameters = read_directory(tmp_path).parameters
    expected = {name: values.float().numpy() for name, values in original.state_dict().items() if name in parameters}
    assert_equal_parameters(parameters, expected)
    assert len(parameters) == len(pretraining_shapes(small_model(), True))


def test_sharded_files_are_put_together(tmp_path):
    original = random_model("BertForPreTraining")
    original.save_pretrained(tmp_path / "whole")
    original.save_pretrained(tmp_path / "sharded", max_shard_size="4KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    whole, sharded = (read_directory(tmp_path / name).parameters for name in ("whole", "sharded"))
    assert_equal_parameters(sharded, whole)


@pytest.mark.full
def test_defaults_of_a_config_are_those_of_transformers(tmp_path, transformers):
    write_small(tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: content[key] for key in (*SIZES, "model_type")}))
    assert read_directory(tmp_path).model == small_model()
    theirs = transformers.BertConfig()
    of_an_albert = {"embedding_size", "shared_layers"}
    for key in vars(Model()).keys() - of_an_albert:
        value = getattr(Model(), key)
        assert getattr(theirs, key) == value


@pytest.mark.parametrize(
    "task",
    [
        Classification(("no", "yes"), ("title", "body")),
        Regression("stars", ("body",)),
        Reranking("label", ("query", "passage")),
        Multilabel(("joy", "fear"), ("body",), ";", 0.3),
        LabelAttention(("joy", "fear"), ("body",), ";", 0.3, windows=2),
        Span(may_abstain=True, stride=64),
        TokenClassification(("O", "B-X")),
    ],
    ids=lambda task: type(task).__name__,
)
def test_what_a_head_answers_by_is_read_back_for_means_imports_and_exports(tmp_path, task):
    (architecture, *_) = HuggingFace(write_checkpoint(tmp_path, task)).contents().architectures
    assert task.configuration(MODEL).items() <= architecture.configuration(MODEL).items()
