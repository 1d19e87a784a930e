"""Tokens by their numbers: every page is compared whenever it is read."""

import gc
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.corpus import tokens as tokens_module
from bert_horovod.corpus.shard import PAGE_BYTES, SUFFIX
from bert_horovod.corpus.store import Store
from bert_horovod.corpus.tokens import TokenReader
from bert_horovod.errors import DamagedData, RunError
from tests.batches.reading import store_tokens
from tests.toys import write_toy_store


def reader_of(store: Store) -> TokenReader:
    return TokenReader(store.path, store.manifest, len(store.vocabulary))


def flip_unnoticed(file: Path, place: int) -> None:
    """Flip a bit as a disk does: the time of change is as before, and no memory holds the old byte."""
    facts = file.stat()
    with open(file, "r+b") as changed:
        changed.seek(place)
        (byte,) = changed.read(1)
        changed.seek(place)
        changed.write(bytes([byte ^ 4]))
        changed.flush()
        os.fsync(changed.fileno())
        os.posix_fadvise(changed.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize("vocabulary", [1000, 70_000])
def test_all_tokens_are_those_of_the_arrays(tmp_path, vocabulary):
    words = [f"w{i}" for i in range(vocabulary)]
    store = write_toy_store(tmp_path / "store", documents=60, vocabulary=words)
    reader, expected, random = reader_of(store), store_tokens(store), np.random.default_rng(0)
    for shard, entry in enumerate(store.manifest["shards"]):
        first = store.first_tokens[shard]
        for begin in [0, entry["tokens"] - 1, *random.integers(0, entry["tokens"], 50).tolist()]:
            count = min(entry["tokens"] - begin, int(random.integers(1, 9000)))
            read = reader.read(shard, begin, count)
            assert np.array_equal(read, expected[first + begin : first + begin + count])


def test_a_flipped_byte_is_noticed_whenever_its_page_is_read_and_only_then(tmp_path):
    store = write_toy_store(tmp_path / "store", shards=1, documents=100)
    reader = reader_of(store)
    pages = store.manifest["shards"][0]["tokens"] * 2 // PAGE_BYTES
    whole = [reader.read(0, page * 2048, 10).tolist() for page in range(pages)]  # it was whole when it was opened
    begin = store.manifest["shards"][0]["arrays"]["tokens"][0]
    flip_unnoticed(store.path / f"shard-00000{SUFFIX}", begin + 2 * PAGE_BYTES + 4000)
    for _ in range(2):
        for page in range(pages):
            if page == 2:
                with pytest.raises(DamagedData, match=r"shard-00000 .*page 2 of its tokens has another CRC.*verify"):
                    reader.read(0, page * 2048, 10)
            else:
                assert reader.read(0, page * 2048, 10).tolist() == whole[page]
    with pytest.raises(DamagedData, match="page 2"):
        reader.read(0, 1000, 2048 * 3)  # in the middle of what is read


def test_a_shard_that_is_cut_or_removed_later_is_damaged_and_kills_nobody(tmp_path):
    store = write_toy_store(tmp_path / "store", shards=2, documents=100)
    reader = reader_of(store)
    reader.read(0, 0, 10)
    os.truncate(store.path / f"shard-00000{SUFFIX}", 9000)
    with pytest.raises(DamagedData, match="it ends too early"):
        reader.read(0, 5000, 10)
    (store.path / f"shard-00001{SUFFIX}").unlink()
    with pytest.raises(DamagedData, match="No such file"):
        reader.read(1, 0, 10)


@pytest.mark.parametrize("stores", [1, 3])
def test_any_number_of_readers_of_any_number_of_shards_have_few_files_open(tmp_path, stores):
    gc.collect()
    made = [write_toy_store(tmp_path / f"{number}", shards=50, documents=1) for number in range(stores)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    limit = before + 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        readers = [reader_of(store) for store in made for _ in range(2)]  # as for training and held-out rows
        for shard in (*range(50), *range(50)):
            assert [len(reader.read(shard, 0, 1)) for reader in readers] == [1] * len(readers)
        opened = len(os.listdir("/proc/self/fd")) - before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert 8 <= opened <= limit // 4
    readers.clear()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_threads_that_take_files_from_each_other_read_right_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens_module, "_OPEN_FILES", 8)
    store = write_toy_store(tmp_path / "store", shards=40, documents=1)
    readers, expected = [reader_of(store), reader_of(store)], store_tokens(store)

    def read(number: int) -> bool:
        shards = np.random.default_rng(number).integers(0, 40, 500).tolist()
        firsts = [readers[number % 2].read(shard, 0, 1)[0] for shard in shards]
        return np.array_equal(firsts, expected[store.first_tokens[shards]])

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(8)))


def test_a_disk_that_fails_is_not_called_damage(tmp_path, monkeypatch):
    store = write_toy_store(tmp_path / "store", shards=1)

    def fail(*_):
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(tokens_module.os, "pread", fail)
    with pytest.raises(RunError, match="Its disk or network fails"):
        reader_of(store).read(0, 0, 1)
