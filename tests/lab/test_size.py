"""Stores of hard links, as large as is asked for, are whole stores."""

import numpy as np
import pytest

from bert_horovod.corpus.store import verify
from lab import size
from tests.toys import write_toy_store


@pytest.mark.parametrize(("most", "shards", "parts"), [(1000, 7, 1), (3, 2, 3)])
def test_a_store_of_links_is_whole_and_repeats_the_text(tmp_path, monkeypatch, most, shards, parts):
    monkeypatch.setattr(size, "MOST_SHARDS", most)
    base = write_toy_store(tmp_path / "base", shards=2)  # whose shards say that they are of one byte of text
    store = verify(size.linked_store(base, tmp_path / "work" / "store", 7e-9))
    assert [len(shard.split()) for shard in store.shards] == [parts] * shards
    assert {entry["bytes"] for entry in store.manifest["shards"]} == {parts}
    assert np.array_equal(store.shards[0].split()[0].tokens, base.shards[0].tokens)
    assert store.manifest["totals"]["tokens"] == sum(len(shard.tokens) for shard in store.shards)
