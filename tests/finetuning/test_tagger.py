"""Entities are learned by the real loop: layouts and ranks agree, resume is exact, the result loads in transformers."""

import contextlib
import io
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tagged_files import read_tagged
from bert_horovod.errors import UserError
from bert_horovod.finetuning.files import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.base import Request
from bert_horovod.finetuning.kinds.kinds import open_predictor, score
from bert_horovod.finetuning.kinds.tags import Tags
from bert_horovod.finetuning.tag_data import ner_data
from bert_horovod.inference.options import Options
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.runs.checkpoint import path_of, paths, step_of
from bert_horovod.tasks.token_classification import TokenClassification
from bert_horovod.training.job import Job
from bert_horovod.training.loop import train
from tests.horovod_runs import run_ranks
from tests.toy_glue import write_checkpoint
from tests.toy_ner import FAST, write_ner
from tests.toy_runs import logged, metrics, newest

pytestmark = pytest.mark.full

EPOCHS = 5


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("toy")
    return {"data_dir": write_ner(directory / "ner", test=9), "checkpoint": write_checkpoint(directory / "checkpoint")}


def job_of(files: dict[str, Path], output_dir: Path, *overrides: str, **options) -> Job:
    data = ner_data(Files(files["data_dir"]))
    return Finetuning(Tags(data), files["checkpoint"]).job(output_dir, EPOCHS, FAST + overrides, **options)


def train_rank(world: World, data_dir: Path, checkpoint: Path, output_dir: Path, **options) -> None:
    """A job for two_ranks."""
    output_dir.mkdir(parents=True, exist_ok=True)
    files = {"data_dir": data_dir, "checkpoint": checkpoint}
    train(job_of(files, output_dir, world_size=world.size, **options), world)


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory) -> tuple[Path, str]:
    """All epochs; the run's directory, and what it printed."""
    output_dir, printed = tmp_path_factory.mktemp("whole") / "run", io.StringIO()
    with contextlib.redirect_stdout(printed):
        train_rank(World(), *files.values(), output_dir)
    return output_dir, printed.getvalue()


def scores_of(output_dir: Path) -> list[dict[str, float]]:
    return [
        {name: line[f"held_out_{name}"] for name in ("f1", "precision", "recall", "strict_f1")}
        for line in logged(output_dir)
        if "held_out_f1" in line
    ]


def test_it_learns_and_says_what_it_read(whole):
    output_dir, printed = whole
    scores = scores_of(output_dir)
    assert len(scores) == EPOCHS
    assert scores[-1]["f1"] > 0.5 > scores[0]["f1"]
    assert "tags: IOB2, 2 types: BAD, GOOD" in printed
    assert "the head starts afresh: the checkpoint is a BertForPreTraining without one for these tags" in printed
    assert "dev: 31 sentences of" in printed
    assert f"dev.tsv: f1 {scores[-1]['f1']:.4f}" in printed
    assert "GOOD" in printed.rpartition("type")[2]
    assert all(math.isclose(line["loss"], line["tag_loss"]) for line in metrics(output_dir))


def test_the_files_of_predictions_have_the_runs_scores_and_all_words(files, whole):
    output_dir, _ = whole
    scores = score("ner", Request(output_dir / "predictions" / "dev.tsv"))
    last = scores_of(output_dir)[-1]
    assert {name: scores[name] for name in last} == last
    assert score("ner", Request(output_dir / "predictions" / "dev.tsv", files["data_dir"])) == scores
    assert set(scores["by_type"]) == {"BAD", "GOOD"}
    gold, predicted = read_tagged(files["data_dir"] / "test.tsv"), read_tagged(output_dir / "predictions" / "test.tsv")
    assert predicted.words == gold.words
    assert len(predicted.fields[0][0]) == 2


def test_predict_gives_the_tags_that_evaluation_wrote(files, whole, tmp_path):
    output_dir, _ = whole
    open_predictor(output_dir, Options()).predict_file(
        files["data_dir"] / "dev.tsv", tmp_path / "out.conll", lambda *_: None
    )
    assert (tmp_path / "out.conll").read_text() == (output_dir / "predictions" / "dev.tsv").read_text()


def test_a_resumed_run_has_the_losses_of_one_that_was_not_stopped(files, whole, tmp_path):
    output_dir, _ = whole
    train_rank(World(), *files.values(), tmp_path / "resumed", max_steps=3)
    train_rank(World(), *files.values(), tmp_path / "resumed", max_steps=10)
    assert [line["loss"] for line in metrics(tmp_path / "resumed")] == [
        line["loss"] for line in metrics(output_dir)[:10]
    ]


def test_a_finished_run_says_its_scores_again_and_writes_lost_files(files, whole, capsys):
    output_dir, _ = whole
    path = output_dir / "predictions" / "dev.tsv"
    before = path.read_text()
    path.unlink()
    train_rank(World(), *files.values(), output_dir)
    assert path.read_text() == before
    assert f"dev.tsv: f1 {scores_of(output_dir)[-1]['f1']:.4f}" in capsys.readouterr().out


