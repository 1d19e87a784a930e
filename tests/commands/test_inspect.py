"""The inspect command, as it is typed."""

import re
import shutil

import numpy as np
import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.batches.text import store_dataset
from bert_horovod.corpus.preparing.planning import Settings
from bert_horovod.recipe_files.loading import load_recipe, recipe_from_table, recipe_to_toml
from tests.batches.reading import unmasked
from tests.commands.conftest import WORDS
from tests.toy_runs import train_recipe
from tests.toys import SMALL_VOCABULARY, prepare, toy_recipe_table, write_toy_store

GOOD = {f"{i:02d}.txt": "The cat sat on a mat. " * 6 + "A cat ran. " * i for i in range(40)}


def command(store, *words) -> int:
    return dispatch(parse(["bert-horovod", "inspect", "--data_dir", str(store), *words]))


@pytest.fixture
def warned(tmp_path, capsys):
    """A function that prepares these files and gives the warnings that inspect prints for them."""

    def inspect(texts: dict[str, str], held_out: float = 0.5) -> list[str]:
        (tmp_path / "text").mkdir(exist_ok=True)
        for name, text in texts.items():
            (tmp_path / "text" / name).write_text(text, encoding="utf-8")
        (tmp_path / "vocabulary.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
        settings = Settings(held_out=held_out)
        prepare([str(tmp_path / "text")], tmp_path / "vocabulary.txt", tmp_path / "store", settings=settings)
        capsys.readouterr()
        assert command(tmp_path / "store") == 0
        out = capsys.readouterr().out
        warnings = re.findall("^warning: (.*)$", out, re.MULTILINE)
        few = [warning for warning in warnings if "too few to judge by: expected 10,000" in warning]
        warnings = [warning for warning in warnings if warning not in few]
        assert len(few) == (held_out > 0)  # the toys are small
        out = out if warnings or not few else out + "nothing looks wrong"
        assert ("nothing looks wrong" in out) == (not warnings)
        return warnings

    return inspect


def test_what_looks_wrong_is_warned_of_and_nothing_else(warned, tmp_path):
    """Each limit by itself: tests/corpus/test_statistics.py."""
    assert warned(GOOD) == []
    shutil.rmtree(tmp_path / "store")
    more = {"x.txt": "A xylophone ran. " * 20, "y.txt": " \n"} | {f"x{i}.txt": GOOD["07.txt"] for i in range(6)}
    sources, silent, nothing, repeated = warned(GOOD | more, held_out=0.0)
    assert sources.startswith("1 of 48 sources have over 5% [UNK]: x.txt:")
    assert silent.startswith("1 of 48 sources gave no text: y.txt")
    assert repeated.startswith("6 of 47 documents repeat others and are never read")
    assert nothing.startswith("nothing is held out")


def test_the_summary_has_totals_lengths_sources_and_the_longest_documents(warned, tmp_path, capsys):
    warned(GOOD | {"x.txt": "A xylophone ran. " * 20})
    assert command(tmp_path / "store") == 0
    out = capsys.readouterr().out
    assert re.search(r"documents +41\n", out)
    assert re.search(r"unknown tokens +20 \(0\.\d\d%\)", out)
    assert re.search(r"vocabulary +15 entries, uncased", out)
    assert "documents by tokens, without duplicates:\n" in out
    assert re.search(r"the worst first:\n +25\.00% of +80 tokens  x\.txt\n +0\.00%", out)
    assert "and 21 more sources" in out
    assert re.search(r"longest documents:\n +198 tokens  document 39 of shard-00000\n", out)


@pytest.fixture
def toy(tmp_path):
    """A toy store and a recipe file of two phases."""
    store = write_toy_store(tmp_path / "store", held_out=0.2, vocabulary=SMALL_VOCABULARY)
    table = toy_recipe_table(phase={"steps": 1, "global_batch": 4}, execution={"micro_batch": 4})
    table["phase"].append(table["phase"][0] | {"sequence_length": 16})
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_to_toml(recipe_from_table(table)), encoding="utf-8")
    return store, path


