"""Exports give the outputs of transformers, by their names, as SavedModel and ONNX; what their check compares."""

import importlib.metadata

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.errors import RunError, UserError
from bert_horovod.interchange.exported import Call, check_export, difference, load_export
from bert_horovod.interchange.onnx_file import require_onnx, write_onnx
from bert_horovod.interchange.serving_graph import INPUTS, Served
from bert_horovod.runs.opening import find_checkpoint
from tests.interchange.comparing import same_outputs
from tests.interchange.conftest import SIZES, random_model


@pytest.fixture(scope="module")
def doubling(tmp_path_factory):
    """A SavedModel that doubles; its second row is padding but for the first place."""
    module = tf.Module()
    specs = [tf.TensorSpec([None, None], tf.float32, "x")]
    module.double = tf.function(lambda x: {"y": 2 * x}, input_signature=specs, autograph=False)
    path = tmp_path_factory.mktemp("export") / "model"
    tf.saved_model.save(module, str(path), {"serving_default": module.double})
    return path


X = np.array([[1.0, -100.0], [3.0, 4.0]], np.float32)
REAL = np.array([[True, True], [True, False]])


def call(outputs: np.ndarray, **inputs: np.ndarray) -> list[Call]:
    return [Call("serving_default", inputs or {"x": X}, {"y": outputs.astype(np.float32)}, REAL)]


def test_an_export_is_loaded_and_called_by_its_signature(doubling):
    outputs = load_export(doubling)("serving_default", {"x": X})
    np.testing.assert_array_equal(outputs["y"], 2 * X)


def test_differences_count_beside_the_largest_value_and_not_at_padding():
    changed = 2 * X
    changed[0, 0] += 1e-3
    changed[1, 1] += 9
    (asked,) = call(2 * X)
    assert difference(asked, "y", 2 * X) == 0
    assert difference(asked, "y", changed) == pytest.approx(1e-3 / 200, rel=0.1)


def test_another_number_and_another_shape_are_refused():
    changed = 2 * X
    changed[0, 0] += 1e-2
    for expected, message in (
        (changed, r"other numbers than the checkpoint: serving_default: y differs by 5\.0e-05 of its largest value"),
        (changed * np.nan, "other numbers than the checkpoint"),
        (changed[:, :1], r"y has shape \[2, 2\], expected \[2, 1\]"),
    ):
        with pytest.raises(RunError, match=message):
            difference(*call(expected), "y", 2 * X)


