"""What a fine-tuning of tagged words begins with, says at its end, and refuses."""

from pathlib import Path

import numpy as np
import pytest

from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tagged_files import read_tagged
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.tags import Tags
from bert_horovod.finetuning.tag_data import ner_data
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.tasks.token_classification import TokenClassification
from bert_horovod.training.job import Job
from bert_horovod.training.loop import train
from tests.toy_glue import write_checkpoint
from tests.toy_ner import FAST, write_ner

pytestmark = pytest.mark.full

EPOCHS = 5


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("toy")
    return {"data_dir": write_ner(directory / "ner", test=9), "checkpoint": write_checkpoint(directory / "checkpoint")}


def job_of(files: dict[str, Path], output_dir: Path, *overrides: str, **options) -> Job:
    data = ner_data(Files(files["data_dir"]))
    return Finetuning(Tags(data), find_checkpoint(files["checkpoint"])).job(
        output_dir, EPOCHS, FAST + overrides, **options
    )


def test_a_run_may_start_from_tags_in_another_order(files, tmp_path):
    names = ("O", "I-GOOD", "B-GOOD", "I-BAD", "B-BAD")
    tagger = write_checkpoint(tmp_path / "tagger", TokenClassification(names))
    own = read_directory(tagger, TokenClassification(names)).parameters
    other = TokenClassification(("O", "B-BAD", "I-BAD", "B-GOOD", "I-GOOD"))
    parameters = read_directory(tagger, other).parameters
    np.testing.assert_array_equal(own["classifier.weight"], parameters["classifier.weight"][[0, 4, 3, 2, 1]])
    assert job_of(files | {"checkpoint": tagger}, tmp_path).initial.checkpoint.directory == tagger


def test_a_run_that_finds_no_entity_says_so(files, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    train(job_of(files, tmp_path / "run", "phase.0.learning_rate=1e-9", "phase.0.steps=1"), World())
    output = capsys.readouterr().out
    predicted = read_tagged(tmp_path / "run" / "predictions" / "dev.tsv").tags
    assert ("collapsed: no entity is predicted" in output) == all(tag == "O" for tags in predicted for tag in tags)


def test_words_without_a_token_are_refused(files, tmp_path):
    (tmp_path / "train.tsv").write_text("\u200b\tB-X\n")
    data = ner_data(Files(None, tmp_path / "train.tsv", (files["data_dir"] / "dev.tsv",)))
    with pytest.raises(UserError, match=r"train\.tsv: the tokenizer makes no token of its words"):
        Finetuning(Tags(data), find_checkpoint(files["checkpoint"])).job(tmp_path)


@pytest.mark.parametrize(
    "setting",
    [
        *("finetuning.class_weights='balanced'", "finetuning.head=label_attention"),
        *("objective.masked_fraction=0.3", "objective.priority_words='words.txt'", "objective.pair=next_sentence"),
        *("execution.evaluate_rows=16", "execution.probe=sst2"),
    ],
)
def test_settings_of_texts_and_of_pretraining_are_refused(files, tmp_path, setting):
    data = ner_data(Files(files["data_dir"]))
    with pytest.raises(UserError, match=rf"{setting.split('=')[0]} = .*entity recognition does not read it"):
        Finetuning(Tags(data), find_checkpoint(files["checkpoint"])).job(tmp_path, overrides=[setting])
