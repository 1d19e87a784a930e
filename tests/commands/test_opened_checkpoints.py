"""A checkpoint is opened once: its kind is asked once, its configuration and its weights are read once."""

from collections import Counter

import pytest
import tomli_w

from bert_horovod.interchange import google, huggingface
from bert_horovod.runs import opening
from bert_horovod.tasks.text_head import Classification
from tests import google_checkpoints, toy_glue
from tests.commands.conftest import command

ONCE = {"kind": 1, "config": 1, "weights": 1}
QUICK = ("execution.threads=1", "execution.trackers=[]", "execution.xla='off'")


@pytest.fixture
def counts(monkeypatch) -> Counter:
    """How often a path is asked what it is, and how often a configuration and all weights are read."""
    counted: Counter = Counter()

    def count(module, function: str, what: str) -> None:
        original = getattr(module, function)

        def counting(*arguments, **options):
            counted[what] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(module, function, counting)

    count(opening, "find_checkpoint", "kind")
    count(huggingface, "read_config", "config")
    count(huggingface, "map_weights", "weights")
    count(google, "read_model", "config")
    count(google, "read_checkpoint", "weights")
    return counted


def test_evaluate(toys, counts):
    words = ("--data_dir", toys.store, "--sequence_length", 16, "--rows", 4)
    assert command("evaluate", toys.checkpoint, *words) == 0
    assert counts == ONCE


def test_predict(tmp_path, counts):
    checkpoint = toy_glue.write_checkpoint(tmp_path / "model", Classification(("no", "yes"), ("text",)))
    (tmp_path / "in.csv").write_text("text\na good film\n")
    words = ("--input", tmp_path / "in.csv", "--output", tmp_path / "out.tsv")
    assert command("predict", "--checkpoint", checkpoint, *words) == 0
    assert counts == ONCE


@pytest.mark.full
def test_finetune(tmp_path, counts):
    checkpoint = tmp_path / "uncased"
    google_checkpoints.write_checkpoint(checkpoint)
    settings = (word for setting in QUICK for word in ("--set", setting))
    words = ("--data_dir", toy_glue.write_glue(tmp_path / "glue"), "--output_dir", tmp_path / "run", *settings)
    assert command("finetune", "--task", "sst2", "--checkpoint", checkpoint, "--max_steps", 1, *words) == 0
    del counts["weights"], counts["config"]  # the run's own checkpoint is not counted
    assert counts == {"kind": 1}


def test_pretrain(toys, tmp_path, counts):
    recipe = {
        "objective": {"pair": "none"},
        "phase": [{"sequence_length": 16, "global_batch": 4, "steps": 1}],
        "execution": {"micro_batch": 4, "threads": 1, "trackers": [], "xla": "off"},
    }
    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(recipe))
    words = ("--recipe", tmp_path / "recipe.toml", "--data_dir", toys.store, "--output_dir", tmp_path / "run")
    assert command("pretrain", *words, "--init_checkpoint", toys.checkpoint) == 0
    assert counts == ONCE
