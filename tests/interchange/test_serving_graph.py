"""The graph of an export gives the outputs of transformers, by their names, and those of the path that trains."""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.interchange.pretrained import read_pretrained, reader_of
from bert_horovod.interchange.serving_graph import INPUTS, Served, trained_outputs
from tests.interchange.conftest import SIZES, random_model

REAL = np.arange(16) < np.array([[16], [9], [1]])


def padded_rows() -> dict[str, np.ndarray]:
    """Three rows of 16, 9 and 1 tokens, int32."""
    ids = np.where(REAL, np.random.default_rng(0).integers(1, SIZES["vocab_size"], REAL.shape), 0)
    types = REAL & (np.arange(16) >= 5)
    return {name: value.astype(np.int32) for name, value in zip(INPUTS, (ids, REAL, types), strict=True)}


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "settings", "outputs"),
    [
        ("BertForPreTraining", {}, ["prediction_logits", "seq_relationship_logits"]),
        ("BertForMaskedLM", {"hidden_act": "gelu_new"}, ["logits"]),
        ("BertForQuestionAnswering", {}, ["end_logits", "start_logits"]),
        ("BertForSequenceClassification", {"num_labels": 3, "id2label": {0: "x", 1: "y", 2: "z"}}, ["logits"]),
        ("BertForSequenceClassification", {"num_labels": 1}, ["logits"]),
        ("BertForTokenClassification", {"num_labels": 3, "id2label": {0: "x", 1: "y", 2: "z"}}, ["logits"]),
        ("BertModel", {}, ["last_hidden_state", "pooler_output"]),
    ],
)
def test_outputs_are_those_of_transformers(tmp_path, torch, kind, settings, outputs):
    original = random_model(kind, **settings)
    original.save_pretrained(tmp_path)
    architecture = reader_of(tmp_path).contents().architectures[0]
    assert architecture.name == kind
    assert architecture.labels == {3: ("x", "y", "z"), 1: ("LABEL_0",)}.get(settings.get("num_labels"), ())
    pretrained = read_pretrained(tmp_path, architecture)
    parameters = {name: pretrained.parameters[name] for name in architecture.parameters(pretrained.model)}
    rows = padded_rows()
    with torch.no_grad():
        theirs = original(**{name: torch.tensor(value.astype(np.int64)) for name, value in rows.items()})
    served = Served(architecture, pretrained.model, parameters, tf.int32).serve(**rows)
    trained = trained_outputs(architecture, pretrained.model, parameters, rows)
    assert sorted(served) == sorted(trained) == outputs
    for name in outputs:
        expected = theirs[name].numpy()
        places = REAL if expected.shape[:2] == REAL.shape else ...
        for ours in (served[name].numpy(), trained[name]):
            np.testing.assert_allclose(ours[places], expected[places], rtol=1e-4, atol=1e-4)


def test_a_class_is_offered_only_where_all_its_parameters_are(tmp_path):
    random_model("BertForPreTraining").save_pretrained(tmp_path)
    names = [architecture.name for architecture in reader_of(tmp_path).contents().architectures]
    assert names == ["BertForPreTraining", "BertForMaskedLM", "BertModel"]
