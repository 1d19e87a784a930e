"""The ONNX file gives the outputs of transformers for any batch and length."""

import importlib.metadata

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.errors import UserError
from bert_horovod.interchange.exported import load_export
from bert_horovod.interchange.onnx_file import require_onnx, write_onnx
from bert_horovod.interchange.pretrained import read_pretrained, reader_of
from bert_horovod.interchange.serving_graph import INPUTS, Served
from tests.interchange.conftest import SIZES, random_model


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
    architecture = reader_of(tmp_path).contents().architectures[0]
    pretrained = read_pretrained(tmp_path, architecture)
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
        rows = dict(
            zip(INPUTS, (ids, real.astype(np.int64), (real & (np.arange(length) > 4)).astype(np.int64)), strict=True)
        )
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
    with pytest.raises(
        UserError, match=r"needs tf2onnx, onnx, onnxruntime; install the extra: pip install '\.\[onnx\]'"
    ):
        require_onnx()


def test_what_an_onnx_file_cannot_hold_is_refused(tmp_path, monkeypatch):
    random_model("BertModel").save_pretrained(tmp_path)
    architecture = reader_of(tmp_path).contents().architectures[0]
    pretrained = read_pretrained(tmp_path, architecture)
    served = Served(architecture, pretrained.model, pretrained.parameters, tf.int64)
    monkeypatch.setattr("bert_horovod.interchange.onnx_file._LARGEST_BYTES", 100)
    monkeypatch.setattr("bert_horovod.interchange.onnx_file.require_onnx", lambda: None)
    with pytest.raises(UserError, match="an ONNX file holds 2 GB; export a savedmodel"):
        write_onnx(tmp_path, served)
