"""ALBERT directories: the same weights give the same numbers in transformers and here, whoever wrote them."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.interchange.architectures import ANSWERS, CLASSIFICATION, MASKED_TOKENS, PRETRAINING, Architecture
from bert_horovod.interchange.huggingface import describe_directory, read_directory, write_directory
from bert_horovod.model.parameters import initial_values
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Model
from bert_horovod.tasks.base import Task
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.tasks.span import Span
from bert_horovod.tasks.text_head import Classification
from tests.interchange.comparing import same_outputs
from tests.interchange.conftest import SIZES, VOCABULARY, random_model

MODEL = Model(
    **SIZES | {"num_hidden_layers": 4},
    hidden_act="gelu_new",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    embedding_size=8,
    shared_layers=2,
)
LABELS = ("no", "perhaps", "yes")
HEADS = {
    "AlbertForPreTraining": (Architecture(PRETRAINING, True), Pretraining(True)),
    "AlbertForMaskedLM": (Architecture(MASKED_TOKENS, False), Pretraining(False)),
    "AlbertForSequenceClassification": (Architecture(CLASSIFICATION, True, LABELS), Classification(LABELS)),
    "AlbertForQuestionAnswering": (Architecture(ANSWERS, False), Span()),
}


def write(directory: Path, task: Task, model: Model = MODEL) -> dict[str, np.ndarray]:
    """A directory of ours with random values; returns them."""
    random = np.random.default_rng(1)
    shapes = task.parameters(model)
    values = {name: (0.3 * random.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    write_directory(directory, model, task, values, VOCABULARY, UNCASED)
    return values


@pytest.mark.full
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("model", [MODEL, dataclasses.replace(MODEL, embedding_size=0, shared_layers=1)])
def test_a_directory_of_ours_has_its_logits_in_transformers(kind, model, tmp_path):
    transformers = pytest.importorskip("transformers")
    architecture, task = HEADS[kind]
    parameters = write(tmp_path, task, model)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [kind]
    theirs, loading = getattr(transformers, kind).from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    same_outputs(theirs.eval(), architecture, model, parameters)
    pretrained = read_directory(tmp_path, task)
    assert pretrained.model == dataclasses.replace(model, embedding_size=model.embedding_size or model.hidden_size)
    assert pretrained.parameters.keys() == parameters.keys()
    for name, value in parameters.items():
        np.testing.assert_array_equal(pretrained.parameters[name], value, err_msg=name)


def test_a_bare_albert_model_gets_its_prefix_and_keeps_its_pooler(tmp_path):
    original = random_model("AlbertModel")
    original.save_pretrained(tmp_path)
    pretrained = read_directory(tmp_path)
    assert pretrained.parameters["bert.pooler.dense.bias"] == pytest.approx(original.pooler.bias.detach().numpy())
    assert describe_directory(tmp_path)[2][0].class_name(pretrained.model) == "AlbertModel"
    assert pretrained.model == MODEL


@pytest.mark.full
@pytest.mark.parametrize("vocabulary", [VOCABULARY, VOCABULARY[5:] + VOCABULARY[:5]], ids=["first", "last"])
def test_the_tokenizer_is_that_of_a_wordpiece_vocabulary_and_special_ids_are_its_own(vocabulary, tmp_path):
    transformers = pytest.importorskip("transformers")
    from bert_horovod.corpus.reading.tokenizer import Tokenizer

    parameters = initial_values(pretraining_shapes(MODEL, True), 0.02, 0)
    write_directory(tmp_path, MODEL, Pretraining(True), parameters, vocabulary, UNCASED)
    text = "the cats sat on a Café mat, 北京!"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    cls, sep = vocabulary.index("[CLS]"), vocabulary.index("[SEP]")
    ours = Tokenizer(vocabulary, UNCASED)([text])[0].tolist()
    assert tokenizer(text)["input_ids"] == [cls, *ours, sep]
    assert vocabulary.index("##s") in ours
    assert tokenizer.mask_token_id == vocabulary.index("[MASK]")
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    ids = (config.pad_token_id, config.bos_token_id, config.eos_token_id)
    assert ids == (vocabulary.index("[PAD]"), cls, sep)


@pytest.mark.parametrize(
    ("settings", "error", "expected"),
    [
        ({"inner_group_num": 2}, UserError, "inner_group_num = 2 is not supported: expected 1"),
        ({"num_hidden_groups": 3}, UserError, "shared_layers = 3 does not divide"),
        ({"num_hidden_groups": 1}, UserError, "groups.1.albert_layers.0.attention.query.weight is no part"),
        ({"num_hidden_groups": 4}, DamagedData, "the first is albert.encoder.albert_layer_groups.2.albert_layers.0."),
        ({"embedding_size": 13}, UserError, "embedding_size = 13: expected at most"),
        ({"embedding_size": 12}, DamagedData, "config.json says [21, 12]"),
        ({"model_type": "bert"}, DamagedData, "encoder tensors are missing"),
        ({"model_type": "electra"}, UserError, "model_type = 'electra': expected 'bert' or 'albert'"),
    ],
    ids=str,
)
def test_what_does_not_fit_its_configuration_is_refused(settings, error, expected, tmp_path):
    write(tmp_path, Pretraining(True))
    config = json.loads((tmp_path / "config.json").read_text()) | settings
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(error) as caught:
        read_directory(tmp_path)
    assert expected in str(caught.value)


def test_settings_that_are_left_out_are_those_of_transformers(tmp_path):
    write(tmp_path, Pretraining(True))
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps"):
        del config[name]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert read_directory(tmp_path).model == MODEL
