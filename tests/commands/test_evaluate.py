"""The evaluate command, as it is typed."""

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_horovod.commands.evaluate import evaluate, evaluation_summary
from bert_horovod.corpus.reading.pair_files import COLUMNS
from bert_horovod.corpus.statistics import unigram_cross_entropy
from bert_horovod.corpus.store import open_store
from bert_horovod.recipe.settings import Execution, Objective, Phase
from bert_horovod.runs.opening import find_checkpoint
from tests import toy_glue
from tests.commands.conftest import MODEL, WORDS, command, write_checkpoint
from tests.toy_runs import logged, train_recipe
from tests.toys import recipe_of

LENGTH = ("--sequence_length", "16")


def evaluated(toys, *words):
    return command("evaluate", "--checkpoint", toys.checkpoint, "--data_dir", toys.store, *words)


def test_a_fresh_model_knows_as_much_as_chance(toys, capsys):
    assert evaluated(toys, *LENGTH, "--json") == 0
    evaluation = json.loads(capsys.readouterr().out)
    assert evaluation["held_out_mlm_loss"] == pytest.approx(math.log(len(WORDS)), abs=0.1)
    assert evaluation["held_out_nsp_loss"] == pytest.approx(math.log(2), abs=0.05)
    assert 0 <= evaluation["held_out_mlm_accuracy"] <= 1
    assert evaluation["unigram_cross_entropy"] == unigram_cross_entropy(open_store(toys.store))
    assert evaluation["gain"] == evaluation["unigram_cross_entropy"] - evaluation["held_out_mlm_loss"]
    assert (evaluation["checkpoint"], evaluation["sequence_length"]) == (str(toys.checkpoint), 16)
    assert evaluation["sequence_length_from"] == "flag"
    assert evaluation["rows"] > 20


def test_the_result_does_not_depend_on_the_micro_batch(toys):
    one, other = (
        evaluate(find_checkpoint(toys.checkpoint), toys.store, 16, rows=13, micro_batch=size) for size in (4, 32)
    )
    assert one["rows"] == other["rows"] == 13
    assert one["held_out_mlm_loss"] == pytest.approx(other["held_out_mlm_loss"], rel=1e-5)


@pytest.mark.parametrize("pairs", [True, False])
def test_people_read_losses_beside_the_unigrams(toys, tmp_path, capsys, pairs):
    assert evaluated(toys._replace(checkpoint=write_checkpoint(tmp_path / "made", pairs)), *LENGTH) == 0
    out = capsys.readouterr().out
    assert all(words in out for words in ("masked tokens   loss 2.", "unigrams        loss", "nats above"))
    assert ("next sentence   loss 0." in out) == ("next sentence" in out) == pairs


@pytest.mark.full
@pytest.mark.parametrize("pair", ["none", "next_sentence", "sentence_order"])
def test_a_run_is_found_and_evaluated_as_it_did_itself(toys, tmp_path, pair):
    recipe = recipe_of(
        model=MODEL,
        objective=Objective(pair=pair),
        phase=(Phase(sequence_length=16, global_batch=4, steps=2),),
        execution=Execution(micro_batch=4, threads=1, trackers=(), checkpoint_steps=1, xla="off"),
    )
    run = train_recipe(recipe, open_store(toys.store), tmp_path / "run")
    evaluation = evaluate(find_checkpoint(run), toys.store, micro_batch=4)
    assert (evaluation["sequence_length"], evaluation["sequence_length_from"]) == (16, "checkpoint")
    assert "held-out rows of 16 positions (as it was trained):" in evaluation_summary(evaluation)
    assert evaluation["checkpoint"] == str(run / "checkpoints" / "step-00000002")
    last = logged(run)[-1]
    assert {name for name in evaluation if name.startswith("held_out")} == last.keys() - {"step"}
    for name in last.keys() - {"step"}:
        assert evaluation[name] == pytest.approx(last[name], rel=1e-6)
    assert evaluation["pair"] == pair
    name = {"next_sentence": "nsp", "sentence_order": "sop", "none": None}[pair]
    pair_metrics = {f"held_out_{name}_loss", f"held_out_{name}_accuracy"} if name else set()
    assert {key for key in last if "mlm" not in key} - {"step", "held_out_loss"} == pair_metrics
    assert ("sentence order  loss" in evaluation_summary(evaluation)) == (pair == "sentence_order")


@pytest.mark.parametrize("program", ["evaluate", "fill-mask"])
def test_a_model_whose_outputs_are_not_finite_gives_no_answer(toys, capsys, program):
    weights = toys.checkpoint / "model.safetensors"
    huge = {
        name: array * np.float32(3e38 if "LayerNorm.weight" in name else 1e3)
        for name, array in load_file(weights).items()
    }
    save_file(huge, weights, metadata={"format": "pt"})
    flags = ["--data_dir", toys.store, *LENGTH] if program == "evaluate" else ["The [MASK] sat."]
    assert command(program, "--checkpoint", toys.checkpoint, *flags) == 2
    assert "not finite" in capsys.readouterr().err


