import errno
import json
import os
import shutil

import numpy as np
import pytest

from bert_horovod.batches.text import cutting, making
from bert_horovod.batches.text.cutting import Cutter, positions_of
from bert_horovod.batches.text.index import FORMATS, open_index
from bert_horovod.batches.text.index_check import CRC_BYTES, LARGE, TABLES, CheckedArray
from bert_horovod.corpus.shard import Shard, page_crcs
from bert_horovod.corpus.store import open_store
from bert_horovod.errors import DamagedData, RunError, UserError
from tests import toys
from tests.batches.reading import Window, index_windows, make_rows, token_documents
from tests.corpus.test_tokens import flip_unnoticed


def reference_windows(store, limit: int, held_out: bool, pair: str) -> list[Window]:
    """All greedy windows as the index should hold them: by second segment, then as in the store."""
    windows, base = [], 0
    for shard in store.shards:
        cut = Cutter(shard, limit).windows(np.asarray(shard.held_out) == held_out, pair, 0.0)
        parts = (cut.start + base, cut.first, cut.second)
        windows += [Window(*window) for window in zip(*(part.tolist() for part in parts), strict=True)]
        base += len(shard.tokens)
    return sorted(windows, key=lambda window: window.second)


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize(("pair", "specials"), [("next_sentence", 3), ("sentence_order", 3), ("none", 2)])
def test_unpacked_windows_are_the_greedy_ones_sorted(make_store, split, pair, specials):
    store = make_store(held_out=0.3)
    index = open_index(store, 32, pair, False, split)
    assert index_windows(index, store) == reference_windows(store, 32 - specials, split == "held_out", pair)
    assert index.rows == index.windows
    assert index.sequences == 1


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("pair", ["next_sentence", "none"])
def test_an_index_counts_what_it_holds(make_store, pair, packing):
    store = make_store(sections=1, sentences=100)
    index = open_index(store, 48, pair, packing)
    windows = index_windows(index, store)
    first, second = (np.array([window[i] for window in windows]) for i in (1, 2))
    positions = positions_of(first, second)
    assert positions.max() <= 48
    assert np.array_equal(index.classes.windows, np.bincount(second, minlength=49))
    assert np.array_equal(index.classes.sequences, np.bincount(positions, minlength=49))
    for length in np.unique(positions):
        assert index.classes.tokens[length] == (first + second)[positions == length].max()
    of_sequences = index.of_sequences(np.arange(index.windows)).number
    assert sorted(of_sequences) == list(range(index.windows))
    assert np.all(np.diff(positions[of_sequences]) >= 0)
    document = token_documents(store)[[window.start for window in windows]]
    for number in np.unique(second):
        documents = document[second == number]
        largest = np.bincount(documents).max()
        assert index.classes.largest_run[number] == largest
        end = index.classes.run_end[number]
        assert len(set(documents[end - largest : end])) == 1


def test_windows_are_drawn_short_as_far_as_rows_need_it(make_store, monkeypatch):
    stores = [make_store(documents=5, sections=1, sentences=2000, longest=60), make_store(documents=2000)]
    drawn = [cutting.short_shares(store, 512, "none")[0] for store in stores]
    assert 0 < drawn[0] < 0.8
    assert drawn[1] == 0
    monkeypatch.setattr(cutting, "_ENOUGH_FILL", 2)
    assert cutting.short_shares(stores[1], 512, "none")[0] == 0.8


def test_cells_are_the_same_in_one_range_and_in_many(make_store, monkeypatch):
    store = make_store()
    index = open_index(store, 32, "next_sentence", True)
    cells = [np.array(array.values) for array in (index.cell_start, index.cell_place, index.cell_shard)]
    shutil.rmtree(index.path)
    monkeypatch.setattr(making, "_CELLS_AT_ONCE", 7)
    index = open_index(store, 32, "next_sentence", True)
    for array, expected in zip((index.cell_start, index.cell_place, index.cell_shard), cells, strict=True):
        assert np.array_equal(array.values, expected)


