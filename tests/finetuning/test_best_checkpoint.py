"""The checkpoint with the best dev score is kept and named, and a run ends whose score no longer gets better."""

import json
import shutil
from pathlib import Path

import pytest

from bert_horovod.collectives.world import World
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.texts import Texts
from bert_horovod.finetuning.sweep import Variant, train_all
from bert_horovod.finetuning.text_data import OwnOptions, glue_data, own_data
from bert_horovod.runs.checkpoint import paths
from bert_horovod.training.job import Job
from bert_horovod.training.loop import train

FAST = (
    "phase.0.learning_rate=1e-30",  # nothing is learned: no evaluation is better than the first
    "phase.0.global_batch=50",
    "execution.xla='off'",
    "execution.tensorboard=false",
    "execution.keep_checkpoints=1",
)


def job(files: dict[str, Path], output_dir: Path, early_stop: int | None, *overrides: str, **options) -> Job:
    finetuning = Finetuning(Texts(glue_data("sst2", Files(files["data_dir"]))), files["checkpoint"])
    output_dir.mkdir(exist_ok=True)
    return finetuning.job(output_dir, 6, FAST + overrides, early_stop=early_stop, **options)


@pytest.mark.full
def test_a_run_ends_early_keeps_its_best_checkpoint_and_is_then_finished(files, tmp_path, capsys):
    ending = job(files, tmp_path / "run", early_stop=2)
    train(ending, World())
    said = capsys.readouterr().out
    assert "ended at step 6, because accuracy did not get better in 2 evaluations (--early_stop)" in said
    assert [path.name for path in paths(ending.output_dir)] == ["step-00000002", "step-00000006"]
    assert f"best checkpoint: {paths(ending.output_dir)[0]}, accuracy 0." in said
    assert (ending.output_dir / "predictions" / "dev.tsv").is_file()
    best = json.loads((ending.output_dir / "best.json").read_text())
    assert (best["metric"], best["step"], best["last_step"], best["ended"]) == ("accuracy", 2, 6, True)

    train(ending, World())  # the same command again trains no further
    assert paths(ending.output_dir)[-1].name == "step-00000006"
    (finished,) = train_all([ending], [Variant(None, None)], World(), lambda text: None)
    assert finished.scores["accuracy"] == best["score"]
    train(job(files, ending.output_dir, early_stop=3), World())  # more patience goes on
    assert paths(ending.output_dir)[-1].name == "step-00000008"
    assert json.loads((ending.output_dir / "best.json").read_text())["step"] == 2


@pytest.mark.full
def test_a_better_score_is_saved_and_counts_where_no_checkpoint_is_due(files, tmp_path):
    """Of the evaluations after steps 1, 2 and 3 the first is the best; checkpoints are due after step 4."""
    settings = "execution.evaluate_steps=1", "execution.checkpoint_steps=4"
    ending = job(files, tmp_path / "run", 2, *settings)
    train(ending, World())
    assert [path.name for path in paths(ending.output_dir)] == ["step-00000001", "step-00000003"]
    assert json.loads((ending.output_dir / "best.json").read_text())["step"] == 1
    shutil.rmtree(paths(ending.output_dir)[-1])  # as if the run was killed: it begins again after step 1
    train(ending, World())
    assert paths(ending.output_dir)[-1].name == "step-00000003", "evaluations after the checkpoint count once"


def train_rank(world: World, data_dir: Path, checkpoint: Path, output_dir: Path) -> None:
    """A job for two_ranks."""
    train(job({"data_dir": data_dir, "checkpoint": checkpoint}, output_dir, early_stop=1), world)


@pytest.mark.slow
def test_two_ranks_end_after_the_same_step(files, two_ranks, tmp_path):
    two_ranks.run(train_rank, *files.values(), tmp_path / "run")
    assert [path.name for path in paths(tmp_path / "run")] == ["step-00000002", "step-00000004"]
    assert json.loads((tmp_path / "run" / "best.json").read_text())["ended"]


def test_the_low_rate_of_a_small_model_is_told_at_the_start(files, tmp_path, capsys):
    train(job(files, tmp_path / "run", None, max_steps=1), World())
    said = capsys.readouterr().out
    assert "learning_rate = 1e-30 is low for a model of width 16; models smaller than bert-base need 1e-4 to" in said


@pytest.mark.full
def test_a_dev_part_of_the_train_file_is_scored(files, tmp_path, capsys):
    lines = (files["data_dir"] / "train.tsv").read_text().splitlines()
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    data = own_data(
        "classification", Files(None, tmp_path / "train.tsv"), ("sentence",), "label", OwnOptions(dev_fraction=0.1)
    )
    (tmp_path / "run").mkdir()
    train(Finetuning(Texts(data), files["checkpoint"]).job(tmp_path / "run", 1, FAST, max_steps=1), World())
    assert "train.tsv (dev part): accuracy" in (said := capsys.readouterr().out)
    assert "of 32 examples" in said
    matrix = (tmp_path / "run" / "predictions" / "confusion.tsv").read_text().splitlines()
    assert matrix[0] == "label\tpredicted_0\tpredicted_1"
    assert [sum(map(int, line.split("\t")[1:])) for line in matrix[1:]] == [16, 16]
