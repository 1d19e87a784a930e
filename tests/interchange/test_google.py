"""Google's TF1 checkpoints: every variable in its place, and each that cannot be read with a message of its own."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.interchange.google import Tf1, find_prefix
from bert_horovod.model import plain
from bert_horovod.recipe.sections import Model
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.tasks.text_head import Classification, Regression
from tests.google_checkpoints import (
    ALBERT_CONFIG,
    ALBERT_PRETRAINING,
    CLASSIFIER,
    CONFIG,
    ENCODER,
    MASKED,
    PAIRS,
    POOLER,
    PRETRAINING,
    SQUAD,
    write_checkpoint,
)
from tests.interchange.conftest import VOCABULARY

DATA, INDEX = "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """A pre-training checkpoint."""
    path = tmp_path_factory.mktemp("original") / "uncased_tiny"
    write_checkpoint(path)
    return path


@pytest.fixture
def directory(original, tmp_path) -> Path:
    """A copy of it, to change."""
    return shutil.copytree(original, tmp_path / "uncased_tiny")


def expected(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters of transformers, from rules on names that are written apart from the program's."""
    parameters = {}
    for variable, value in values.items():
        name = variable.replace("layer_", "layer.").replace("/", ".").replace("cls.squad.output_", "qa_outputs.")
        if name.startswith("output_"):
            name = name.replace("output_", "classifier.", 1)
        name = name.replace("seq_relationship.output_", "seq_relationship.").replace(
            "predictions.output_", "predictions."
        )
        name = name.replace("gamma", "weight").replace("LayerNorm.beta", "LayerNorm.bias")
        name = name.removesuffix(".kernel") + ".weight" if name.endswith(".kernel") else name
        name = name.removesuffix("weights") + "weight" if name.endswith(".weights") else name
        name = f"{name}.weight" if name.endswith("_embeddings") else name
        parameters[name] = value.T if variable.endswith("kernel") else value
    return parameters


