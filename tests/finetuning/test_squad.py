"""SQuAD is fine-tuned by the real loop: it learns, ranks agree to the last digit, resume is exact, files are left."""

import copy
import json
import math
import shutil
from pathlib import Path

import pytest

from bert_horovod.batches.examples.span_rows import STRIDE as USUAL_STRIDE
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.squad_files import read_squad
from bert_horovod.errors import UserError
from bert_horovod.finetuning.kinds.spans import Spans
from bert_horovod.finetuning.squad_scores import squad_scores
from bert_horovod.runs.checkpoint import path_of
from bert_horovod.runs.status_files import Command
from bert_horovod.tasks.span import Span
from bert_horovod.tasks.text_head import Classification
from bert_horovod.training.loop import train
from tests.toy_glue import write_checkpoint
from tests.toy_runs import logged, metrics, newest
from tests.toy_squad import DEV, STRIDE, job_of, paragraph, squad, train_rank, write_json, write_squad

pytestmark = pytest.mark.full

FILES = ("predictions.json", "nbest_predictions.json", "null_odds.json")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("squad")
    return {version: write_squad(directory / version, version) for version in ("1.1", "2.0")}


@pytest.fixture(scope="module")
def second(data, checkpoint, tmp_path_factory) -> Path:
    """A whole run on version 2.0."""
    output_dir = tmp_path_factory.mktemp("second") / "out"
    train_rank(World(), data["2.0"], checkpoint, output_dir)
    return output_dir


def evaluations(output_dir: Path) -> list[dict]:
    return [line for line in logged(output_dir) if "held_out_f1" in line]


def answers(output_dir: Path, name: str = "predictions.json") -> dict:
    return json.loads((output_dir / name).read_text(encoding="utf-8"))


def test_version_2_is_noticed_and_learns_to_abstain(data, second):
    evaluation = evaluations(second)[-1]
    questions = read_squad(data["2.0"] / "dev-v2.0.json")
    scores = squad_scores(questions, answers(second))
    assert (scores["HasAns_total"], scores["NoAns_total"]) == (13, 8)
    for name in ("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"):
        assert evaluation[f"held_out_{name}"] == scores[name]
    assert evaluation["held_out_best_exact"] > 80
    odds = answers(second, "null_odds.json")
    assert {number: odds[number] > 0 for number in odds} == {
        number: not text for number, text in answers(second).items()
    }
    config = json.loads((newest(second) / "config.json").read_text())
    assert (config["architectures"], config["version_2_with_negative"]) == (["BertForQuestionAnswering"], True)


def test_the_best_threshold_gives_the_best_score(data, second, checkpoint, tmp_path):
    best = evaluations(second)[-1]
    shutil.copytree(second, tmp_path / "out")
    job = job_of(data["2.0"], checkpoint, tmp_path / "out", threshold=best["held_out_best_f1_thresh"])
    train(job, World())
    scores = squad_scores(read_squad(data["2.0"] / "dev-v2.0.json"), answers(tmp_path / "out"))
    assert scores["f1"] == pytest.approx(best["held_out_best_f1"], abs=1e-9)


def test_the_best_thresholds_are_of_the_real_null_odds(data, second):
    odds, n_best = answers(second, "null_odds.json"), answers(second, "nbest_predictions.json")
    never = {
        number: next((candidate["text"] for candidate in candidates if candidate["text"]), "")
        for number, candidates in n_best.items()
    }
    best = squad_scores(read_squad(data["2.0"] / "dev-v2.0.json"), never, odds)
    last = evaluations(second)[-1]
    for name in ("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"):
        assert last[f"held_out_{name}"] == best[name]
    assert last["held_out_best_f1_thresh"] in set(odds.values()) - {0.0}


def test_packing_puts_each_window_into_an_epoch_once_and_steps_follow(data, checkpoint, tmp_path):
    packed = job_of(data["1.1"], checkpoint, tmp_path / "a", "data.packing=true")
    plain = job_of(data["1.1"], checkpoint, tmp_path / "b", "data.packing=false")
    rows = [job.dataset.open(0, "train") for job in (packed, plain)]
    windows = len(rows[0].windows.question)
    assert windows == rows[1].count > rows[0].count
    assert plain.recipe.phase[0].global_batch == 32
    assert packed.recipe.phase[0].global_batch == round(32 * rows[0].count / windows)
    assert packed.recipe.total_steps == math.ceil(3 * rows[0].count / packed.recipe.phase[0].global_batch)
    assert (packed.task.packed, plain.task.packed) == (True, False)
    assert packed.dataset.open(0, "held_out").count == packed.recipe.execution.evaluate_rows


def test_rows_are_packed_where_it_pays_and_settings_decide(checkpoint, tmp_path):
    (tmp_path / "data").mkdir()
    for split, count in (("train", 30), ("dev", 2)):
        short = [paragraph("the good film", (f"{split}{i}", "plot", "good")) for i in range(count)]
        write_json(tmp_path / "data" / f"{split}-v1.1.json", short)
    job = job_of(tmp_path / "data", checkpoint, tmp_path / "a")
    assert job.recipe.data.packing
    assert job.task.packed
    assert job.dataset.open(0, "train").slots == {"windows": 4}
    long = squad(checkpoint, tmp_path / "data").job(tmp_path / "b", overrides=["phase.0.sequence_length=8"])
    assert not long.recipe.data.packing


def without_answers(run: Path, copy: Path) -> Path:
    """A finished run whose answers are lost: who starts it again answers the dev set, and trains nothing."""
    shutil.copytree(run, copy)
    for name in FILES:
        (copy / name).unlink(missing_ok=True)
    return copy


