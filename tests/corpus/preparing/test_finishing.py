"""The sections that are held out of a small store."""

import json

import numpy as np
import pytest

from bert_horovod.batches.text.index import open_index
from bert_horovod.corpus.preparing.summary import fitting_recipe, summary
from bert_horovod.corpus.store import open_store, verify
from bert_horovod.recipe_files.loading import load_recipe
from tests.corpus.preparing.test_preparation import tree
from tests.horovod_runs import PROJECT


def held_documents(store) -> int:
    """The number of documents with a held-out section."""
    held = (np.logical_or.reduceat(shard.held_out, np.asarray(shard.documents[:-1])) for shard in store.shards)
    return sum(int(each.sum()) for each in held)


def write(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.mark.parametrize(("documents", "held"), [(1, 0), (2, 0), (3, 2), (5, 2), (40, 2)])
def test_two_documents_are_held_out_where_there_are_three(make_store, tmp_path, documents, held):
    path = write(tmp_path / "a.jsonl", [f"Number {i} is here. It sat." for i in range(documents)])
    prepared = make_store(path, held_out=1e-9)
    store = verify(prepared.path)
    totals = prepared.manifest["totals"]
    assert (held_documents(store), totals["held_out_sections"]) == (held, held)
    assert totals["held_out_tokens"] == sum(
        int(shard.sentences[shard.sections[i + 1]] - shard.sentences[shard.sections[i]])
        for shard in store.shards
        for i in np.flatnonzero(shard.held_out)
    )
    assert f"held out {held} of {documents} section" in summary(prepared)
    if documents > 3:
        for split in ("train", "held_out"):
            assert open_index(store, 32, "next_sentence", True, split).classes.windows.sum() >= 2


def test_duplicates_do_not_count_and_a_setting_of_none_is_kept(make_store, tmp_path):
    for texts, held_out in ((["One. Two."] * 5 + ["Three."], 1e-9), (["One.", "Two.", "Three."], 0)):
        path = write(tmp_path / "a.jsonl", texts)
        made = make_store(path, output=tmp_path / f"held-{held_out}", held_out=held_out)
        assert held_documents(open_store(made.path)) == 0


def test_documents_of_several_sections_come_first_and_keep_some(make_store, tmp_path):
    long = ["\n\n".join(f"Number {i} is here. " * 1500 for i in range(n, n + 6)) for n in (0, 10)]
    store = open_store(make_store(write(tmp_path / "a.jsonl", ["One.", *long, "Two.", "Three."]), held_out=1e-9).path)
    [shard] = store.shards
    held = np.flatnonzero(shard.held_out)
    assert np.searchsorted(shard.documents, held, side="right").tolist() == [2, 3]


def test_a_damaged_shard_is_made_anew_with_the_same_choice(make_store, tmp_path):
    path = write(tmp_path / "a.jsonl", [f"Number {i} is here. It sat." for i in range(60)])
    prepared = make_store(path, held_out=1e-9, shard_bytes=300)
    before = tree(prepared.path)
    assert len(prepared.manifest["shards"]) > 3
    for entry in prepared.manifest["shards"]:
        (prepared.path / f"{entry['name']}.safetensors").write_bytes(b"damaged")
        again = make_store(path, held_out=1e-9, shard_bytes=300)
        assert again.made.kept_blocks == len(prepared.manifest["shards"]) - 1
        assert tree(prepared.path) == before


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (5 * 10**5, "quickstart"),
        (15 * 10**6, "bert-mini-fast"),
        (90 * 10**6, "bert-small"),
        (3 * 10**8, "bert-medium"),
        (3 * 10**9, "bert-base-2026"),
    ],
)
def test_the_recipe_that_is_named_fits_the_store(tokens, name):
    file = PROJECT / "run" / "recipes" / f"{name}.toml"
    recipe = load_recipe(file)
    assert fitting_recipe(tokens, recipe.model.vocab_size) == name
    assert fitting_recipe(tokens, 1000) == f"{name} --set model.vocab_size=1000"
    positions = sum(phase.steps * phase.global_batch * phase.sequence_length for phase in recipe.phase)
    assert 1 < positions / tokens < 40