def read_back(out: str) -> list[tuple[list[list[str]], list[list[str]], list[str]]]:
    """Per printed row: the tokens of each segment as the model sees them, as they were, and the pair labels."""
    rows = []
    for block in out.split("\nrow ")[1:]:
        seen, were = [], []
        for segment in re.findall(r"^    [AB]: (.*)$", block, re.MULTILINE):
            pairs = [re.fullmatch(r"\[(MASK:)?(\w+)(?:→(\w+)|=)?\]|(\w+)", word).groups() for word in segment.split()]
            seen.append(["[MASK]" if mask else other or was or plain for mask, was, other, plain in pairs])
            were.append([was or plain for _, was, _, plain in pairs])
        rows.append((seen, were, re.findall(r"^  sequence \d+, \d+ positions(.*)$", block, re.MULTILINE)))
    return rows


def segments(ids: np.ndarray, batch: dict[str, np.ndarray]) -> list[list[str]]:
    """The tokens of the segments of a batch of one row."""
    places = zip(batch["sequence_ids"][0].tolist(), batch["token_type_ids"][0].tolist(), ids[0].tolist(), strict=True)
    tokens_by_segment: dict[tuple[int, int], list[str]] = {}
    for sequence, segment, token in places:
        if sequence:
            tokens_by_segment.setdefault((sequence, segment), []).append(SMALL_VOCABULARY[token])
    return [[token for token in tokens if token not in ("[CLS]", "[SEP]")] for tokens in tokens_by_segment.values()]


@pytest.mark.full
@pytest.mark.parametrize("pair", ["next_sentence", "sentence_order", "none"])
def test_rows_are_those_that_training_reads(toy, tmp_path, capsys, monkeypatch, pair):
    store, path = toy
    opened = {}
    open_rows = store_dataset.open_rows

    def kept(store, recipe, phase, split, *more, **settings):
        opened[phase, split] = open_rows(store, recipe, phase, split, *more, **settings)
        return opened[phase, split]

    monkeypatch.setattr(store_dataset, "open_rows", kept)
    train_recipe(load_recipe(path, [f"objective.pair={pair}"]), store, tmp_path / "run")
    assert set(opened) == {(0, "train"), (0, "held_out"), (1, "train"), (1, "held_out")}
    wrong = {"next_sentence": ": B is from another document", "sentence_order": ": B and A are swapped"}.get(pair)
    labels = []
    for (phase, split), rows in opened.items():
        for epoch in (0, 2):
            capsys.readouterr()
            place = ("--row", "1", "--rows", "8", "--epoch", str(epoch), "--split", split, "--phase", str(phase))
            assert command(store.path, *place, "--recipe", str(path), "--set", f"objective.pair={pair}") == 0
            printed = read_back(capsys.readouterr().out)
            assert len(printed) == 8
            for number, (seen, were, pair_labels) in enumerate(printed, 1):
                batch = rows.assemble(np.array([epoch * rows.count + number]))
                assert seen == segments(batch["input_ids"], batch)
                assert were == segments(unmasked(batch), batch)
                count = len(pair_labels)
                labels += pair_labels
                right_labels = batch["next_sentence_labels"][0, :count].astype(bool).tolist()
                assert [label == wrong for label in pair_labels] == right_labels
                paired = [bool(label) for label in pair_labels]
                expected = batch["sequence_weights"][0, :count].astype(bool) & (pair != "none")
                assert paired == expected.tolist()
    assert set(labels) >= ({""} if pair == "none" else {": B continues A", wrong})


def test_without_a_recipe_rows_are_those_of_the_defaults(toy, tmp_path, capsys):
    store, _ = toy
    assert command(store.path, "--row", "0", "--index_dir", str(tmp_path / "index")) == 0
    default = capsys.readouterr().out
    assert re.search("^train, epoch 0, [0-9,]+ rows of 128 positions an epoch, seed 0$", default, re.MULTILINE)
    assert not (store.path / "index").exists()
    assert any((tmp_path / "index").iterdir())
    assert command(store.path, "--row", "0", "--sequence_length", "64", "--set", "data.seed=3") == 0
    assert re.search(" rows of 64 positions an epoch, seed 3$", capsys.readouterr().out, re.MULTILINE)