def test_a_checkpoint_of_other_origin_is_measured_at_128(tmp_path, toys, capsys):
    model = dataclasses.replace(MODEL, max_position_embeddings=128)
    longer = toy_glue.write_checkpoint(tmp_path / "longer", model=model, words=WORDS)
    assert evaluated(toys._replace(checkpoint=longer)) == 0
    out = capsys.readouterr().out
    assert "held-out rows of 128 positions (the default: the checkpoint does not tell what it was trained at):" in out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"words": [*WORDS[:-2], WORDS[-1], WORDS[-2]]}, "(they first differ at id 13); prepare the data with"),
        ({"lowercase": False}, "has another tokenizer (cased) than the token store"),
    ],
)
def test_another_vocabulary_is_refused(toys, tmp_path, capsys, settings, message):
    assert evaluated(toys._replace(checkpoint=write_checkpoint(tmp_path / "other", **settings)), *LENGTH) == 2
    assert message in capsys.readouterr().err


def test_without_a_vocabulary_the_sizes_must_agree(toys, capsys):
    (toys.checkpoint / "vocab.txt").unlink()
    assert evaluated(toys, *LENGTH) == 0
    config = json.loads((toys.checkpoint / "config.json").read_text(encoding="utf-8"))
    (toys.checkpoint / "config.json").write_text(json.dumps(config | {"vocab_size": 14}), encoding="utf-8")
    tensors = load_file(toys.checkpoint / "model.safetensors")
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        tensors[name] = tensors[name][:14].copy()
    save_file(tensors, toys.checkpoint / "model.safetensors", metadata={"format": "pt"})
    assert evaluated(toys, *LENGTH) == 2
    said = capsys.readouterr().err
    assert "has a vocabulary of 14, the token store" in said
    assert "prepare the data with --vocab " in said


def test_a_checkpoint_without_masked_token_head_is_refused(toys, capsys):
    weights = toys.checkpoint / "model.safetensors"
    kept = {name: value for name, value in load_file(weights).items() if not name.startswith("cls.predictions")}
    save_file(kept, weights, metadata={"format": "pt"})
    assert evaluated(toys, *LENGTH) == 2
    assert "has no masked-token head (cls.predictions.bias," in capsys.readouterr().err


def write_pairs(path: Path) -> Path:
    """Pairs that a checkpoint of WORDS can read, with BLiMP's fields."""
    pairs = [("the cat sat.", "the cats sat on."), ("a dog ran", "ran dog a"), ("the mat", "mat the a")]
    fields = [dict(zip(COLUMNS, pair, strict=True)) | {"field": "syntax", "two": [1]} for pair in pairs]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in fields), encoding="utf-8")
    return path


def test_pairs_are_judged_with_a_table_or_one_object(toys, tmp_path, capsys):
    pairs = ("--pairs", write_pairs(tmp_path / "first.jsonl"), write_pairs(tmp_path / "second.jsonl"))
    assert command("evaluate", toys.checkpoint, *pairs, "--json") == 0
    judged = json.loads(capsys.readouterr().out)
    assert judged["checkpoint"] == str(toys.checkpoint)
    assert (judged["pairs"], judged["ties"]) == (6, 0)
    assert judged["accuracy"] == judged["groups"]["field"]["syntax"]["accuracy"] in (0, 1 / 3, 2 / 3, 1)
    assert list(judged["groups"]["file"]) == ["first", "second"]
    for flags in (["--within_words"], ["--precision", "bfloat16"], ["--micro_batch", "1"]):
        assert command("evaluate", toys.checkpoint, *pairs, *flags, "--json") == 0
        assert json.loads(capsys.readouterr().out)["pairs"] == 6
    assert command("evaluate", toys.checkpoint, *pairs, "--every", 2) == 0
    told = capsys.readouterr()
    assert re.search(r"^first +2 +0 +\d", told.out, re.MULTILINE)
    assert re.search(r"accuracy \S+%, standard error \S+% \(the mean over 2 files; chance: 50 %\)", told.out)
    assert "4/4" in told.err


def test_many_ties_and_names_of_several_lines_stay_in_their_lines(toys, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("bert_horovod.corpus.reading.pair_files._EQUAL_SHARE", 1)
    line = json.dumps(dict.fromkeys(COLUMNS, "the cat") | {"field": "syn\ntax"})
    (tmp_path / "a.jsonl").write_text(f"{line}\n" * 30, encoding="utf-8")
    assert command("evaluate", toys.checkpoint, "--pairs", tmp_path / "a.jsonl") == 0
    told = capsys.readouterr()
    assert told.err.count("a.jsonl, line ") == 10
    assert re.search("^syn tax +30 +30 +50.0%", told.out, re.MULTILINE)


@pytest.mark.full
def test_all_checkpoints_of_a_run_are_judged_but_damaged_ones(toys, tmp_path, capsys):
    recipe = recipe_of(
        model=MODEL,
        phase=(Phase(sequence_length=16, global_batch=4, steps=4),),
        execution=Execution(micro_batch=4, threads=1, trackers=(), checkpoint_steps=1, keep_checkpoints=4, xla="off"),
    )
    run = train_recipe(recipe, open_store(toys.store), tmp_path / "run")
    flags = ("--pairs", write_pairs(tmp_path / "a.jsonl"), "--checkpoints", "all")
    with open(run / "checkpoints" / "step-00000002" / "model.safetensors", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    (run / "checkpoints" / "step-00000003" / "config.json").unlink()
    capsys.readouterr()
    assert command("evaluate", run, *flags, "--json") == 0
    told = capsys.readouterr()
    judged = json.loads(told.out)["checkpoints"]
    assert [Path(each["checkpoint"]).name for each in judged] == ["step-00000001", "step-00000004"]
    assert told.err.count("left out: --checkpoint") == 2
    assert command("evaluate", run, *flags) == 0
    assert re.search(r"^step-00000004 +\S+% +\S+% +0$", capsys.readouterr().out, re.MULTILINE)
