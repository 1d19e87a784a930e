"""lab/same_minutes.py: its arithmetic; the loop of the peer; all contestants end to end."""

import gzip
import json
import math
import subprocess
import sys
import time
from contextlib import nullcontext

import numpy as np
import pytest

from bert_horovod.errors import RunError, UserError
from lab import same_minutes
from lab.minutes_results import Enough, Results, curves, marks_of, pace_of, report, share_of, split_books, steps_of
from lab.rounds import commit
from tests.horovod_runs import PATIENCE_S
from tests.lab.scripts import DIRECTORY, cells, run_script

WORDS = ("the", "sea", "was", "calm", "and", "no", "ship", "came", "by", "day")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def run(contestant: str, *losses: float, seed: int = 1, minutes: float = 20, **more) -> dict:
    points = [
        {"mark": mark, "step": 1, "seconds": 60.0 * mark, "loss": loss}
        for mark, loss in zip((5, 10, minutes), losses, strict=True)
    ]
    name = {"key": f"{contestant}{seed}{minutes}{more}", "contestant": contestant, "minutes": minutes, "seed": seed}
    return name | {"losses": points} | more


def write_books(directory, count: int = 10, paragraphs: int = 40):
    directory.mkdir()
    text = "\n\n".join(f"{' '.join(WORDS[i % 7 :] + WORDS[: i % 7])} ." for i in range(paragraphs))
    for number in range(count):
        (directory / f"book-{number:02d}.txt.gz").write_bytes(gzip.compress(text.encode()))
    return directory


def write_vocabulary(directory):
    path = directory / "vocab.txt"
    path.write_text("\n".join((*SPECIAL, *WORDS, ".")) + "\n")
    return path


def test_the_steps_fill_the_minutes_after_start_and_compilation():
    ends = [20.0, 20.5, 21.0, 29.0, 29.5, 30.0]  # the fourth step was compiled once more
    pace = pace_of(ends)
    assert pace == {"fixed_s": pytest.approx(27.5), "step_s": pytest.approx(0.5)}
    assert steps_of(1, pace) == 65
    assert steps_of(0.4, pace) == 0
    assert steps_of(20, {"fixed_s": 0.0, "step_s": float("inf")}) == 0  # its pilot was too slow


def test_marks_are_minutes_of_the_clock_and_the_end_or_shares_of_epochs():
    assert marks_of("minutes", 10, 700) == [
        {"mark": 3, "seconds": 180},
        {"mark": 5, "seconds": 300},
        {"mark": 10, "step": 700},
    ]
    assert marks_of("minutes", 1, 50) == [{"mark": 0.5, "seconds": 30}, {"mark": 1, "step": 50}]
    assert [(mark["mark"], mark["step"]) for mark in marks_of("epochs", 10, 200)][::4] == [(1, 20), (10, 200)]


def test_a_tenth_of_the_books_is_held_out_and_the_rest_is_cut_at_a_paragraph(tmp_path):
    books = sorted(write_books(tmp_path / "books").iterdir())
    texts = split_books(books, 95)
    assert texts["train"].count(" .") == 9  # of eleven words each
    assert texts["held_out"].count(" .") == 40
    with pytest.raises(UserError, match="--books has 3,960 words in 10 books"):
        split_books(books, 5000)


def test_the_share_of_time_is_of_the_last_loss_of_the_other():
    ours = [{"minutes": minutes, "loss": loss} for minutes, loss in ((5, 5.1), (10, 4.1), (20, 3.1))]
    assert share_of(ours, [{"minutes": 20, "loss": 4.6}]).endswith(" after 7.5 min: 38% of (c)'s time")
    never = share_of([{"minutes": 20, "loss": 5.0}], [{"minutes": 20, "loss": 4.0}])
    assert never == "(a) does not reach (c)'s last loss, 4.0000: it ends 1.0000 above"


def test_runs_of_other_settings_are_not_averaged():
    old, new = (run("a", 5.0, 4.0, loss, settings={"ranks": ranks}) for loss, ranks in ((3.0, 1), (2.0, 2)))
    (points,) = curves([old, new]).values()
    assert points[-1]["losses"] == [2.0]


def test_a_contestant_that_fails_leaves_the_others_alone(monkeypatch):
    tried = []

    def train(self, what: dict, settings: dict) -> dict:
        tried.append(what["contestant"])
        if what["contestant"] == "a":
            raise RunError("no room")
        return {"losses": [1.0]}

    for name, method in (("run", train), ("judge_pairs", lambda *_, **__: None)):
        monkeypatch.setattr(same_minutes.Contest, name, method)
    for name in ("best_of_ours", "best_of_theirs"):
        monkeypatch.setattr(same_minutes.Contest, name, lambda *_: {})
    contest = object.__new__(same_minutes.Contest)
    contest.arguments = same_minutes.parse(["--minutes", "20", "--seeds", "1", "--only", "a", "c"])
    with pytest.raises(RunError, match=r"\(a\), seed 1, 20 minutes: no room; the same command tries again"):
        contest.hold()
    assert tried == ["a", "c"]


