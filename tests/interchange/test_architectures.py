"""Which of Hugging Face's classes a checkpoint can be taken for is told by its tensors."""

import pytest

from bert_horovod.interchange.architectures import (
    ANSWERS,
    ARCHITECTURES,
    CLASSIFICATION,
    Architecture,
    part_of_a_head,
    whole_heads,
)
from bert_horovod.model.shapes import classifier_shapes, encoder_shapes, pretraining_shapes, span_head_shapes
from tests.toy_glue import MODEL


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