def assert_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("heads", "architecture", "pooler"),
    [
        (POOLER | MASKED | PAIRS, "BertForPreTraining", True),
        (MASKED, "BertForMaskedLM", False),
        (POOLER | SQUAD, "BertForQuestionAnswering", True),
        (POOLER | CLASSIFIER, "BertForSequenceClassification", True),
        (POOLER, "BertModel", True),
        ({}, "BertModel", False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_variable_of_every_head_has_its_place(tmp_path, heads, architecture, pooler):
    values = write_checkpoint(tmp_path / "tiny", ENCODER | heads, adam=True)
    contents = find_checkpoint(tmp_path / "tiny").reader.contents()
    assert (contents.architectures[0].name, contents.architectures[0].pooler) == (architecture, pooler)
    assert len(contents.optimizer) == 2 * len(values) + 1
    parameters = find_checkpoint(tmp_path / "tiny").reader.read(contents.architectures[0]).parameters
    assert_equal(parameters, expected(values))


def test_every_variable_of_an_albert_has_its_place(tmp_path):
    values = write_checkpoint(tmp_path / "tiny", ALBERT_PRETRAINING, True, "model.ckpt-best", ALBERT_CONFIG)
    contents = find_checkpoint(tmp_path / "tiny").reader.contents()
    assert contents.architectures[0].class_name(contents.model) == "AlbertForPreTraining"
    sizes = (contents.model.embedding_size, contents.model.shared_layers, contents.model.num_hidden_layers)
    assert sizes == (8, 2, 4)
    assert contents.model.hidden_act == "gelu_new"  # which Google's code computes by either name
    assert len(contents.optimizer) == 2 * len(values) + 1
    parameters = find_checkpoint(tmp_path / "tiny").reader.read().parameters
    renamed = {}
    for variable, value in values.items():
        for theirs, ours in (
            ("transformer/group_", "layer_"),
            ("inner_group_0/LayerNorm_1", "output/LayerNorm"),
            ("inner_group_0/LayerNorm", "attention/output/LayerNorm"),
            ("inner_group_0/attention_1", "attention"),
            ("inner_group_0/ffn_1/intermediate/output", "output"),
            ("inner_group_0/ffn_1/intermediate", "intermediate"),
        ):
            variable = variable.replace(theirs, ours)
        renamed[variable] = value
    assert_equal(parameters, expected(renamed))


@pytest.mark.parametrize(
    ("task", "kept"),
    [
        (Classification(("LABEL_0", "LABEL_1", "LABEL_2")), True),
        (Classification(("no", "perhaps", "yes")), False),
        (Classification(("no", "yes")), False),
        (Regression(), False),
    ],
)
def test_a_classifier_has_labels_without_names_and_serves_no_others(tmp_path, task, kept):
    write_checkpoint(tmp_path / "uncased", ENCODER | POOLER | CLASSIFIER)
    assert ("classifier.weight" in find_checkpoint(tmp_path / "uncased").reader.read(task).parameters) == kept


def test_the_expected_outputs_of_googles_own_tiny_checkpoint(shared_data):
    directory = shared_data / "finetune" / "tf1" / "keras-bert-tiny"
    if not directory.is_dir():
        pytest.skip("needs ../shared/data/finetune/tf1, which is not here")
    pretrained = find_checkpoint(directory).reader.read()
    outputs = json.loads((directory / "expected-outputs.json").read_text(encoding="utf-8"))
    names = ("input_ids", "token_type_ids", "attention_mask")
    batch = plain.single_sequences(*(tf.constant(outputs[name], tf.int32) for name in names))
    parameters = {name: tf.constant(value) for name, value in pretrained.parameters.items()}
    hidden = plain.encode(pretrained.model, parameters, batch)[-1]
    real = np.array(outputs["attention_mask"]) > 0
    for name, value, places in (
        ("last_hidden_state", hidden, real),
        ("prediction_logits", plain.masked_token_logits(pretrained.model, parameters, hidden), real),
        ("pooler_output", plain.pooled(parameters, hidden[:, 0]), slice(None)),
        ("seq_relationship_logits", plain.pair_logits(parameters, hidden[:, 0]), slice(None)),
    ):
        np.testing.assert_allclose(value.numpy()[places], np.array(outputs[name])[places], atol=2e-6, err_msg=name)
    assert pretrained.tokenizer_settings.lowercase is True


@pytest.mark.parametrize("name", ["", "bert_model.ckpt", INDEX, DATA])
def test_a_prefix_its_files_and_its_directory_mean_the_same(directory, name):
    assert find_prefix(directory / name) == directory / "bert_model.ckpt"
    assert find_prefix(directory / "bert") is None
    assert find_prefix(directory.parent) is None


def test_of_several_checkpoints_the_one_that_tensorflow_names_is_taken_else_none(tmp_path):
    for step in (5, 12):
        write_checkpoint(tmp_path, ENCODER, name=f"model.ckpt-{step}")
    assert find_prefix(tmp_path / "model.ckpt-5") == tmp_path / "model.ckpt-5"
    with pytest.raises(UserError, match=r"holds several checkpoints \(model.ckpt-12, model.ckpt-5\); name one of them"):
        find_prefix(tmp_path)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/model.ckpt-12"\n', encoding="utf-8")
    assert find_prefix(tmp_path) == tmp_path / "model.ckpt-12"
    assert Tf1(tmp_path / "model.ckpt-12").read().model == Model(
        **{name: value for name, value in CONFIG.items() if name not in ("directionality", "pooler_type")}
    )


def refuse(path: Path, match: str, error: type[Exception] = UserError) -> None:
    with pytest.raises(error, match=match) as caught:
        find_checkpoint(path).reader.read()
    assert "\n" not in str(caught.value)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def cut(name: str, kept: int):
    return lambda directory: (directory / name).write_bytes((directory / name).read_bytes()[:kept])


def configured(**settings):
    return lambda directory: (directory / "bert_config.json").write_text(json.dumps(CONFIG | settings))


def flip(directory: Path) -> None:
    content = bytearray((directory / DATA).read_bytes())
    content[len(content) // 2] ^= 1
    (directory / DATA).write_bytes(content)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda directory: (directory / DATA).unlink(), f"is an index alone: {DATA}, .* is missing; copy it"),
        (
            lambda directory: (directory / DATA).rename(directory / f"{DATA[:-1]}2"),
            "bert_model.ckpt.data-00001-of-00002, .* is missing",
        ),
        *(
            (
                lambda directory, name=name: (directory / name).write_bytes(POINTER),
                f"{name} is a pointer of Git LFS, a text of {len(POINTER)} bytes.*git lfs pull",
            )
            for name in (INDEX, DATA)
        ),
        (cut(INDEX, 100), "is damaged.*copy it again"),
        (cut(INDEX, 0), "is damaged.*copy it again"),
        (cut(DATA, 1000), "is damaged.*copy it again"),
        (flip, "is damaged at (bert|cls)/.*copy it again"),
        (
            lambda directory: (directory / "vocab.txt").write_text("\n".join([*VOCABULARY, "more"])),
            rf"vocab.txt has {len(VOCABULARY) + 1} tokens, but bert_config.json has vocab_size = {len(VOCABULARY)}",
        ),
        (configured(hidden_size=24), r"makes .* \[21, 12\], expected \[21, 24\] as bert_config.json says"),
        (configured(num_hidden_layers=1), "layer_1/.* is no part of the encoder that bert_config.json describes"),
        (configured(num_hidden_layers=3), "part of a checkpoint: bert/encoder/layer_2/.* is missing, and 15 more"),
        (configured(hidden_act="relu"), "hidden_act"),
        (configured(model_type="electra"), "model_type = 'electra': expected a BERT's or an ALBERT's"),
        (lambda directory: (directory / "bert_config.json").unlink(), r"has no bert_config.json, which gives the"),
    ],
)
def test_files_that_lack_are_damaged_or_do_not_fit_are_refused(directory, change, match):
    change(directory)
    refuse(directory, match, DamagedData if "is damaged" in match else UserError)


