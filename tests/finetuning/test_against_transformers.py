"""A fine-tuning without dropout has the losses of transformers', step by step, on the same examples."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.tags import Tags
from bert_horovod.finetuning.kinds.texts import Texts
from bert_horovod.finetuning.tag_data import ner_data
from bert_horovod.finetuning.text_data import glue_data, own_data
from bert_horovod.recipe.sections import Model
from bert_horovod.runs.opening import find_checkpoint
from tests.toy_glue import MODEL, write_checkpoint, write_glue, write_labels
from tests.toy_ner import write_ner

pytestmark = pytest.mark.full

SETTINGS = ("execution.xla='off'", "execution.trackers=[]")


ALBERT = dataclasses.replace(MODEL, num_hidden_layers=4, embedding_size=8, shared_layers=2, hidden_act="gelu_new")


def texts(directory: Path) -> Texts:
    return Texts(glue_data("sst2", Files(write_glue(directory))))


def labels(directory: Path) -> Texts:
    return Texts(own_data("multilabel", write_labels(directory), ("text",), "labels"))


def tags(directory: Path) -> Tags:
    return Tags(ner_data(Files(write_ner(directory))))


def losses(read: Callable, tmp_path: Path, *more: str, model: Model = MODEL) -> np.ndarray:
    """Ours and theirs: [2, steps]."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from lab.finetuning_peer import first_losses

    finetuning = Finetuning(
        read(tmp_path / "data"), find_checkpoint(write_checkpoint(tmp_path / "checkpoint", model=model))
    )
    (tmp_path / "runs").mkdir()
    return np.array(first_losses(finetuning, tmp_path / "runs", overrides=(*SETTINGS, *more))).T


@pytest.mark.parametrize(
    ("read", "model", "rate", "moved"),
    [
        (texts, MODEL, 1e-2, 0.03),
        (labels, MODEL, 1e-2, 0.03),
        (tags, MODEL, 1e-2, 0.3),
        pytest.param(texts, ALBERT, 2e-2, 0.03, marks=pytest.mark.slow),
    ],
    ids=["texts", "labels", "tags", "albert"],
)
def test_the_losses_of_the_first_20_steps_are_those_of_transformers(tmp_path, read, model, rate, moved):
    ours, theirs = losses(read, tmp_path, f"phase.0.learning_rate={rate}", model=model)
    assert len(ours) == 20
    assert np.ptp(ours) > moved  # the steps do change what is learned
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_without_bias_correction_they_are_not(tmp_path):
    ours, theirs = losses(texts, tmp_path, "phase.0.learning_rate=1e-2", "optimizer.bias_correction=false")
    np.testing.assert_allclose(ours[0], theirs[0], rtol=0, atol=1e-4)
    assert np.abs(ours - theirs).max() > 1e-2
