"""The export command, as it is typed: what it writes is loaded, checked, and only then put into its place."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.commands.export import judge
from bert_horovod.errors import RunError
from bert_horovod.finetuning.kinds.kinds import open_predictor
from bert_horovod.inference.options import Options
from bert_horovod.interchange.architectures import (
    ANSWERS,
    CLASSIFICATION,
    MASKED_TOKENS,
    SEVERAL_LABELS,
    TAGS,
    Architecture,
)
from bert_horovod.interchange.exported import load_export
from bert_horovod.interchange.serving_graph import trained_outputs
from bert_horovod.runs import exporting
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.tasks.text_head import Multilabel, Reranking
from tests.toy_glue import WORDS, write_checkpoint
from tests.toy_vectors import write_vectors

CLASSIFIER = Architecture(CLASSIFICATION, True, ("negative", "positive"))


def command(checkpoint: Path, output: Path, kind: str, *more: str) -> int:
    words = ["--checkpoint", str(checkpoint), "--output", str(output), "--format", kind, *more]
    return dispatch(parse(["bert-horovod", "export", *words]))


def inputs(kind: type) -> dict[str, np.ndarray]:
    ids = np.array([[2, 5, 7, 3], [2, 6, 3, 0]])
    return {
        "input_ids": ids.astype(kind),
        "attention_mask": (ids > 0).astype(kind),
        "token_type_ids": np.zeros_like(ids, kind),
    }


@pytest.mark.slow
def test_a_classifier_with_its_tokenizer(tmp_path, capsys):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", CLASSIFIER)
    export = tmp_path / "made"
    assert command(checkpoint, export, "savedmodel", "--with_tokenizer") == 0
    output = capsys.readouterr().out
    assert "exported    BertForSequenceClassification, pooler, classifier of negative, positive\n" in output
    assert "serving_default(text), pairs(text, text_pair)" in output
    assert "checked     in a fresh process: at most" in output
    assert {"config.json", "saved_model.pb", "variables", "vocab.txt"} <= {path.name for path in export.iterdir()}
    assert json.loads((export / "config.json").read_text())["id2label"] == {"0": "negative", "1": "positive"}
    call = load_export(export)
    outputs = call("serving_default", {"text": np.array(["Good film.", "the plot is bad"])})
    best = outputs["probabilities"].argmax(-1)
    assert outputs["label"].tolist() == [CLASSIFIER.labels[number].encode() for number in best]
    np.testing.assert_allclose(outputs["probabilities"].sum(-1), 1, rtol=1e-6)
    assert call("tokens", inputs(np.int32))["logits"].shape == (2, 2)
    none = np.array([], object)
    for signature, texts in (("serving_default", {"text": none}), ("pairs", {"text": none, "text_pair": none})):
        outputs = call(signature, texts)
        assert (outputs["label"].shape, outputs["probabilities"].shape) == ((0,), (0, 2))


@pytest.mark.slow
def test_an_export_that_computes_other_numbers_leaves_nothing(tmp_path, capsys, monkeypatch):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", Architecture(MASKED_TOKENS, False))

    def other(*arguments: object) -> dict[str, np.ndarray]:
        return {"logits": trained_outputs(*arguments)["logits"] + np.float32(1e-3)}

    monkeypatch.setattr(exporting, "trained_outputs", other)
    assert command(checkpoint, tmp_path / "made", "savedmodel") == 1
    assert "other numbers than the checkpoint: serving_default: logits differs" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_the_checks_texts_are_in_lower_case_where_the_graph_puts_them_so(tmp_path, monkeypatch):
    checkpoint = write_vectors(tmp_path / "model", prompts=("The Film ",), lowercase=True)
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(settings | {"do_lower_case": False}))
    reader, rows = find_checkpoint(checkpoint).reader, []

    def outputs(*arguments: object) -> dict[str, np.ndarray]:
        rows.append(arguments[-1]["input_ids"])
        return {"sentence_embedding": np.zeros((2, 32), np.float32)}

    monkeypatch.setattr(exporting, "trained_outputs", outputs)
    architecture = reader.contents().architectures[0]
    exporting._text_calls(architecture, reader.read(architecture), {})
    assert rows
    assert WORDS.index("[UNK]") not in np.concatenate(rows, None)


@pytest.mark.parametrize(
    ("task", "before", "after", "refused"),
    [("sst2", 0.9, 0.895, False), ("sst2", 0.9, 0.885, True), ("squad", 90, 89.5, False), ("squad", 90, 88.5, True)],
)
def test_8_bits_may_cost_a_hundredth_of_the_best_score_on_the_columns_that_are_named(
    tmp_path, monkeypatch, task, before, after, refused
):
    (tmp_path / "model.onnx").touch()
    scores, opened = iter([before, after]), []
    predictor = SimpleNamespace(task=None, columns=(), model=None, predict_file=lambda *_: None)
    monkeypatch.setattr(
        "bert_horovod.commands.export.open_predictor", lambda *args: opened.append(args[1]) or predictor
    )
    monkeypatch.setattr("bert_horovod.commands.export.score_file", lambda *_: {"exact_match": next(scores)})
    monkeypatch.setattr("bert_horovod.inference.onnx_outputs.OnnxOutputs", lambda *_: None)
    words = "export --checkpoint c --format onnx --int8 --output o --dev_file d --text_columns a,b --task"
    arguments, said = parse(["bert-horovod", *words.split(), task]), []
    with pytest.raises(RunError, match="the limit is") if refused else contextlib.nullcontext():
        judge(arguments, None, said, tmp_path, 4, 0.0, "")
    assert opened[0].text_columns == ("a", "b")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["savedmodel", "onnx"])
@pytest.mark.parametrize(
    ("architecture", "more", "outputs"),
    [
        (None, (), {"prediction_logits", "seq_relationship_logits"}),
        (None, ("--architecture", "BertForMaskedLM"), {"logits"}),
        (None, ("--architecture", "BertModel"), {"last_hidden_state", "pooler_output"}),
        (Architecture(MASKED_TOKENS, False), ("--architecture", "BertModel"), {"last_hidden_state"}),
        (Architecture(ANSWERS, False), (), {"start_logits", "end_logits"}),
        (Architecture(CLASSIFICATION, True, ("score",)), (), {"logits"}),
        (Architecture(CLASSIFICATION, True, ("joy", "love"), SEVERAL_LABELS), (), {"logits"}),
        (Architecture(TAGS, False, ("O", "B-X", "I-X")), (), {"logits"}),
    ],
    ids=["pretraining", "masked tokens", "encoder", "without pooler", "answers", "regression", "multilabel", "tags"],
)
def test_every_head_in_both_formats(tmp_path, capsys, kind, architecture, more, outputs):
    if kind == "onnx":
        pytest.importorskip("tf2onnx")
    checkpoint = write_checkpoint(tmp_path / "checkpoint", *([architecture] if architecture else []))
    assert command(checkpoint, tmp_path / "made", kind, *more) == 0
    told = {"savedmodel": "calls       serving_default(", "onnx": "inputs      input_ids, "}[kind]
    assert told in capsys.readouterr().out
    served = load_export(tmp_path / "made")("serving_default", inputs(np.int64 if kind == "onnx" else np.int32))
    assert served.keys() == outputs


@pytest.mark.slow
def test_any_number_of_labels_with_its_tokenizer_gives_the_probability_of_each(tmp_path):
    labels = ("joy", "love", "fear")
    checkpoint = write_checkpoint(tmp_path / "checkpoint", Multilabel(labels, threshold=0.3))
    assert command(checkpoint, tmp_path / "made", "savedmodel", "--with_tokenizer") == 0
    outputs = load_export(tmp_path / "made")("serving_default", {"text": np.array(["good film"])})
    (expected,) = open_predictor(find_checkpoint(checkpoint), Options()).logits((["good film"],), packing=False)
    np.testing.assert_allclose(outputs["probabilities"][0], 1 / (1 + np.exp(-expected)), rtol=1e-5)
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert (config["problem_type"], config["label_threshold"]) == (SEVERAL_LABELS, 0.3)


@pytest.mark.slow
def test_a_reranker_with_its_tokenizer_gives_the_probabilities_of_predict_of_cut_pairs_too(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", Reranking("label", ("query", "passage")))
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 10}))
    assert command(checkpoint, tmp_path / "made", "savedmodel", "--with_tokenizer") == 0
    queries, passages = ["good fine bad film", "bad film"], ["film bad fine good", "good plot"]
    pairs = {"text": np.array(queries), "text_pair": np.array(passages)}
    scores = load_export(tmp_path / "made")("pairs", pairs)["score"]
    expected = open_predictor(find_checkpoint(checkpoint), Options()).answers((queries, passages), packing=False)
    np.testing.assert_allclose(scores, np.array(expected)[:, 0], atol=2e-6)
    assert json.loads((tmp_path / "made" / "tokenizer_config.json").read_text())["model_max_length"] == 10


@pytest.mark.slow
def test_question_answering_with_its_tokenizer_gives_parts_of_the_context(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", Architecture(ANSWERS, True))
    assert command(checkpoint, tmp_path / "made", "savedmodel", "--with_tokenizer") == 0
    contexts = ["The  Fílm is good\n and the plot was bad.", "", "hero " * 60]
    asked = {"question": np.array(["the film", "a", "hero " * 30]), "context": np.array(contexts)}
    outputs = load_export(tmp_path / "made")("serving_default", asked)
    answers = [answer.decode() for answer in outputs["answer"]]
    assert [bool(answer) for answer in answers] == [True, False, True]
    assert all(answer in context for answer, context in zip(answers, contexts, strict=True))
    assert tf.math.is_finite(outputs["score"]).numpy().all()
    # 32 positions: [CLS], the question cut to 14 tokens, [SEP], 15 of the context, [SEP].
    assert outputs["unread_words"].tolist() == [0, 0, 45]
    none = np.array([], object)
    outputs = load_export(tmp_path / "made")("serving_default", {"question": none, "context": none})
    assert {name: output.shape for name, output in outputs.items()} == dict.fromkeys(outputs, (0,))