def test_the_index_files_of_real_checkpoints(shared_data, tmp_path):
    real = shared_data / "finetune" / "tf1" / "index-only"
    if not real.is_dir():
        pytest.skip("needs ../shared/data/finetune/tf1, which is not here")
    refuse(real / "uncased_L-8_H-512_A-8", r"is an index alone: .* \(about 167 MB\), is missing")
    shutil.copytree(real / "uncased_L-8_H-512_A-8", tmp_path / "medium")
    (tmp_path / "medium" / "bert_model.ckpt.data-00000-of-00001").touch()
    contents = find_checkpoint(tmp_path / "medium").reader.contents()
    assert contents.architectures[0].name == "BertForPreTraining"
    assert (contents.optimizer, len(contents.shapes)) == ([], 142)


def test_values_that_are_not_finite(tmp_path):
    with np.errstate(invalid="ignore"):
        write_checkpoint(tmp_path / "one", ENCODER)
    reader = tf.train.load_checkpoint(str(tmp_path / "one" / "bert_model.ckpt"))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name in ENCODER:
            tf.compat.v1.get_variable(name, initializer=tf.constant(reader.get_tensor(name) * np.inf))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(tmp_path / "one" / "bert_model.ckpt"), write_meta_graph=False)
    refuse(tmp_path / "one", "has values that are not finite", DamagedData)


@pytest.mark.parametrize("slot", ["Adam", "Adam_1", "AdamWeightDecayOptimizer", "LAMBOptimizer_1", "Momentum", "m"])
def test_slots_of_any_optimizer_are_left_out(tmp_path, slot):
    slots = {f"{name}/{slot}": shape for name, shape in PRETRAINING.items()}
    write_checkpoint(tmp_path / "tiny", PRETRAINING | slots | {"beta1_power": [], "global_step": []})
    contents = find_checkpoint(tmp_path / "tiny").reader.contents()
    assert len(contents.optimizer) == len(PRETRAINING) + 2
    assert len(contents.shapes) == len(PRETRAINING)


