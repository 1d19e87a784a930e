"""What a fine-tuning says at its end: the dev scores, and whether the model does no better than one answer for all.

Ranks whose files differ are told so before the first step, by the name of the file: two real processes.

The checkpoint with the best dev score is kept and named, and a run ends whose score no longer gets better.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.examples.labelled import LabelledTexts
from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files, LabelFormat, Split
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.texts import Texts, write_predictions
from bert_horovod.finetuning.scores import score
from bert_horovod.finetuning.sweep import Variant, train_all
from bert_horovod.finetuning.text_data import OwnOptions, TextData, glue_data, own_data
from bert_horovod.runs.checkpoint import paths
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.training.job import Job
from bert_horovod.training.loop import train
from tests import toy_squad
from tests.toy_glue import write_glue

LABELS = [1] * 444 + [0] * 428  # SST-2's dev set


def verdict(scores: dict[str, float], labels: list, metrics: tuple[str, ...], names: tuple[str, ...]) -> list[str]:
    """What is said at the end of a run with these last dev scores."""
    split = Split(Path("dev.tsv"), LabelledTexts(([""] * len(labels),), labels), 0)
    form = LabelFormat(("text",), "label", {name: name for name in names})
    return Texts(TextData("sst2", form, metrics, split, {"": split}, {})).verdict(None, split, np.zeros(0), scores)


def of_labels(correct: int) -> list[str]:
    return verdict({"accuracy": correct / 872}, LABELS, ("accuracy",), ("negative", "positive"))


def test_the_dev_score_is_said_and_a_collapse():
    assert of_labels(765) == ["dev.tsv: accuracy 0.8773, of 872 examples"]
    for correct, label in ((444, "positive"), (428, "negative")):
        first, second = of_labels(correct)
        assert first == f"dev.tsv: accuracy {correct / 872:.4f}, of 872 examples"
        assert second.startswith(f"collapsed: these are exactly the scores of predicting {label!r} for every example;")
    assert len(of_labels(445)) == 1


def test_all_scores_must_be_a_constant_predictions():
    names, labels = ("f1", "accuracy"), np.array([1] * 279 + [0] * 129)
    always = score(np.ones(408), labels, names)
    assert "'yes'" in verdict(always, labels.tolist(), names, ("no", "yes"))[1]
    assert len(verdict(always | {"f1": 0.8}, labels.tolist(), names, ("no", "yes"))) == 1


def test_an_undefined_correlation_is_said_to_be_given_as_0():
    _, messages = verdict({"pearson": 0.0, "spearman": 0.0}, [0.5, 1, 2], ("pearson", "spearman"), ())
    assert "predicting one number for every example; a correlation that is undefined is given as 0" in messages
    _, messages = verdict({"matthews_correlation": 0.0}, [0, 1, 1], ("matthews_correlation",), ("no", "yes"))
    assert "a correlation that is undefined is given as 0" in messages
    _, messages = verdict({"accuracy": 0.0, "macro_f1": 0.0}, [2, 2], ("accuracy", "macro_f1"), ("a", "b", "c"))
    assert "correlation" not in messages


def test_predictions_are_written_as_glue_takes_them(tmp_path):
    path = tmp_path / "predictions" / "RTE.tsv"
    write_predictions(path, np.array([1, 0]), ["entailment", "not_entailment"])
    assert path.read_bytes() == b"index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    write_predictions(path, np.array([4.25, 0.1]), [])
    assert path.read_bytes() == b"index\tprediction\n0\t4.25\n1\t0.1\n"


AT_ONCE = ("execution.xla='off'", "execution.trackers=[]")


def refusal(world: World, task: str, checkpoint: Path, data_dirs: list[Path], output_dir: Path) -> str:
    """A job for two_ranks: how a run is refused where each rank has a directory of its own."""
    output_dir.mkdir(parents=True, exist_ok=True)
    directory = data_dirs[world.rank]
    if task == "squad":
        job = toy_squad.job_of(directory, checkpoint, output_dir, world_size=world.size)
    else:
        finetuning = Finetuning(Texts(glue_data(task, Files(directory))), find_checkpoint(checkpoint))
        job = finetuning.job(output_dir, 1, AT_ONCE, world.size)
    with pytest.raises(UserError) as caught:
        train(job, world)
    return str(caught.value)


def both(two_ranks, *arguments) -> str:
    """What both ranks are told; it is the same."""
    first, second = (answer.value for answer in two_ranks.run(refusal, *arguments))
    assert first == second
    return first


@pytest.mark.full
@pytest.mark.parametrize(
    ("split", "said"), [("train", "the train file"), ("dev", "the dev file"), ("test", r"the test (SST-2) file")]
)
def test_a_file_that_differs_between_ranks_is_named_at_the_start(two_ranks, checkpoint, tmp_path, split, said):
    mine = write_glue(tmp_path / "mine")
    (mine / "test.tsv").write_text("index\tsentence\n0\tgood film\n1\tbad\n")
    theirs = Path(shutil.copytree(mine, tmp_path / "theirs"))
    changed = theirs / f"{split}.tsv"
    changed.write_text("".join(changed.read_text().splitlines(keepends=True)[:-1]))  # other steps and rows, too
    message = both(two_ranks, "sst2", checkpoint, [mine, theirs], tmp_path / "out")
    assert message == (
        f"{said} of rank 1 ({changed}) is not that of rank 0 ({mine / changed.name}): every host needs the same copy "
        "of it"
    )
    assert not (tmp_path / "out" / "checkpoints").exists()


@pytest.mark.full
def test_a_test_file_that_one_rank_lacks_is_named(two_ranks, checkpoint, tmp_path):
    mine = write_glue(tmp_path / "mine")
    theirs = Path(shutil.copytree(mine, tmp_path / "theirs"))
    (theirs / "test.tsv").write_text("index\tsentence\n0\tgood film\n")
    message = both(two_ranks, "sst2", checkpoint, [mine, theirs], tmp_path / "out")
    assert f"the test (SST-2) file of rank 1 ({theirs / 'test.tsv'}) is not that of rank 0 (no such file)" in message


@pytest.mark.full
@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_file_of_squad_that_differs_in_its_right_answers_alone_is_named(two_ranks, checkpoint, tmp_path, split):
    mine = toy_squad.write_squad(tmp_path / "mine", train=8, dev=4)
    theirs = Path(shutil.copytree(mine, tmp_path / "theirs"))
    path = theirs / f"{split}-v1.1.json"
    path.write_text(path.read_text().replace(f'"id": "{split}3"', '"id": "other"'))
    message = both(two_ranks, "squad", checkpoint, [mine, theirs], tmp_path / "out")
    assert message.startswith(f"the {split} file of rank 1 ({path}) is not that of rank 0")


FAST = (
    "phase.0.learning_rate=1e-30",  # nothing is learned: no evaluation is better than the first
    "phase.0.global_batch=50",
    "execution.xla='off'",
    "execution.trackers=[]",
    "execution.keep_checkpoints=1",
)


def job(files: dict[str, Path], output_dir: Path, early_stop: int | None, *overrides: str, **options) -> Job:
    finetuning = Finetuning(Texts(glue_data("sst2", Files(files["data_dir"]))), find_checkpoint(files["checkpoint"]))
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


@pytest.mark.full
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
    train(
        Finetuning(Texts(data), find_checkpoint(files["checkpoint"])).job(tmp_path / "run", 1, FAST, max_steps=1),
        World(),
    )
    assert "train.tsv (dev part): accuracy" in (said := capsys.readouterr().out)
    assert "of 32 examples" in said
    matrix = (tmp_path / "run" / "predictions" / "confusion.tsv").read_text().splitlines()
    assert matrix[0] == "label\tpredicted_0\tpredicted_1"
    assert [sum(map(int, line.split("\t")[1:])) for line in matrix[1:]] == [16, 16]
