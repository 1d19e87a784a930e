import errno
import os
import shutil

import numpy as np
import pytest

from bert_horovod.batches.index import capacity, open_index, shard_windows
from bert_horovod.corpus.store import Shard
from bert_horovod.errors import UserError


def reference_windows(store, limit: int, held_out: bool) -> list[tuple[int, int, int, int, list[int]]]:
    """Shard, first token, tokens, document and sentence ends of each window, by a plain loop."""
    windows = []
    document = -1
    for number, shard in enumerate(store.shards):
        for section in range(len(shard.sections) - 1):
            if section in shard.documents[:-1]:
                document += 1
            if shard.held_out[section] != held_out:
                continue
            pieces = []
            for sentence in range(shard.sections[section], shard.sections[section + 1]):
                start, end = int(shard.sentences[sentence]), int(shard.sentences[sentence + 1])
                pieces += [(at, min(at + limit, end)) for at in range(start, end, limit)]
            while pieces:
                start = pieces[0][0]
                inside = [end - start for _, end in pieces if end - start <= limit]
                windows.append((number, start, inside[-1], document, inside))
                pieces = pieces[len(inside) :]
    return windows


def index_windows(index) -> list[tuple]:
    ends = [[]] * index.windows
    if index.next_sentence:
        bounds = zip(index.first_end[:-1], index.first_end[1:], strict=True)
        ends = [index.ends[low:high].tolist() for low, high in bounds]
    return list(
        zip(*(array.tolist() for array in (index.shard, index.start, index.count, index.document)), ends, strict=True)
    )


@pytest.mark.parametrize("sequence_length", [8, 13, 32, 128, 2000])
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_windows_are_those_of_a_plain_loop(make_store, sequence_length, split):
    store = make_store(held_out=0.3)
    index = open_index(store, sequence_length, True, split)
    assert index_windows(index) == reference_windows(store, sequence_length - 3, split == "held_out")


def test_single_segments_have_one_token_more(make_store):
    store = make_store()
    index = open_index(store, 16, False)
    expected = [(*window[:4], []) for window in reference_windows(store, 14, False)]
    assert index_windows(index) == expected
    assert index.count.max() == capacity(16, False) == 14


@pytest.mark.parametrize("next_sentence", [True, False])
def test_each_token_is_in_one_window_of_one_split(make_store, next_sentence):
    store = make_store(held_out=0.3, longest=60)
    seen = [np.zeros(len(shard.tokens), int) for shard in store.shards]
    for split in ("train", "held_out"):
        index = open_index(store, 24, next_sentence, split)
        for number, start, count, *_ in index_windows(index):
            seen[number][start : start + count] += 1
            section = np.searchsorted(store.shards[number].sentences[store.shards[number].sections], start, "right") - 1
            assert store.shards[number].held_out[section] == (split == "held_out")
    assert all(np.all(count == 1) for count in seen)


def test_windows_of_a_document_are_one_run(make_store):
    store = make_store(held_out=0.5)
    index = open_index(store, 16, True)
    assert len(index.first_window) == 1 + sum(len(shard.documents) - 1 for shard in store.shards)
    for document, (low, high) in enumerate(zip(index.first_window[:-1], index.first_window[1:], strict=True)):
        assert np.array_equal(np.flatnonzero(index.document == document), np.arange(low, high))


def test_an_index_is_built_once_and_then_opened(make_store):
    store = make_store()
    with pytest.raises(UserError, match="--index_dir"):
        open_index(store, 16, True, build=False)
    built = open_index(store, 16, True)
    assert built.path.parent == store.path / "index"
    before = {file: file.stat().st_mtime_ns for file in built.path.iterdir()}
    opened = open_index(store, 16, True, build=False)
    assert index_windows(opened) == index_windows(built)
    assert {file: file.stat().st_mtime_ns for file in opened.path.iterdir()} == before
    assert [path.name for path in (store.path / "index").iterdir()] == [built.path.name]


def test_other_settings_have_another_index(make_store, tmp_path):
    store, other = make_store(held_out=0.5), make_store(held_out=0.5)
    paths = [
        open_index(*settings, directory=tmp_path / "indexes").path
        for settings in (
            (store, 16, True, "train"),
            (store, 17, True, "train"),
            (store, 16, False, "train"),
            (store, 16, True, "held_out"),
            (other, 16, True, "train"),
        )
    ]
    assert len(set(paths)) == 5
    assert {path.parent for path in paths} == {tmp_path / "indexes"}
    assert not (store.path / "index").exists()


def test_a_directory_that_cannot_be_written_is_refused_by_flag(make_store, tmp_path):
    store = make_store()
    (store.path / "index").write_text("in the way")
    with pytest.raises(UserError, match="--index_dir"):
        open_index(store, 16, True)
    assert open_index(store, 16, True, directory=tmp_path / "elsewhere").windows


def test_a_damaged_index_is_refused_by_name(make_store):
    store = make_store()
    path = open_index(store, 16, True).path
    (path / "start.npy").write_bytes(b"")
    with pytest.raises(UserError, match=r"start\.npy.*remove"):
        open_index(store, 16, True)


def test_an_index_that_another_host_finished_first_is_taken(make_store, monkeypatch):
    store = make_store()
    rename = os.rename

    def another_is_faster(source, target):
        shutil.copytree(source, target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", another_is_faster)
    index = open_index(store, 16, True)
    assert index_windows(index) == reference_windows(store, 13, False)
    assert [path.name for path in (store.path / "index").iterdir()] == [index.path.name]


def test_a_failed_build_leaves_nothing_behind(make_store, monkeypatch):
    store = make_store()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left on device.*--index_dir"):
        open_index(store, 16, True)
    assert list((store.path / "index").iterdir()) == []


def test_a_shard_without_documents_is_passed_over():
    empty = np.zeros(1, np.uint32)
    shard = Shard(np.zeros(0, np.uint16), empty, empty, empty, np.zeros(0, bool), np.zeros((0, 2), np.uint64))
    assert [len(array) for array in shard_windows(shard, 5, False)] == [0] * 5


def test_a_split_without_windows_is_refused(make_store):
    store = make_store(held_out=0.0)
    with pytest.raises(UserError, match=r"no held-out sections.*larger --held_out"):
        open_index(store, 16, True, "held_out")
    with pytest.raises(UserError, match=r"nothing to train on.*smaller --held_out"):
        open_index(make_store(held_out=1.0), 16, True)
    assert list((store.path / "index").iterdir()) == []


def test_pairs_of_a_single_document_are_refused(make_store):
    store = make_store(shards=1, documents=1)
    with pytest.raises(UserError, match=r"objective\.next_sentence = false"):
        open_index(store, 16, True)
    assert open_index(store, 16, False).windows
