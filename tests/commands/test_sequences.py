"""From FASTA to a checkpoint that judges bases, as the commands are typed."""

import csv
import importlib.util
import json
import math
import random
import shlex

import numpy as np
import pytest

from bert_horovod.corpus.store import open_store
from bert_horovod.errors import UserError
from bert_horovod.storage.writing import write_output
from tests.commands.conftest import command
from tests.corpus.preparing.test_preparation import tree
from tests.horovod_runs import PROJECT
from tests.toy_runs import newest, train_recipe
from tests.toys import TOY_MODEL, toy_recipe

UNIT = 7 * "ACGT"  # comes again and again, so that a few steps learn it


@pytest.fixture
def genome(tmp_path, monkeypatch):
    """Sequences by their names, as FASTA in the working directory: repeats, also in lower case, between letters."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    sequences = {
        f"contig{number}": "".join(
            draw.choice((UNIT, UNIT.lower(), "".join(draw.choices("ACGTN", (9, 9, 9, 9, 1), k=10)))) for _ in range(400)
        )
        for number in range(6)
    }
    text = "".join(f">{name} toy\r\n{letters[:3000]}\r\n{letters[3000:]}\r\n" for name, letters in sequences.items())
    (tmp_path / "genome.fa").write_text(text, encoding="utf-8")
    return sequences


def prepare(split, *more, store="store"):
    words = ("--input", "genome.fa", "--split", split)
    assert command("vocab", *words, "--output", f"split{split}/tokenizer.json") == 0
    assert (
        command("prepare", *words, "--tokenizer", f"split{split}", "--held_out", 0.3, "--output_dir", store, *more) == 0
    )
    return open_store(store)


@pytest.mark.full
@pytest.mark.parametrize(("split", "architecture"), [("letters", "modernbert"), ("3", "roberta")])
def test_a_model_of_sequences_is_opened_judged_and_asked(genome, tmp_path, capsys, transformers, split, architecture):
    store = prepare(split)
    size, count = 1 if split == "letters" else int(split), len(store.vocabulary)
    model = TOY_MODEL | {"architecture": architecture, "vocab_size": count, "max_position_embeddings": 64}
    model |= {"type_vocab_size": 1} if architecture == "roberta" else {}
    phase = {"steps": 80, "learning_rate": 0.01, "sequence_length": 64}
    recipe = toy_recipe(model=model, objective={"pair": "none", "whole_word_masking": True}, phase=phase)
    run = train_recipe(recipe, store, tmp_path / "run")
    tokenizer = transformers.AutoTokenizer.from_pretrained(newest(run))
    assert transformers.AutoModelForMaskedLM.from_pretrained(newest(run)).config.vocab_size == count
    of_store = [np.asarray(shard.tokens) for shard in store.shards]
    for written in (str.upper, str.lower, lambda letters: letters.replace("GG", "g\ng ")):
        ids = tokenizer([written(letters) for letters in genome.values()], add_special_tokens=False)["input_ids"]
        assert np.array_equal(np.concatenate(ids), np.concatenate(of_store))
    row = tokenizer(UNIT)["input_ids"]
    assert (row[0], row[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert tokenizer.decode(row, skip_special_tokens=True) == UNIT
    capsys.readouterr()
    assert command("evaluate", "--checkpoint", run, "--data_dir", "store", "--json") == 0
    assert json.loads(capsys.readouterr().out)["gain"] > 0.1
    with open("pairs.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(
            [("sentence_good", "sentence_bad"), *((2 * UNIT, UNIT + wrong(place)) for place in range(20))]
        )
    assert command("evaluate", "--checkpoint", run, "--pairs", "pairs.csv", "--json") == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] > 0.9
    masked = f"{UNIT[: 4 * size]}[MASK]{UNIT[5 * size :]}"
    assert command("fill-mask", "--checkpoint", run, masked) == 0
    best = capsys.readouterr().out.splitlines()[1].split()[0]
    assert len(best) == size
    assert best in UNIT


def wrong(place):
    """UNIT with another letter at this place."""
    return UNIT[:place] + "ACGT"["CGTA".index(UNIT[place])] + UNIT[place + 1 :]


def test_workers_parts_and_a_call_again_give_the_same_store(genome, capsys):
    words = ("--shard_bytes", 9000)
    one = prepare("4", "--workers", 1, *words)
    assert {f"{name} toy" for name in genome} == set("".join(map(titles, one.shards)).splitlines())
    assert len(one.shards) > 2
    two = prepare("4", "--workers", 2, *words, store="two")
    assert tree(one.path) == tree(two.path)
    (two.path / "manifest.json").unlink()
    (two.path / "shard-00001.safetensors").unlink()
    assert tree(prepare("4", *words, store="two").path) == tree(one.path)
    for number in (1, 2):
        prepared = ("prepare", "--input", "genome.fa", "--split", "4", "--tokenizer", "split4", "--held_out", 0.3)
        assert command(*prepared, *words, "--output_dir", "parts", "--part", f"{number}/2") == 0
    assert tree(open_store("parts").path) == tree(one.path)
    capsys.readouterr()


def titles(shard):
    return np.asarray(shard.titles).tobytes().decode()


def test_the_next_command_prepares_the_same_sequences(genome, capsys):
    assert command("vocab", "--input", "genome.fa", "--split", 2, "--output", "two/tokenizer.json") == 0
    words = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("next: bert-horovod "))
    assert command(*words) == 0
    store = open_store("STORE")
    assert store.manifest["settings"]["documents"] == "2"
    recipe = f"modernbert-mini --set model.vocab_size={len(store.vocabulary)} --set phase.0.sequence_length=512"
    assert f"pretrain --recipe {recipe} --data_dir" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("prepare --tokenizer split3", "genome.fa is FASTA"),
        ("prepare --tokenizer split3 --split 2", "the tokenizer cuts sequences otherwise; expected --split 3"),
        (
            "prepare --tokenizer few --split 3",
            "the text: does the tokenizer know such sequences? Of k-mers, does vocab",
        ),
        ("prepare --vocab vocab.txt --split 3", "--split 3: vocab.txt cuts words; expected --tokenizer DIR made"),
        ("prepare --tokenizer split3 --split word", "--split 'word': expected letters"),
        ("prepare --tokenizer split3 --split 3 --documents blank_line", "it is read only without --split"),
        ("prepare --tokenizer split3 --split 3 --input prose.txt", "prose.txt begins with 'A cat.'; expected FASTA"),
        ("vocab --output v.txt", "genome.fa is FASTA"),
        ("vocab --output v.txt --split 3", "--output v.txt: expected DIR/tokenizer.json with --split"),
        ("vocab --output tokenizer.json --split 3 --cased", "it is read only without --split"),
        ("vocab --output tokenizer.json --split 3 --extend vocab.txt", "--split with --extend"),
        ("vocab --output tokenizer.json --split 3 --size 6", "--size 6: expected at least 10"),
        ("vocab --output other/tokenizer.json --split 3", "tokenizer_config.json is there, of another tokenizer"),
    ],
)
def test_what_does_not_fit_together_is_refused(genome, capsys, tmp_path, words, message):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"acgtn"]))
    (tmp_path / "prose.txt").write_text("A cat.")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer_config.json").write_text("{}")
    if "split3" in words:
        assert command("vocab", "--input", "genome.fa", "--split", 3, "--output", "split3/tokenizer.json") == 0
    if "few" in words:
        assert (
            command("vocab", "--input", "genome.fa", "--split", 3, "--size", 10, "--output", "few/tokenizer.json") == 0
        )
    name, *flags = words.split()
    output = ("--output_dir", "store") if name == "prepare" else ()
    before = sorted(tmp_path.rglob("*"))
    assert command(name, "--input", "genome.fa", *flags, *output) == 2
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_tokenizer_that_could_not_be_written_is_made_by_the_next_call(genome, monkeypatch):
    def full(path, text):
        if path.name == "tokenizer.json":
            raise UserError(f"cannot write {path}: No space left on device")
        write_output(path, text)

    words = ("vocab", "--input", "genome.fa", "--split", 3, "--output", "three/tokenizer.json")
    with monkeypatch.context() as patched:
        patched.setattr("bert_horovod.storage.writing.write_output", full)
        assert command(*words) == 2
    assert command(*words) == 0


def test_the_organism_of_the_tutorial_has_codons_and_pairs_of_one_wrong_letter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("organism", PROJECT / "docs" / "tutorials" / "organism.py")
    organism = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(organism)
    organism.make(40_000)
    text = "".join((tmp_path / "held_out.fa").read_text().upper().splitlines()[1:])
    assert organism.markov(text, 0) < math.log(4)
    assert organism.markov(text, 3) < organism.markov(text, 0) - 0.02
    with open("pairs.csv", encoding="ascii", newline="") as file:
        [_, *pairs] = csv.reader(file)
    assert all(right in text and sum(map(str.__ne__, right, bad)) == 1 for right, bad in pairs)
    (tmp_path / "organism.fa").rename("genome.fa")
    assert prepare("letters").vocabulary[5:] == list("ACGT")