@pytest.mark.parametrize("scope", ["layer_normalization", "layer_norm", "LayerNorm_7"])
def test_names_of_another_program_are_not_blamed_on_the_configuration(tmp_path, scope):
    renamed = {name.replace("LayerNorm", scope): shape for name, shape in PRETRAINING.items()}
    write_checkpoint(tmp_path / "tiny", renamed)
    message = (
        f"bert_model.ckpt has bert/embeddings/{scope}/beta and 9 more, and has no bert/embeddings/LayerNorm/gamma; "
        r"expected the names of google-research/bert .*another program wrote .*bert_config.json is not the cause"
    )
    refuse(tmp_path / "tiny", message)


def test_an_alberts_names_with_a_berts_configuration_are_the_configurations_fault(tmp_path):
    write_checkpoint(tmp_path / "tiny", ALBERT_PRETRAINING, config=CONFIG)
    refuse(tmp_path / "tiny", "mapping_in/bias is no part of the encoder that bert_config.json describes")


@pytest.mark.parametrize(
    "missing",
    ["bert/encoder/layer_1/output/dense/bias", "bert/pooler/dense/bias", "cls/predictions/output_bias", *PAIRS],
)
def test_a_part_of_a_checkpoint(tmp_path, missing):
    write_checkpoint(tmp_path / "part", {name: shape for name, shape in PRETRAINING.items() if name != missing})
    refuse(tmp_path / "part", f"is part of a checkpoint: {missing} is missing; expected all")


def test_a_checkpoint_of_something_else(tmp_path):
    write_checkpoint(tmp_path / "other", {"conv/kernel": [3, 3]})
    refuse(tmp_path / "other", r"has no bert/embeddings/word_embeddings \(it has conv/kernel, ...\); expected")


def test_an_object_checkpoint_of_tf2(tmp_path):
    module = tf.Module()
    module.embeddings = tf.Variable(np.zeros((2, 3), np.float32))
    tf.train.Checkpoint(model=module).write(str(tmp_path / "bert_model.ckpt"))
    refuse(tmp_path, "is an object checkpoint of TF2, as TensorFlow's Model Garden and NVIDIA's .*; convert it first")


@pytest.mark.parametrize(
    ("name", "settings", "words", "lowercase", "reason"),
    [
        ("uncased_L-2", None, None, False, "1 tokens of its vocabulary have capitals"),
        ("cased_L-2", None, list("abcdefghijklm"), True, "has no capitals"),
        ("uncased_L-2", {"do_lower_case": False}, None, False, "its tokenizer says"),
        ("tiny", None, None, False, "1 tokens of its vocabulary have capitals"),
        ("tiny", None, [token.lower() for token in VOCABULARY[5:]], True, "has no capitals"),
        ("tiny", None, list("北京上海的人大小中一二三四五六"), None, None),
    ],
)
def test_settings_then_the_vocabulary_tell_of_lower_casing(
    tmp_path, original, name, settings, words, lowercase, reason
):
    directory = shutil.copytree(original, tmp_path / name)
    words = VOCABULARY[5:] if words in (None, VOCABULARY) else words
    words = [*VOCABULARY[:5], *words, *(str(number) for number in range(len(VOCABULARY) - 5 - len(words)))]
    (directory / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    if settings:
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = find_checkpoint(directory).reader.tokenizer
    if lowercase is None:
        assert tokenizer.reason is None
        refuse(directory, "nothing tells whether text is to be lower-cased for it; .* --cased")
        assert find_checkpoint(directory).reader.read(lowercase=True).tokenizer_settings.lowercase is True
    else:
        assert reason in tokenizer.reason
        assert tokenizer.settings == TokenizerSettings(lowercase)
        assert find_checkpoint(directory).reader.read().tokenizer_settings.lowercase is lowercase
