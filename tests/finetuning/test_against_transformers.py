"""A fine-tuning without dropout has the losses of transformers', step by step, on the same examples."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.tags import Tags
from bert_horovod.finetuning.kinds.texts import Texts
from bert_horovod.finetuning.tag_data import ner_data
from bert_horovod.finetuning.text_data import glue_data, own_data
from tests.toy_glue import MODEL, write_checkpoint, write_glue, write_labels
from tests.toy_ner import write_ner

pytestmark = pytest.mark.full

SETTINGS = ("phase.0.learning_rate=1e-2", "execution.xla='off'", "execution.tensorboard=false")


@pytest.fixture(scope="module")
def finetuning(tmp_path_factory) -> Finetuning:
    directory = tmp_path_factory.mktemp("toy")
    data = glue_data("sst2", Files(write_glue(directory / "glue")))
    return Finetuning(Texts(data), write_checkpoint(directory / "checkpoint"))


def losses(finetuning: Finetuning, work: Path, *more: str) -> np.ndarray:
    """Ours and theirs: [2, steps]."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from lab.finetuning_peer import first_losses

    return np.array(first_losses(finetuning, work, overrides=(*SETTINGS, *more))).T


def test_the_losses_of_the_first_20_steps_are_those_of_transformers(finetuning, tmp_path):
    ours, theirs = losses(finetuning, tmp_path)
    assert len(ours) == 20
    assert np.ptp(ours) > 0.03  # the steps do change what is learned
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


def test_so_are_those_of_any_number_of_labels(tmp_path):
    data = own_data("multilabel", write_labels(tmp_path / "files"), ("text",), "labels")
    (tmp_path / "runs").mkdir()
    finetuning = Finetuning(Texts(data), write_checkpoint(tmp_path / "checkpoint"))
    ours, theirs = losses(finetuning, tmp_path / "runs")
    assert len(ours) == 20
    assert np.ptp(ours) > 0.03
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


def test_so_are_those_of_tagged_words(tmp_path):
    (tmp_path / "runs").mkdir()
    data = ner_data(Files(write_ner(tmp_path / "ner")))
    ours, theirs = losses(Finetuning(Tags(data), write_checkpoint(tmp_path / "checkpoint")), tmp_path / "runs")
    assert np.ptp(ours) > 0.3
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_so_has_an_alberts(tmp_path):
    model = dataclasses.replace(MODEL, num_hidden_layers=4, embedding_size=8, shared_layers=2, hidden_act="gelu_new")
    data = glue_data("sst2", Files(write_glue(tmp_path / "glue")))
    checkpoint = write_checkpoint(tmp_path / "checkpoint", model=model)
    (tmp_path / "runs").mkdir()
    ours, theirs = losses(Finetuning(Texts(data), checkpoint), tmp_path / "runs", "phase.0.learning_rate=2e-2")
    assert np.ptp(ours) > 0.03
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_without_bias_correction_they_are_not(finetuning, tmp_path):
    ours, theirs = losses(finetuning, tmp_path, "optimizer.bias_correction=false")
    np.testing.assert_allclose(ours[0], theirs[0], rtol=0, atol=1e-4)
    assert np.abs(ours - theirs).max() > 1e-2
