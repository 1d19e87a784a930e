"""Each label attends over all tokens of a document's windows; transformers loads the encoder below the head."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import torch
from transformers import AutoModel

from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.kinds import open_predictor
from bert_horovod.finetuning.kinds.texts import Texts
from bert_horovod.finetuning.text_data import OwnOptions, glue_data, own_data
from bert_horovod.inference.options import Options
from bert_horovod.interchange.exported import load_export
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.model.forward import ComputePolicy, Forward
from bert_horovod.model.weights import cast_weights
from bert_horovod.runs.exporting import export
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.tasks.label_attention import LabelAttention
from bert_horovod.training.loop import train
from tests.toy_glue import MODEL, Files, write_checkpoint, write_glue, write_labels
from tests.toy_runs import metrics, newest

LENGTH, WINDOWS = 8, 2
REAL = np.array([[8, 5], [3, 0], [8, 8]])  # positions of each document's windows
LABELS = ("blame", "film", "plot", "praise")
SETTINGS = (
    "finetuning.head=label_attention",
    f"finetuning.windows={WINDOWS}",
    f"phase.0.sequence_length={LENGTH}",
    "phase.0.learning_rate=1e-2",
    "execution.xla='off'",
    "execution.log_steps=1",
    "execution.trackers=[]",
)


def batch() -> dict[str, np.ndarray]:
    present = np.arange(LENGTH) < REAL.reshape(-1, 1)
    ids = np.random.default_rng(0).integers(5, MODEL.vocab_size, present.shape)
    return {
        "input_ids": np.where(present, ids, 0).astype(np.int32),
        "token_type_ids": np.zeros(present.shape, np.int32),
        "position_ids": np.where(present, np.arange(LENGTH), 0).astype(np.int32),
        "sequence_ids": present.astype(np.int32),
        "targets": np.eye(3, 4, dtype=np.float32)[:, None],
        "weights": np.ones((3, 1), np.float32),
    }


def test_logits_are_those_of_numpy_on_the_hidden_states_of_transformers(tmp_path):
    task = LabelAttention(LABELS, windows=WINDOWS)
    directory = write_checkpoint(tmp_path / "model", task)
    rows = batch()
    theirs, loading = AutoModel.from_pretrained(directory, add_pooling_layer=False, output_loading_info=True)
    assert not loading["missing_keys"]
    inputs = {"input_ids": rows["input_ids"], "attention_mask": rows["sequence_ids"]}
    with torch.no_grad():
        hidden = theirs.eval()(**{name: torch.tensor(array, dtype=torch.long) for name, array in inputs.items()})[0]
    hidden = hidden.numpy().astype(np.float64)
    parameters = read_directory(directory, task).parameters
    query, output, bias = (
        parameters[f"label_attention.{name}"].astype(np.float64)
        for name in ("query.weight", "output.weight", "output.bias")
    )
    expected = np.zeros((3, 4))
    for document in range(3):
        tokens = np.concatenate([hidden[2 * document + w, : REAL[document, w]] for w in range(WINDOWS)])
        for label in range(4):
            scores = np.exp(tokens @ query[label])
            expected[document, label] = output[label] @ (scores / scores.sum() @ tokens) + bias[label]
    policy = ComputePolicy()
    tensors = {name: tf.constant(array) for name, array in parameters.items()}
    forward = Forward(MODEL, cast_weights(tensors, policy.dtype), policy)
    logits = task.outputs(forward, {name: tf.constant(array) for name, array in rows.items()})["logits"]
    np.testing.assert_allclose(logits.numpy()[:, 0], expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(expected, axis=0).max() > 0.1


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Finetuning, Path]:
    directory = tmp_path_factory.mktemp("documents")
    data = own_data(
        "multilabel", write_labels(directory / "files", train=96), ("text",), "labels", OwnOptions(threshold=None)
    )
    finetuning = Finetuning(Texts(data), find_checkpoint(write_checkpoint(directory / "checkpoint")))
    job = finetuning.job(directory / "run", 2, SETTINGS)
    job.output_dir.mkdir()
    train(job, World())
    return finetuning, job.output_dir


def held_out(output_dir: Path) -> dict[str, float]:
    lines = map(json.loads, (output_dir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "held_out_micro_f1" in line][-1]


@pytest.mark.full
def test_predict_score_and_export_read_all_of_it(trained, tmp_path):
    _, run = trained
    predictor = open_predictor(find_checkpoint(run), Options())
    assert isinstance(predictor.task, LabelAttention)
    text = "good film the plot is bad and a film is poor"  # more than a window
    line = predictor.predict_line(text)
    assert predictor.predict_line(f"{text} fine good fine good").split("\t")[1:] != line.split("\t")[1:]

    exported = export(find_checkpoint(newest(run)), tmp_path / "made", "savedmodel")
    assert exported.architecture.heads == "label attention of 4 labels"
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert (config["label_attention"], config["label_threshold"]) == (WINDOWS, held_out(run)["held_out_threshold"])
    rows = {name: array.reshape(3, WINDOWS, -1) for name, array in batch().items() if name.endswith("_ids")}
    inputs = {"input_ids": rows["input_ids"], "attention_mask": rows["sequence_ids"]}
    inputs["token_type_ids"] = np.zeros_like(rows["input_ids"])
    assert load_export(tmp_path / "made")("serving_default", inputs)["logits"].shape == (3, 4)
    with pytest.raises(UserError, match="--with_tokenizer: the checkpoint is a BertModel"):
        export(find_checkpoint(newest(run)), tmp_path / "text", "savedmodel", with_tokenizer=True)


@pytest.mark.full
def test_two_thousand_labels_train(tmp_path):
    words = [f"{a}{b}" for a in "abcdefghij" for b in range(200)]
    lines = ["text,labels"] + [f'good film,"{words[i]},{words[(7 * i) % 2000]}"' for i in range(2000)]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "dev.csv").write_text("\n".join(lines[:40]) + "\n")
    data = own_data("multilabel", Files(None, tmp_path / "train.csv", (tmp_path / "dev.csv",)), ("text",), "labels")
    finetuning = Finetuning(Texts(data), find_checkpoint(write_checkpoint(tmp_path / "checkpoint")))
    job = finetuning.job(tmp_path / "run", 1, SETTINGS, max_steps=2)
    job.output_dir.mkdir()
    train(job, World())
    assert len(metrics(job.output_dir)) == 2
    assert "label_attention.query.weight" in read_directory(newest(job.output_dir), job.task).parameters


def test_it_is_refused_where_it_has_no_meaning(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    one = Finetuning(Texts(glue_data("sst2", Files(write_glue(tmp_path / "glue")))), find_checkpoint(checkpoint))
    with pytest.raises(
        UserError, match=r"head = 'label_attention': a classification does not read it; expected 'classifier'"
    ):
        one.job(Path("unused"), overrides=SETTINGS)
    data = own_data("multilabel", write_labels(tmp_path / "files"), ("text",), "labels")
    pair = dataclasses.replace(data, format=dataclasses.replace(data.format, columns=("text", "labels")))
    with pytest.raises(UserError, match="windows are of one text; expected one column of text"):
        Finetuning(Texts(pair), find_checkpoint(checkpoint)).job(Path("unused"), overrides=SETTINGS)
