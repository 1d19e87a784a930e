"""What a path is, is told by the files there; which of Hugging Face's classes it can be taken for, by its tensors."""

import pytest

from bert_horovod.errors import ReportedError
from bert_horovod.interchange.architectures import (
    ANSWERS,
    ARCHITECTURES,
    CLASSIFICATION,
    Architecture,
    part_of_a_head,
    whole_heads,
)
from bert_horovod.interchange.pretrained import kind_of, require_checkpoint
from bert_horovod.model.shapes import classifier_shapes, encoder_shapes, pretraining_shapes, span_head_shapes
from tests.toy_glue import MODEL

HUGGING_FACE = ("config.json", "model.safetensors")
GOOGLES = ("bert_model.ckpt.index", "bert_config.json")


@pytest.mark.parametrize(
    ("files", "path", "kind", "place"),
    [
        (HUGGING_FACE, "", "a Hugging Face directory", ""),
        (("config.json", "pytorch_model.bin"), "", "a Hugging Face directory", ""),
        ((*HUGGING_FACE, "training/hashes.json"), "", "a checkpoint of a run", ""),
        (GOOGLES, "", "a TF1 checkpoint", "bert_model.ckpt"),
        (GOOGLES, "bert_model.ckpt", "a TF1 checkpoint", "bert_model.ckpt"),
        (GOOGLES, "bert_model.ckpt.index", "a TF1 checkpoint", "bert_model.ckpt"),
        ((*GOOGLES, "config.json"), "", "a TF1 checkpoint", "bert_model.ckpt"),
        ((*GOOGLES, *HUGGING_FACE), "", "a Hugging Face directory", ""),
        (("checkpoints/step-00000010/config.json",), "", "a run's output_dir", "checkpoints/step-00000010"),
        (("checkpoints/step-00000010/x", "checkpoints/step-9/x"), "", "a run's", "checkpoints/step-00000010"),
    ],
)
def test_the_kind_of_a_path_and_what_is_read_there(tmp_path, files, path, kind, place):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found, reader = kind_of(tmp_path / path)
    assert found.name.startswith(kind)
    assert reader.place == tmp_path / place


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "--flag: there is none at "),
        (("vocab.txt",), "--flag: there is none at "),
        (("run.json",), "is a run without a checkpoint yet; expected a Hugging Face directory of BERT, ALBERT"),
        (("config.json.index", "model.ckpt-5.index"), "holds several checkpoints"),
        (("config.json",), "config.json is damaged: expected JSON"),
    ],
)
def test_a_path_that_is_no_checkpoint_is_told_early(tmp_path, files, message):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(ReportedError, match=message):
        require_checkpoint(tmp_path, "--flag")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_class_is_found_again_in_its_own_parameters(name):
    labels = ("LABEL_0", "LABEL_1") if name == CLASSIFICATION else ()
    architecture = Architecture(name, True, labels)
    assert whole_heads(MODEL, architecture.parameters(MODEL))[0] == architecture


def test_the_richest_comes_first_and_heads_on_a_pooler_need_one():
    shapes = pretraining_shapes(MODEL, False) | span_head_shapes(MODEL) | classifier_shapes(MODEL, 3)
    assert [head.name for head in whole_heads(MODEL, shapes)] == [ANSWERS, "BertForMaskedLM", "BertModel"]
    shapes |= encoder_shapes(MODEL, pooler=True)
    names = [head.name for head in whole_heads(MODEL, shapes)]
    assert names == [ANSWERS, CLASSIFICATION, "BertForMaskedLM", "BertModel"]


@pytest.mark.parametrize("shape", [(), (3,), (3, 99), (0, 16), (1 << 60, 0)])
def test_a_classifier_of_another_shape_is_none(shape):
    shapes = encoder_shapes(MODEL, True) | classifier_shapes(MODEL, 3) | {"classifier.weight": shape}
    assert [head.name for head in whole_heads(MODEL, shapes)] == ["BertModel"]


def test_one_label_is_a_regression():
    assert Architecture(CLASSIFICATION, True, ("score",)).configuration(MODEL)["problem_type"] == "regression"
    two = Architecture(CLASSIFICATION, True, ("no", "yes")).configuration(MODEL)
    assert (two["problem_type"], two["id2label"]) == ("single_label_classification", {"0": "no", "1": "yes"})


def test_a_head_that_is_there_in_part_is_told():
    shapes = pretraining_shapes(MODEL, True)
    assert part_of_a_head(MODEL, shapes) is None
    assert part_of_a_head(MODEL, shapes.keys() - {"cls.predictions.bias"}) == "cls.predictions.bias"
    assert part_of_a_head(MODEL, shapes.keys() | {"classifier.bias"}) == "classifier.weight"
