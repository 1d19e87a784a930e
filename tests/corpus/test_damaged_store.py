"""A damaged or hostile token store is refused with one message, and nothing else happens."""

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.corpus.store import open_store, verify
from bert_horovod.storage.reading import hash_file
from tests.mutations import put_in_its_place, sandbox
from tests.toys import SMALL_VOCABULARY, toy_shard, write_store, write_toy_store


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
    random = np.random.default_rng(1)
    shards = [toy_shard(random, 6, 2, 8, 30, 0.3, len(SMALL_VOCABULARY)) for _ in range(2)]
    return write_store(path, shards, SMALL_VOCABULARY, duplicates=(1, 7)).path


def read_duplicates(store: Path) -> np.ndarray:
    """The duplicates of a store."""
    return open_store(store).duplicates


def rehash(store: Path) -> None:
    """Make the hash of duplicates.npy right after a change, as an attacker would."""
    manifest = json.loads((store / "manifest.json").read_text(encoding="utf-8"))
    manifest["duplicates"]["sha256"] = hash_file(store / "duplicates.npy")
    (store / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.parametrize("name", ["../../outside", "..", "/", "/etc", "shard-00000/../shard-00000", "", "a\0b"])
def test_a_shard_outside_of_the_store_is_refused_by_name(tmp_path, original, name):
    with sandbox(original, tmp_path / "box") as box:
        path = box.directory / "manifest.json"
        manifest = json.loads(path.read_text(encoding="utf-8"))
        manifest["shards"][0]["name"] = name
        path.write_text(json.dumps(manifest), encoding="utf-8")
        for read in (verify, open_store):
            error = box.read(read, box.directory)
            assert "manifest.json is damaged: shards.0.name is " in str(error)


def test_a_pipe_in_place_of_the_manifest_is_not_waited_for(tmp_path, original):
    with sandbox(original, tmp_path / "box") as box:
        put_in_its_place(box.directory / "manifest.json", "fifo", box.outside)
        error = box.read(verify, box.directory)
        assert "cannot read manifest.json (it is not a regular file)" in str(error)


def test_a_pickle_in_an_array_is_refused_and_does_not_run(tmp_path, original):
    with sandbox(original, tmp_path / "box") as box:
        file = box.directory / "duplicates.npy"
        ran = tmp_path / "ran"
        np.save(file, np.array([Payload(ran)] * 3, object), allow_pickle=True)
        rehash(box.directory)
        for read in (read_duplicates, verify):
            assert "duplicates.npy is missing or damaged" in str(box.read(read, box.directory))
        file.write_bytes(pickle.dumps(Payload(ran)))
        rehash(box.directory)
        for read in (read_duplicates, verify):
            assert "duplicates.npy is missing or damaged" in str(box.read(read, box.directory))
        assert not ran.exists()
        pickle.loads(file.read_bytes())  # shows that the payload works where it is unpickled
        assert ran.exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [("totals", {}), ("passed_over", {"x": "y"}), ("sources", [{}]), ("sources", {"files": 1}), ("new", 1)],
)
def test_a_manifest_that_lacks_something_is_refused_by_key(tmp_path, original, key, value):
    with sandbox(original, tmp_path / "box") as box:
        path = box.directory / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {key: value}), encoding="utf-8")
        message = str(box.read(open_store, box.directory))
        assert "manifest.json is damaged" in message
        assert key in message


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("tokens", [1 << 62, 4096, 0], "has [0-9,]+ bytes, expected"),  # beyond the file
        ("tokens", [4095, 4096, 0], "arrays.tokens has 4096 bytes, expected"),  # not aligned
        ("sentences", [4096, 4, 0], "arrays.sentences has 4 bytes, expected"),
        ("held_out", [4096], "expected three numbers"),
        ("record", None, "expected three numbers for each of"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, name, numbers, message):
    store = write_toy_store(tmp_path / "store", shards=1, documents=6, vocabulary=SMALL_VOCABULARY).path
    with sandbox(store, tmp_path / "box") as box:
        path = box.directory / "manifest.json"
        manifest = json.loads(path.read_text(encoding="utf-8"))
        arrays = manifest["shards"][0]["arrays"]
        arrays[name] = numbers
        if numbers is None:
            del arrays[name]
        path.write_text(json.dumps(manifest), encoding="utf-8")
        for read in (verify, open_store):
            assert re.search(message, str(box.read(read, box.directory)))
