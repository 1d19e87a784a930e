"""A damaged or hostile token store is refused with one message, and nothing else happens."""

import hashlib
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_horovod.batches.text.rows import open_rows
from bert_horovod.corpus.description import report
from bert_horovod.corpus.statistics import unigram_cross_entropy
from bert_horovod.corpus.store import ARRAYS, Store, hash_shard, open_store, verify
from bert_horovod.errors import ReportedError
from tests.mutations import Change, apply, bounded, changes, sandbox
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store

RECIPE = toy_recipe()
FILES = [
    *("manifest.json", "manifest.json", "manifest.json", "vocab.txt", "duplicates.npy"),
    *(f"shard-00000/{name}.npy" for name in ARRAYS),
]


class Payload:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """A store of two shards with held-out sections and a duplicate."""
    path = tmp_path_factory.mktemp("original") / "store"
    write_toy_store(
        path, shards=2, documents=6, sentences=8, held_out=0.3, vocabulary=SMALL_VOCABULARY, duplicates=(1, 7)
    )
    return path


def rehash(store: Path) -> None:
    """Make the manifest's hashes right after a change, as an attacker would, if the manifest can be read."""
    if any(path.is_file() and path.stat().st_size > 1 << 20 for path in store.rglob("*")):
        return
    try:
        manifest = json.loads((store / "manifest.json").read_text(encoding="utf-8"))
        for entry in manifest["shards"]:
            if entry["name"] == "shard-00000":
                entry["sha256"] = hash_shard(store / "shard-00000")
        manifest["vocabulary"]["sha256"] = _hash(store / "vocab.txt")
        (store / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ReportedError):
        return


def _hash(path: Path) -> str:
    if not path.is_file():
        raise OSError
    return hashlib.sha256(path.read_bytes()).hexdigest()


def use(store: Store) -> None:
    """All that the commands do with a store."""
    assert len(store.hash) == 64
    assert report(store).encode()
    for split in ("train", "held_out"):
        rows = open_rows(store, RECIPE, 0, split)
        rows.assemble(np.arange(min(rows.count, 40)))


def assert_same(found: Store, expected: Store) -> None:
    assert found.vocabulary == expected.vocabulary
    assert np.array_equal(found.duplicates, expected.duplicates)
    for shard, other in zip(found.shards, expected.shards, strict=True):
        for name in ARRAYS:
            assert np.array_equal(getattr(shard, name), getattr(other, name)), name


@bounded(24)
@given(st.lists(changes(FILES), min_size=1, max_size=2), st.booleans(), st.booleans())
def test_any_change_is_refused_or_harmless(tmp_path_factory, original, made, rehashed, checked):
    with sandbox(original, tmp_path_factory.getbasetemp() / "store_box") as box:
        for name, change in made:
            if (box.directory / name).is_file():
                apply(box.directory / name, change, box.outside)
        if rehashed:
            rehash(box.directory)
        store = box.read(verify if checked else open_store, box.directory)
        if isinstance(store, ReportedError):
            return
        if checked and not rehashed:
            assert_same(store, open_store(original))
        used = box.read(use, store)
        if checked and not rehashed:
            box.read(unigram_cross_entropy, store)
        assert used is None or isinstance(used, ReportedError)


@pytest.mark.parametrize("name", ["../../outside", "..", "/", "/etc", "shard-00000/../shard-00000", "", "a\0b"])
def test_a_shard_outside_of_the_store_is_refused_by_name(tmp_path, original, name):
    with sandbox(original, tmp_path / "box") as box:
        shutil.copytree(original / "shard-00000", tmp_path / "elsewhere")
        path = box.directory / "manifest.json"
        manifest = json.loads(path.read_text(encoding="utf-8"))
        manifest["shards"][0]["name"] = name
        path.write_text(json.dumps(manifest), encoding="utf-8")
        for read in (verify, open_store):
            error = box.read(read, box.directory)
            assert "manifest.json is damaged: shards.0.name is " in str(error)


@pytest.mark.parametrize("name", ["tokens", "titles"])
def test_a_pickle_in_a_shard_is_refused_and_does_not_run(tmp_path, original, name):
    with sandbox(original, tmp_path / "box") as box:
        file = box.directory / "shard-00000" / f"{name}.npy"
        ran = tmp_path / "ran"
        np.save(file, np.array([Payload(ran)] * 3, object), allow_pickle=True)
        rehash(box.directory)
        assert f"{name}.npy" in str(box.read(open_store, box.directory))
        assert "damaged shards: shard-00000" in str(box.read(verify, box.directory))
        file.write_bytes(pickle.dumps(Payload(ran)))
        rehash(box.directory)
        assert f"{name}.npy" in str(box.read(open_store, box.directory))
        assert "damaged shards: shard-00000" in str(box.read(verify, box.directory))
        assert not ran.exists()
        pickle.loads(file.read_bytes())  # shows that the payload works where it is unpickled
        assert ran.exists()


def test_truth_values_that_are_neither_are_refused(tmp_path, original):
    with sandbox(original, tmp_path / "box") as box:
        file = box.directory / "shard-00000" / "held_out.npy"
        apply(file, Change("truncate", file.stat().st_size - 1), box.outside)
        file.write_bytes(file.read_bytes() + b"\2")
        rehash(box.directory)
        assert "held_out has values other than true and false" in str(box.read(open_store, box.directory))


@pytest.mark.parametrize(("key", "value"), [("totals", {}), ("passed_over", {"x": "y"}), ("sources", [{}]), ("new", 1)])
def test_a_manifest_that_lacks_something_is_refused_by_key(tmp_path, original, key, value):
    with sandbox(original, tmp_path / "box") as box:
        path = box.directory / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {key: value}), encoding="utf-8")
        message = str(box.read(open_store, box.directory))
        assert "manifest.json is damaged" in message
        assert key in message
