"""Row indexes that several processes make: the same bytes, and nothing left of what failed."""

import os
import shutil
from concurrent.futures import ProcessPoolExecutor

import pytest

from bert_horovod.batches.text import making
from bert_horovod.batches.text.crews import Crew, PoolCrew
from bert_horovod.batches.text.index import index_path, open_index
from bert_horovod.batches.text.making import make_index
from bert_horovod.batches.text.rows import open_rows
from bert_horovod.errors import UserError
from bert_horovod.storage.writing import lock
from tests.batches.text.index_jobs import fail_on_rank_1, make_together
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store

KIND = (32, "next_sentence", True)


@pytest.fixture
def store(tmp_path):
    return write_toy_store(tmp_path / "store", shards=5, held_out=0.2, vocabulary=SMALL_VOCABULARY)


def content(path):
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "verified.jsonl"
    }


def test_workers_write_the_bytes_that_one_process_writes(store, tmp_path):
    alone = content(open_index(store, *KIND).path)
    path = index_path(store, *KIND, tmp_path / "by-workers")
    with ProcessPoolExecutor(2) as executor:
        make_index(store, path, *KIND, PoolCrew(executor, tmp_path), missing=True)
    assert content(path) == alone


def test_two_ranks_share_the_shards_and_write_the_bytes_of_one(two_ranks, store, tmp_path):
    recipe = toy_recipe()
    expected = open_rows(store, recipe, 0, "train", tmp_path / "alone")
    answers = [answer.value for answer in two_ranks.run(make_together, store.path, recipe, None)]
    assert [answer["cut"] for answer in answers] == [[0, 2, 4], [1, 3]]
    name = expected._index.path.name
    for answer in answers:
        assert answer["ids"] == expected.assemble(list(range(8)))["input_ids"].tolist()
        assert answer["left"] == [name]
    assert content(store.path / "index" / name) == content(expected._index.path)


@pytest.mark.full
@pytest.mark.parametrize("there", [None, 0, 1])
def test_hosts_that_share_no_directory_make_one_each(two_ranks, store, tmp_path, there):
    """`there`: the host that has the index already."""
    directories = [tmp_path / "host-0", tmp_path / "host-1"]
    if there is not None:
        open_index(store, *KIND, directory=directories[there])
    answers = [answer.value for answer in two_ranks.run(make_together, store.path, toy_recipe(), directories)]
    expected = [[] if rank == there else [0, 1, 2, 3, 4] for rank in range(2)]
    assert [sorted(answer["cut"]) for answer in answers] == expected
    assert answers[0]["left"] == answers[1]["left"]


@pytest.mark.full
def test_an_error_of_one_rank_is_told_by_both_and_leaves_nothing(two_ranks, store):
    answers = [answer.value for answer in two_ranks.run(fail_on_rank_1, store.path, toy_recipe())]
    assert answers[1].startswith("RunError: cannot write the row index to ")
    assert "because of another rank: cannot write the row index" in answers[0]
    assert os.listdir(store.path / "index") == []


def test_what_a_killed_maker_left_is_removed_and_what_a_living_one_writes_stays(store):
    path = index_path(store, *KIND, None)
    dead, living = (path.with_name(f".{path.name}.{name}.partial") for name in ("dead", "living"))
    for left in (dead, living):
        left.mkdir(parents=True)
        (left / "00000.arrays").touch()
    held = lock(living / ".lock", "")
    open_index(store, *KIND)
    os.close(held)
    assert sorted(entry.name for entry in path.parent.iterdir()) == sorted([path.name, living.name])


def test_a_store_that_changes_meanwhile_is_noticed(store, monkeypatch):
    plan = making.RowPlan(store.path, "another", store.path, store.path, *KIND, (0.0, 0.0))
    with pytest.raises(making.RunError, match="has changed while its row index was made"):
        making.cut_piece(plan, 0)


def test_a_split_that_is_refused_does_not_stop_the_other(tmp_path):
    store = write_toy_store(tmp_path / "all", vocabulary=SMALL_VOCABULARY)
    assert open_index(store, *KIND).rows
    with pytest.raises(UserError, match="has no held-out sections"):
        open_index(store, *KIND, "held_out", build=False)


def test_a_copied_index_is_checked_once(store, tmp_path, monkeypatch, capsys):
    path = open_index(store, *KIND).path
    copy = tmp_path / "copied" / path.name
    shutil.copytree(path, copy)
    open_index(store, *KIND, directory=tmp_path / "copied")
    lines = (copy / "verified.jsonl").read_text().splitlines()
    assert len(lines) == 2 * 8 + 8  # the files of both splits, and those of the split that was opened
    open_index(store, *KIND, directory=tmp_path / "copied")
    assert (copy / "verified.jsonl").read_text().splitlines() == lines
    assert Crew().exchange(1) == [1]