def test_a_run_may_start_from_tags_in_another_order(files, whole, tmp_path):
    output_dir, _ = whole
    names = ("O", "I-GOOD", "B-GOOD", "I-BAD", "B-BAD")
    other = TokenClassification(names)
    parameters = read_directory(newest(output_dir), other).parameters
    own = read_directory(
        newest(output_dir), TokenClassification(("O", "B-BAD", "I-BAD", "B-GOOD", "I-GOOD"))
    ).parameters
    np.testing.assert_array_equal(parameters["classifier.weight"], own["classifier.weight"][[0, 4, 3, 2, 1]])
    assert job_of(files | {"checkpoint": output_dir}, tmp_path).init_checkpoint == newest(output_dir)


def test_a_run_ends_early_and_keeps_its_best_checkpoint(files, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    settings = "phase.0.learning_rate=1e-30", "execution.keep_checkpoints=1"
    ending = job_of(files, tmp_path / "run", *settings, early_stop=2)
    train(ending, World())
    said = capsys.readouterr().out
    best = json.loads((tmp_path / "run" / "best.json").read_text())
    assert (best["metric"], best["evaluations_since"], best["ended"]) == ("f1", 2, True)
    assert [step_of(path.name) for path in paths(tmp_path / "run")] == [best["step"], 3 * best["step"]]
    assert f"best checkpoint: {path_of(tmp_path / 'run', best['step'])}, f1 " in said
    assert "dev.tsv: f1 " in said
    assert (tmp_path / "run" / "predictions" / "dev.tsv").is_file()


def evaluate_rank(world: World, data_dir: Path, checkpoint: Path, scored: Path) -> tuple[dict[str, float], list]:
    """A job for ranks: the dev scores of a checkpoint and the predicted tags, by all ranks together."""
    job = job_of({"data_dir": data_dir, "checkpoint": checkpoint}, Path("unused"))
    run = SimpleNamespace(recipe=job.recipe, task=job.task, job=job, world=world, doing=lambda what: None)
    run.state = SimpleNamespace(progress=SimpleNamespace(step=0))
    run.phase = SimpleNamespace(number=0, held_out=job.dataset.open(0, "held_out"))
    scores = job.evaluator(run).evaluate(read_directory(scored, job.task).parameters)
    return scores, job.evaluator.args[1][""].answers


@pytest.mark.slow
def test_losses_scores_and_predictions_of_1_2_and_3_ranks_are_equal(files, whole, tmp_path):
    output_dir, _ = whole
    lines = [line for line in logged(output_dir) if 0 < line.get("held_out_f1", 0) < 1]
    scored = path_of(output_dir, lines[0]["step"])  # a sentence counted twice would show
    expected = evaluate_rank(World(), *files.values(), scored)
    assert expected[0]["f1"] == lines[0]["held_out_f1"]
    script = f"""
import json
from pathlib import Path
from bert_horovod.collectives.launched import launch
from bert_horovod.collectives.starting import connect
from tests.finetuning.test_tagger import evaluate_rank, train_rank
world = connect(launch())
paths = [Path(path) for path in {[*map(str, files.values())]!r}]
answer = json.dumps(evaluate_rank(world, *paths, Path({str(scored)!r})))
train_rank(world, *paths, Path({str(tmp_path)!r}) / str(world.size), max_steps=6)
print("ANSWER", answer, flush=True)
world.shutdown()
"""
    for ranks in (2, 3):
        done = run_ranks(ranks, script)
        assert done.returncode == 0, done.stdout + done.stderr
        answers = [line.partition("ANSWER ")[2] for line in done.stdout.splitlines() if "ANSWER" in line]
        assert [json.loads(answer) for answer in answers] == [json.loads(json.dumps(expected))] * ranks
        losses = [[line["loss"] for line in metrics(path)] for path in (output_dir, tmp_path / str(ranks))]
        assert len(losses[1]) == 6
        np.testing.assert_allclose(losses[1], losses[0][:6], rtol=1e-5)


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
        Finetuning(Tags(data), files["checkpoint"]).job(tmp_path)


@pytest.mark.parametrize("setting", ["class_weights='balanced'", "label_attention=4", "heads=2"])
def test_settings_of_labels_of_texts_are_refused(files, tmp_path, setting):
    data = ner_data(Files(files["data_dir"]))
    with pytest.raises(UserError, match=rf"objective\.{setting.split('=')[0]} = .*entity recognition"):
        Finetuning(Tags(data), files["checkpoint"]).job(tmp_path, overrides=[f"objective.{setting}"])


@pytest.mark.parametrize(
    "setting",
    [
        "objective.masked_fraction=0.3",
        "objective.priority_words='words.txt'",
        "objective.pair=next_sentence",
        "execution.evaluate_rows=16",
        "execution.probe=sst2",
    ],
)
def test_settings_of_pretraining_are_refused(files, tmp_path, setting):
    data = ner_data(Files(files["data_dir"]))
    with pytest.raises(UserError, match=rf"{setting.split('=')[0]} = .*entity recognition does not read it"):
        Finetuning(Tags(data), files["checkpoint"]).job(tmp_path, overrides=[setting])