@pytest.mark.parametrize("packing", [True, False])
def test_documents_that_repeat_others_have_no_windows(make_store, packing):
    listed = (0, 3, 19, 20, 21, 59)
    store = make_store(documents=20, duplicates=listed)
    document = token_documents(store)
    index = open_index(store, 32, "none", packing)
    seen = np.zeros(len(document), int)
    for start, first, second in index_windows(index, store):
        seen[start : start + first + second] += 1
    assert np.array_equal(seen, ~np.isin(document, listed))


def test_an_index_is_built_once_and_then_opened(make_store):
    store = make_store()
    with pytest.raises(RunError, match="--index_dir"):
        open_index(store, 16, "none", True, build=False)
    built = open_index(store, 16, "none", True)
    assert built.path.parent == store.path / "index"
    before = {file: file.stat().st_mtime_ns for file in built.path.rglob("*")}
    opened = open_index(store, 16, "none", True, build=False)
    assert index_windows(opened, store) == index_windows(built, store)
    assert {file: file.stat().st_mtime_ns for file in opened.path.rglob("*")} == before
    assert [path.name for path in (store.path / "index").iterdir()] == [built.path.name]


def test_other_settings_have_another_index_and_the_same_ones_the_same_bytes(make_store, tmp_path):
    store, other = make_store(held_out=0.5), make_store(held_out=0.5)
    paths = [
        open_index(*settings, directory=tmp_path / "indexes").path
        for settings in (
            (store, 16, "next_sentence", True, "train"),
            (store, 17, "next_sentence", True, "train"),
            (store, 16, "none", True, "train"),
            (store, 16, "sentence_order", True, "train"),
            (store, 16, "next_sentence", False, "train"),
            (store, 16, "next_sentence", True, "held_out"),
            (other, 16, "next_sentence", True, "train"),
        )
    ]
    assert len(set(paths)) == 6  # both splits are made together
    assert {path.parent for path in paths} == {tmp_path / "indexes"}
    assert not (store.path / "index").exists()
    again = open_index(store, 16, "next_sentence", True, directory=tmp_path / "again").path
    assert again.name == paths[0].name
    for file in again.rglob("*.*"):
        if file.name != "verified.jsonl":  # it has the times of these files
            assert file.read_bytes() == (paths[0] / file.relative_to(again)).read_bytes()


def test_a_directory_that_cannot_be_written_is_refused_by_flag(make_store, tmp_path):
    store = make_store()
    (store.path / "index").write_text("in the way")
    with pytest.raises(UserError, match="--index_dir"):
        open_index(store, 16, "none", True)
    assert open_index(store, 16, "none", True, directory=tmp_path / "elsewhere").windows


@pytest.mark.parametrize("name", ["start", "classes", "template_rows", "cell_place", "windows_by_shard"])
def test_a_damaged_index_is_refused_by_name(make_store, name):
    store = make_store()
    path = open_index(store, 16, "none", True).path
    (path / "train" / f"{name}.npy").write_bytes(b"")
    with pytest.raises(DamagedData, match=rf"{name}\.npy.*remove"):
        open_index(store, 16, "none", True)


@pytest.mark.parametrize("name", [*LARGE, *TABLES])
def test_a_byte_that_flips_while_rows_are_read_is_noticed_in_each_array(make_store, name):
    rows = make_rows(make_store(), 16)
    rows.windows(np.arange(rows.count))
    file = rows._index.path / "train" / f"{name}.npy"
    flip_unnoticed(file, file.stat().st_size - 5)
    for _ in range(2):
        with pytest.raises(
            DamagedData, match=rf"{name}\.npy .*page \d+ of its values has another CRC.*remove .*made anew"
        ):
            rows.windows(np.arange(rows.count))


def test_pages_are_compared_whenever_they_are_read_and_searched(tmp_path):
    values = np.sort(np.random.default_rng(0).integers(0, 9000, 3000))
    crcs = np.fromiter(page_crcs(values.tobytes(), CRC_BYTES), np.uint32)
    array, numbers = CheckedArray(values, crcs, tmp_path / "a.npy", tmp_path), np.arange(values[0], 9000)
    found = np.searchsorted(values, numbers, "right") - 1
    assert np.array_equal(array.find(numbers), found)
    values[1600] ^= 1 << 40  # in page 12, to which a search need not come
    assert np.array_equal(array.find(numbers[numbers < values[1400]]), found[numbers < values[1400]])
    assert np.array_equal(array[np.array([1535, 1664, 0])], values[[1535, 1664, 0]])
    for read in (lambda: array[np.array([1663])], lambda: array.find(numbers), array.compare):
        with pytest.raises(DamagedData, match="page 12"):
            read()