@pytest.mark.slow
def test_in_a_fresh_process_it_is_loaded_and_called_or_refused(doubling, tmp_path):
    assert check_export(doubling, call(2 * X)) == 0
    with pytest.raises(RunError, match=r"cannot be loaded and called in a fresh process: .*SavedModel file"):
        check_export(tmp_path, call(2 * X))
    with pytest.raises(RunError, match="cannot be loaded and called in a fresh process"):
        check_export(doubling, call(2 * X, z=X))


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "pair_output"),
    [("BertForPreTraining", "seq_relationship_logits"), ("AlbertForPreTraining", "sop_logits")],
)
def test_names_dimensions_and_outputs(tmp_path, torch, kind, pair_output):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    original = random_model(kind)
    original.save_pretrained(tmp_path)
    architecture = find_checkpoint(tmp_path).reader.contents().architectures[0]
    pretrained = find_checkpoint(tmp_path).reader.read(architecture)
    write_onnx(tmp_path, Served(architecture, pretrained.model, pretrained.parameters, tf.int64))

    graph = onnx.load(tmp_path / "model.onnx").graph
    shapes = {
        value.name: [part.dim_param or part.dim_value for part in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert shapes == {
        **{name: ["batch", "length"] for name in INPUTS},
        "prediction_logits": ["batch", "length", SIZES["vocab_size"]],
        "seq_relationship_logits": ["batch", 2],
    }
    call = load_export(tmp_path)
    for counts, length in (((16, 9, 1), 16), ((7,), 7)):
        real = np.arange(length) < np.array(counts)[:, None]
        ids = np.where(real, np.random.default_rng(0).integers(1, SIZES["vocab_size"], real.shape), 0)
        arrays = (ids, real, real & (np.arange(length) > 4))
        rows = {name: array.astype(np.int64) for name, array in zip(INPUTS, arrays, strict=True)}
        with torch.no_grad():
            theirs = original(**{name: torch.tensor(value) for name, value in rows.items()})
        ours = call("serving_default", rows)
        for name, theirs_name, places in (
            ("prediction_logits", "prediction_logits", real),
            ("seq_relationship_logits", pair_output, ...),
        ):
            np.testing.assert_allclose(ours[name][places], theirs[theirs_name].numpy()[places], rtol=1e-4, atol=1e-4)


def test_without_the_extra_it_is_refused(monkeypatch):
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(UserError, match=r"needs tf2onnx, onnx, onnxruntime; .*pip install '\.\[onnx\]'"):
        require_onnx()


def test_what_an_onnx_file_cannot_hold_is_refused(tmp_path, monkeypatch):
    random_model("BertModel").save_pretrained(tmp_path)
    architecture = find_checkpoint(tmp_path).reader.contents().architectures[0]
    pretrained = find_checkpoint(tmp_path).reader.read(architecture)
    served = Served(architecture, pretrained.model, pretrained.parameters, tf.int64)
    monkeypatch.setattr("bert_horovod.interchange.onnx_file._LARGEST_BYTES", 100)
    monkeypatch.setattr("bert_horovod.interchange.onnx_file.require_onnx", lambda: None)
    with pytest.raises(UserError, match="an ONNX file holds 2 GB; export a savedmodel"):
        write_onnx(tmp_path, served)


THREE = {"num_labels": 3, "id2label": {0: "x", 1: "y", 2: "z"}}


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "settings", "outputs"),
    [
        ("BertForPreTraining", {}, ["prediction_logits", "seq_relationship_logits"]),
        ("BertForPreTraining", {"hidden_act": "gelu_new"}, ["prediction_logits", "seq_relationship_logits"]),
        ("BertForMaskedLM", {"hidden_act": "gelu_new"}, ["logits"]),
        ("BertForQuestionAnswering", {}, ["end_logits", "start_logits"]),
        ("BertForSequenceClassification", THREE, ["logits"]),
        ("BertForSequenceClassification", {"num_labels": 1}, ["logits"]),
        ("BertForTokenClassification", THREE, ["logits"]),
        ("BertModel", {}, ["last_hidden_state", "pooler_output"]),
        ("AlbertForPreTraining", {}, ["prediction_logits", "seq_relationship_logits"]),
        ("AlbertForMaskedLM", {}, ["logits"]),
        ("AlbertForQuestionAnswering", {}, ["end_logits", "start_logits"]),
        ("AlbertForSequenceClassification", THREE, ["logits"]),
    ],
)
def test_outputs_are_those_of_transformers(tmp_path, kind, settings, outputs):
    original = random_model(kind, **settings)
    original.save_pretrained(tmp_path)
    architecture = find_checkpoint(tmp_path).reader.contents().architectures[0]
    pretrained = find_checkpoint(tmp_path).reader.read(architecture)
    assert architecture.class_name(pretrained.model) == kind
    assert architecture.labels == {3: ("x", "y", "z"), 1: ("LABEL_0",)}.get(settings.get("num_labels"), ())
    assert same_outputs(original, architecture, pretrained.model, pretrained.parameters) == outputs


def test_a_class_is_offered_only_where_all_its_parameters_are(tmp_path):
    random_model("BertForPreTraining").save_pretrained(tmp_path)
    names = [architecture.name for architecture in find_checkpoint(tmp_path).reader.contents().architectures]
    assert names == ["BertForPreTraining", "BertForMaskedLM", "BertModel"]