def answer_on_two_hosts(world: World, data_dir: Path, checkpoint: Path, output_dirs: list[Path]) -> None:
    """A job for two_ranks, each as the only rank of its host and with a disk of its own."""
    alone = copy.copy(world)
    alone.local_rank, alone.local_size = 0, 1
    train_rank(alone, data_dir, checkpoint, output_dirs[world.rank])


def test_work_goes_by_rank_and_rank_0_alone_writes_where_each_host_has_a_local_rank_0(
    two_ranks, data, second, checkpoint, tmp_path
):
    again = without_answers(second, tmp_path / "out")
    two_ranks.run(answer_on_two_hosts, data["2.0"], checkpoint, [again, tmp_path / "elsewhere"])
    for name in FILES:
        assert (again / name).read_bytes() == (second / name).read_bytes()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_run_says_what_it_is_about_what_it_skips_and_that_it_collapsed(tmp_path, capfd):
    classifier = write_checkpoint(tmp_path / "classifier", Classification(("good", "bad")))
    paragraphs = [paragraph("the film", (f"q{number}", "plot", None), marked=True) for number in range(8)]
    lost = [paragraph("the film", (f"lost{number}", "plot", "good"), marked=True) for number in range(3)]
    (tmp_path / "data").mkdir()
    write_json(tmp_path / "data" / "train-v2.0.json", paragraphs + lost, "2.0")
    empty = paragraph("", ("empty", "plot", None), marked=True)
    write_json(tmp_path / "data" / "dev-v2.0.json", [*paragraphs, empty], "2.0")
    train_rank(World(), tmp_path / "data", classifier, tmp_path / "out", "phase.0.steps=10")
    output = capfd.readouterr().out
    assert "SQuAD 2.0: train-v2.0.json and dev-v2.0.json" in output
    assert "3 train questions are skipped: their answer is not in their context" in output
    assert "the checkpoint is a BertForSequenceClassification without one for answers" in output
    assert "train: 11 questions in 8 windows in 2 rows" in output
    assert "a step of 2 rows has about 8 windows" in output
    assert "dev set: exact match 100.00, F1 100.00, of 9 questions" in output
    assert "collapsed: nothing is answered to every question" in output


@pytest.mark.slow
def test_a_checkpoint_with_answers_is_gone_on_from(data, second, tmp_path, capfd):
    train_rank(World(), data["2.0"], newest(second), tmp_path / "out", max_steps=1)
    assert metrics(tmp_path / "out")[0]["loss"] < 0.5 * metrics(second)[0]["loss"]
    assert "starts afresh" not in capfd.readouterr().out


def test_defaults_are_googles(checkpoint, data, tmp_path):
    job = squad(checkpoint, data["1.1"]).job(tmp_path / "out")
    phase, optimizer = job.recipe.phase[0], job.recipe.optimizer
    assert Spans.phase["sequence_length"] == 384
    assert phase.sequence_length == 32  # the toy model has 32 positions
    assert (phase.learning_rate, phase.warmup, optimizer.name, optimizer.bias_correction) == (3e-5, 0.1, "adamw", True)
    assert job.recipe.total_steps == math.ceil(2 * job.dataset.open(0, "train").count / phase.global_batch)
    assert (job.dataset.options["stride"], job.task) == (128, Span(job.recipe.data.packing))


def test_another_stride_is_another_run(data, checkpoint, tmp_path):
    job = job_of(data["1.1"], checkpoint, tmp_path / "out")
    other = squad(checkpoint, data["1.1"], doc_stride=STRIDE + 1).job(tmp_path / "out")
    assert job.dataset.hash != other.dataset.hash


@pytest.mark.parametrize(
    ("words", "before"),
    [(["--task", "squad"], USUAL_STRIDE), (["--doc_stride=9"], 9), (["--doc_stride", "9", "--x"], 9)],
)
def test_another_stride_is_refused_by_its_name(data, checkpoint, tmp_path, words, before):
    (tmp_path / "out").mkdir()
    Command(["finetune", *words], "/", str(tmp_path / "out"), None, 1).write(tmp_path / "out")
    squad(checkpoint, data["1.1"], doc_stride=before).job(tmp_path / "out")
    with pytest.raises(
        UserError, match=rf"--doc_stride 7: .*out was begun with {before}, .*give --doc_stride {before}"
    ):
        squad(checkpoint, data["1.1"], doc_stride=7).job(tmp_path / "out")


def test_mistakes_are_refused(data, checkpoint, tmp_path):
    def refuse(match: str, *files: Path | None, **more) -> None:
        options = {name: more.pop(name) for name in ("doc_stride", "null_score_threshold") if name in more}
        with pytest.raises(UserError, match=match):
            squad(checkpoint, *files, **options).job(tmp_path / "out", **more)

    refuse("--doc_stride 0: expected at least 1", data["1.1"], doc_stride=0)
    refuse("expected --data_dir, or --train_file", None)
    nowhere = write_json(tmp_path / "nowhere.json", [paragraph("a film", ("q", "plot", "good"))])
    refuse("no answer of its 1 questions is in its context", data["1.1"], nowhere)


@pytest.mark.slow
def test_a_run_that_is_ended_by_max_steps_answers_too(data, checkpoint, tmp_path):
    train_rank(World(), data["2.0"], checkpoint, tmp_path / "out", max_steps=2)
    assert path_of(tmp_path / "out", 2).is_dir()
    assert len(answers(tmp_path / "out")) == DEV