@pytest.mark.parametrize("length", [("--epochs", "1"), ("--minutes", "20")])
def test_of_one_new_line_the_first_is_the_pace_and_the_next_the_run(monkeypatch, tmp_path, length):
    def train(self, settings: dict, key: str, steps: int, marks: list[dict], *_: object) -> dict:
        (tmp_path / key / "run" / "checkpoints" / f"step-{steps:08d}").mkdir(parents=True)
        reached = [{"mark": mark["mark"], "step": steps, "seconds": 3.0} for mark in marks]
        return {"ends": [0.0, 1.0, 2.0], "rows": 6400, "reached": reached}

    monkeypatch.setattr(same_minutes.Contest, "train", train)
    monkeypatch.setattr(same_minutes.Contest, "judge", lambda *_: 3.0)
    contest = object.__new__(same_minutes.Contest)
    contest.arguments = same_minutes.parse([*length, "--only", "a", "--pilot_rows", "1"])
    contest.work, contest.gpu, contest.cores, contest.where = tmp_path, True, 1, {}
    contest.vocabulary, contest.layers, contest.hidden = 1000, 4, 256
    file, kept = tmp_path / "results.jsonl", []
    for new in ("pace", "losses"):
        contest.results = Results(file, most=1)
        with pytest.raises(Enough):
            contest.hold()
        kept.append(new)
        assert [name for line in Results(file).lines.values() for name in kept if name in line] == kept


@pytest.mark.parametrize(("said", "loss"), [("the model's loss is not finite", math.inf), ("no room", None)])
def test_a_pilot_that_diverged_has_an_infinite_loss(monkeypatch, tmp_path, said, loss):
    def evaluate(*_: object, **__: object) -> str:
        raise RunError(f"evaluate ended with 2: error: {said}")

    monkeypatch.setattr(same_minutes, "program", evaluate)
    contest = object.__new__(same_minutes.Contest)
    contest.work, contest.gpu = tmp_path, False
    with nullcontext() if loss else pytest.raises(RunError, match="no room"):
        assert contest.judge(tmp_path / "checkpoint") == loss
    report([run("a", 5.0, 4.0, math.inf), run("a", 5.0, 4.0, 3.0, seed=2)])


def test_a_machine_without_git_loses_no_result(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert commit() == ""


def test_a_line_is_found_once_and_the_last_of_a_key_counts(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    line = results.once({"seed": 1}, lambda key: {"loss": 3.0})
    results.keep(line | {"pairs": 0.5})
    again = Results(tmp_path / "results.jsonl").once({"seed": 1}, lambda key: pytest.fail("it is there"))
    assert again == line | {"pairs": 0.5}
    with pytest.raises(Enough):
        Results(tmp_path / "results.jsonl", most=0).once({"seed": 2}, dict)


def test_a_line_that_a_kill_tore_is_dropped_and_the_next_one_takes_its_place(tmp_path):
    file = tmp_path / "results.jsonl"
    file.write_text('{"key": "one"}\n{"key": "tw')
    assert Results(file).lines == {"one": {"key": "one"}}
    Results(file).keep({"key": "three"})
    assert file.read_text() == '{"key": "one"}\n{"key": "three"}\n'


@pytest.mark.full
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_peer_trains_two_steps_and_saves_what_transformers_reads(tmp_path, compiled):
    transformers = pytest.importorskip("transformers")
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(" ".join(WORDS) for _ in range(20)) + "\n")
    names = {"tokenizer": "tokenizer", "rows": "rows.npy", "found": "found.json", "output": "run"}
    job = {name: str(tmp_path / path) for name, path in names.items()}
    peer(job | {"text": str(text), "vocab": str(write_vocabulary(tmp_path)), "length": 8})
    config = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    job |= {"config": config | {"intermediate_size": 16}, "steps": 2, "batch": 4, "rate": 1e-3, "dropout": 0.1}
    job |= {"compiled": compiled, "warmup": 0.5, "weight_decay": 0.01, "precision": "bfloat16", "seed": 1}
    job |= {"device": "cpu", "threads": 1, "began": time.time(), "marks": marks_of("epochs", 1, 2)}
    peer(job)
    found = json.loads((tmp_path / "found.json").read_text())
    assert np.load(tmp_path / "rows.npy").shape == (20 * (len(WORDS) + 2) // 8, 8)
    assert [mark["step"] for mark in found["reached"]] == [1, 1, 1, 2, 2]
    assert 0 < found["ends"][0] < found["ends"][1]
    saved = tmp_path / "run" / "checkpoints" / "step-00000002"
    assert transformers.AutoModelForMaskedLM.from_pretrained(saved).config.num_hidden_layers == 1
    assert transformers.AutoTokenizer.from_pretrained(saved).mask_token == "[MASK]"


def peer(job: dict) -> None:
    command = [sys.executable, DIRECTORY / "peers" / "run_mlm.py", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_contestants_are_judged_once_and_told(tmp_path):
    pytest.importorskip("transformers")
    words = ["--work", tmp_path / "work", "--results", tmp_path / "results.jsonl", "--epochs", 1, "--seeds", 1]
    words += ["--layers", 1, "--hidden", 8, "--words", 3000, "--pilot_rows", 64, "--only", "a", "d"]
    words += ["--set", "phase.0.global_batch=64", "--set", "numerics.precision=float32"]
    words += ["--books", write_books(tmp_path / "books"), "--vocab", write_vocabulary(tmp_path)]
    done = run_script("same_minutes", *words)
    assert done.returncode == 0, done.stderr
    assert [cells(line)[0] for line in done.stdout.splitlines()[1:]] == [
        "(a) bert-horovod",
        "(d) run_mlm.py, defaults",
    ]
    again = run_script("same_minutes", *words)
    assert again.stdout == done.stdout
    assert " steps of " not in again.stderr
