"""Shards of format 2 are compared with their hashes once, before they are cut or beside training."""

import time

import pytest

from bert_horovod.batches.text.index import open_index
from bert_horovod.batches.text.rows import StoreDataset
from bert_horovod.corpus import earlier_verification
from bert_horovod.corpus.earlier_verification import Watch, require_whole
from bert_horovod.errors import DamagedData
from tests.corpus.test_tokens import flip_unnoticed
from tests.horovod_runs import PATIENCE_S
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store


@pytest.fixture
def store(tmp_path):
    return write_toy_store(tmp_path / "store", held_out=0.2, vocabulary=SMALL_VOCABULARY, earlier=True)


@pytest.fixture
def hashed(monkeypatch):
    """The names of shards that were read whole."""
    names = []
    hash_directory = earlier_verification.hash_directory

    def counted(directory):
        names.append(directory.name)
        return hash_directory(directory)

    monkeypatch.setattr(earlier_verification, "hash_directory", counted)
    return names


def test_an_index_is_made_of_whole_shards_alone_and_none_is_read_twice(store, hashed):
    open_index(store, 32, "none", True)
    open_index(store, 16, "none", True)
    assert sorted(hashed) == ["shard-00000", "shard-00001", "shard-00002"]
    flip_unnoticed(store.path / "shard-00001" / "tokens.npy", 1000)
    with pytest.raises(DamagedData, match=r"damaged shards: shard-00001; .*prepare"):
        open_index(store, 8, "none", True)


def test_beside_training_what_is_unknown_is_read_and_damage_ends_the_run(store, hashed):
    recipe = toy_recipe()
    rows = StoreDataset(store, recipe).open(0, "train")
    directory = store.path / "index"
    (record,) = directory.glob("verified-*.jsonl")
    record.unlink()  # as after a copy to another disk
    flip_unnoticed(store.path / "shard-00002" / "tokens.npy", 1000)
    dataset = StoreDataset(store, recipe)
    rows = dataset.open(0, "train")
    with pytest.raises(DamagedData, match="damaged shards: shard-00002"):
        read_for(rows, PATIENCE_S)
    with pytest.raises(DamagedData, match="damaged shards: shard-00002"):
        dataset.open(0, "held_out", build=False).assemble([0])
    del hashed[:]
    require_whole(store, 0, directory)
    assert set(hashed) <= {"shard-00000"}


def read_for(rows, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rows.assemble([0])


def test_a_store_of_this_version_is_not_read(tmp_path, hashed):
    store = write_toy_store(tmp_path / "new", vocabulary=SMALL_VOCABULARY)
    Watch(store, tmp_path / "index")()
    require_whole(store, 0, tmp_path / "index")
    assert hashed == []