def test_an_index_of_an_earlier_format_is_left_and_one_is_made(make_store, monkeypatch):
    store = make_store()
    monkeypatch.setitem(FORMATS, "none", FORMATS["none"] - 1)
    earlier = open_index(store, 16, "none", True).path
    monkeypatch.undo()
    for file in earlier.rglob("*.crcs.npy"):
        file.unlink()
    index = open_index(store, 16, "none", True)
    assert index.path != earlier
    assert index_windows(index, store) == index_windows(open_index(store, 16, "none", True, build=False), store)


def test_an_index_that_another_host_finished_first_is_taken(make_store, monkeypatch):
    store = make_store()
    rename = os.rename

    def another_is_faster(source, target):
        shutil.copytree(source, target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", another_is_faster)
    index = open_index(store, 16, "none", False)
    assert index_windows(index, store) == reference_windows(store, 14, False, "none")
    assert [path.name for path in (store.path / "index").iterdir()] == [index.path.name]


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_failed_build_leaves_nothing_behind(make_store, monkeypatch, call):
    store = make_store()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(RunError, match=r"No space left on device.*--index_dir \(after prepare: of pretrain\)"):
        open_index(store, 16, "none", True)
    assert list((store.path / "index").iterdir()) == []


ONE_DOCUMENT = {"shards": 1, "documents": 1, "sections": 1, "sentences": 2000, "longest": 12}
ONE_SENTENCE = {"sentences": 1, "sections": 1}
NO_TWO = r"no section of a document with two sentences.* objective\.pair = \"none\", or pr"


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize(
    ("sizes", "pair", "split", "message", "possible"),
    [
        ({}, "none", "held_out", r"no held-out sections.*larger --held_out", ["none"]),
        ({"held_out": 1.0}, "none", "train", r"nothing to train on.*smaller --held_out", []),
        ({"documents": 20, "duplicates": tuple(range(60))}, "none", "train", "nothing to train on", []),
        (ONE_DOCUMENT, "next_sentence", "train", r"one document; .*\"sentence_order\" or", ["sentence_order", "none"]),
        (ONE_SENTENCE, "next_sentence", "train", NO_TWO, ["none"]),
        (ONE_SENTENCE, "sentence_order", "train", NO_TWO, ["none"]),
    ],
)
def test_a_store_without_rows_is_refused_with_advice(make_store, sizes, pair, split, message, possible, packing):
    store = make_store(**sizes)
    with pytest.raises(UserError, match=message) as caught:
        open_index(store, 32, pair, packing, split)
    assert sizes is not ONE_SENTENCE or "sequence_length" not in str(caught.value)
    for other in possible:
        assert open_index(store, 32, other, packing).windows


def test_advice_for_sequences_names_no_flag_of_prose(make_store):
    path = make_store(**ONE_SENTENCE).path
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["settings"]["documents"] = "6"
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"there are no pairs; set objective\.pair = \"none\"$"):
        open_index(open_store(path), 32, "next_sentence", True)


def two_sentences_of(tokens: int) -> Shard:
    """Ten documents of two sentences each."""
    sentences, documents = np.arange(21, dtype=np.uint32), np.arange(11, dtype=np.uint32)
    return Shard(
        tokens=np.full(20 * tokens, 9, np.uint16),
        sentences=tokens * sentences,
        sections=2 * documents,
        documents=documents,
        held_out=np.zeros(10, bool),
        document_hashes=np.zeros((10, 2), np.uint64),
        titles=np.frombuffer(b"\n" * 10, np.uint8),
    )


@pytest.mark.parametrize("pair", ["next_sentence", "sentence_order"])
def test_pairs_without_two_sentences_that_fit_are_refused(make_store, monkeypatch, pair):
    monkeypatch.setattr(toys, "toy_shard", lambda *_: two_sentences_of(20))
    store = make_store()
    with pytest.raises(UserError, match=r"no two sentences that fit .* = 32 .* or a larger sequence_length"):
        open_index(store, 32, pair, True)
    assert open_index(store, 43, pair, True).windows
