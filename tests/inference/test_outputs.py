"""An exported file computes a predictor's packed rows as the model does; with weights of 8 bits it nearly does."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.batches.examples.labelled import DocumentRows, LabelledTexts, tokenised
from bert_horovod.batches.layout import special_ids
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.inference.onnx_outputs import OnnxOutputs
from bert_horovod.inference.outputs import RowOutputs, block_rows
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.model.forward import ComputePolicy
from bert_horovod.runs.exporting import export
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.tasks.text_head import Reranking
from tests.finetuning.kinds.cases import CASES
from tests.finetuning.kinds.test_kinds import dataset_of
from tests.toy_glue import MODEL, WORDS, write_checkpoint
from tests.toy_vectors import write_vectors


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnli", "tags", "squad1"])
def test_packed_rows_are_computed_sequence_by_sequence(tmp_path, name):
    pytest.importorskip("tf2onnx")
    kind = CASES[name].read(tmp_path / "data")
    dataset = dataset_of(name, kind)
    task, rows = kind.task(dataset.recipe), dataset.open(0, "held_out")
    checkpoint = write_checkpoint(tmp_path / "checkpoint", task)
    export(find_checkpoint(checkpoint), tmp_path / "export", "onnx")
    parameters = {key: tf.constant(each) for key, each in read_directory(checkpoint, task).parameters.items()}
    expected = RowOutputs(task, MODEL, ComputePolicy(), block_rows(rows.length), World())(parameters, rows)
    outputs = OnnxOutputs(tmp_path / "export", MODEL)(parameters, rows)
    batch = rows.assemble(np.arange(rows.count))
    assert (batch["sequence_ids"].max(-1) > 1).any()
    real = batch["sequence_ids"] > 0 if name != "mnli" else batch["weights"] > 0
    assert outputs.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_allclose(outputs[key][real], array[real], rtol=1e-4, atol=1e-5)


def test_all_windows_of_a_document_are_one_input_of_its_label_attention(monkeypatch):
    asked = []

    def call(_: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        asked.append({name: array.shape for name, array in inputs.items()})
        return {"logits": np.float32([[inputs["input_ids"].sum(), inputs["attention_mask"].sum()]])}

    monkeypatch.setattr("bert_horovod.inference.onnx_outputs.load_export", lambda _: call)
    examples = tokenised(LabelledTexts((["good film", "bad " * 9],), [0, 0]), Tokenizer(WORDS, UNCASED))
    rows = DocumentRows(examples, special_ids(WORDS), 8, 0, windows=2)
    outputs = OnnxOutputs(Path(), MODEL)(None, rows)
    assert asked == [dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (1, 2, 8))] * 2
    assert rows.by_item(outputs["logits"]).tolist() == [[2 + 5 + 11 + 3, 4], [9 * 7 + 2 * (2 + 3), 9 + 2 * 2]]


@pytest.mark.full
def test_8_bits_are_a_third_of_the_size_with_the_score_before_and_after_or_refused(tmp_path, capsys):
    pytest.importorskip("tf2onnx")
    kind = CASES["sst2"].read(tmp_path / "data")
    checkpoint = write_checkpoint(tmp_path / "checkpoint", kind.task(dataset_of("sst2", kind).recipe))
    words = ["export", "--checkpoint", str(checkpoint), "--format", "onnx", "--int8", "--output"]
    scored = ["--task", "sst2", "--dev_file", str(kind.data.dev[""].path)]
    assert dispatch(parse(["bert-horovod", *words, str(tmp_path / "int8"), *scored])) == 0
    said = capsys.readouterr().out
    assert "score       accuracy 0." in said
    assert "outputs differ by at most" in said
    assert dispatch(parse(["bert-horovod", *words, str(tmp_path / "none"), "--limit", "1e-9"])) == 1
    assert "raise --limit" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.full
def test_8_bits_of_vectors_are_judged_by_cosines_and_by_the_order_of_pairs(tmp_path, capsys):
    pytest.importorskip("tf2onnx")
    checkpoint = write_vectors(tmp_path / "checkpoint")
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("query,passage,score\ngood film,good hero,0.9\nbad film,the plot,0.1\ngood hero,bad plot,0.4\n")
    words = ["export", "--checkpoint", str(checkpoint), "--format", "onnx", "--int8", "--output"]
    scored = ["--task", "embedding", "--dev_file", str(pairs), "--label_column", "score", "--limit", "3"]
    assert dispatch(parse(["bert-horovod", *words, str(tmp_path / "int8"), *scored])) == 0
    said = capsys.readouterr().out
    assert re.search(r"vectors have a cosine of at least 0\.9\d+ with those before", said), said
    assert re.search(r"score +spearman -?[01]\.\d+ before, ", said), said
    assert dispatch(parse(["bert-horovod", *words, str(tmp_path / "none"), "--limit", "1e-9"])) == 1
    assert "those before, the limit is a difference of 1e-09: look at" in capsys.readouterr().err


@pytest.mark.full
def test_8_bits_of_a_reranker_are_judged_on_its_own_columns(tmp_path, capsys):
    pytest.importorskip("tf2onnx")
    checkpoint = write_checkpoint(tmp_path / "checkpoint", Reranking("label", ("asked", "found")))
    (tmp_path / "dev.csv").write_text("asked,found,label\ngood,film,1\ngood,bad plot,0\n")
    words = ["export", "--checkpoint", checkpoint, "--format", "onnx", "--int8", "--output", tmp_path / "int8"]
    scored = ["--task", "reranking", "--dev_file", tmp_path / "dev.csv", "--limit", "3"]
    assert dispatch(parse(["bert-horovod", *map(str, words + scored)])) == 0
    assert "score       mrr 10 " in capsys.readouterr().out
