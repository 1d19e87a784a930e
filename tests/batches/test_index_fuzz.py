"""A damaged or hostile row index is refused with one message, and nothing else happens."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_horovod.batches.rows import open_rows
from bert_horovod.corpus.store import Store, open_store
from bert_horovod.errors import ReportedError
from bert_horovod.storage.reading import hash_file
from tests.mutations import apply, bounded, changes, sandbox
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store

RECIPE = toy_recipe()
ARRAYS = ("start", "first", "by_length", "classes", "template_rows", "template_lengths")
VALUES = [0, 1, 2, 3, 31, 32, 1 << 15, (1 << 16) - 1, 1 << 31, -1, -(1 << 62), (1 << 63) - 1]


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """A store with the index of its training rows."""
    path = tmp_path_factory.mktemp("original") / "store"
    store = write_toy_store(path, shards=2, documents=6, sentences=8, vocabulary=SMALL_VOCABULARY)
    assemble(store)
    return path


def assemble(store: Store, build: bool = True) -> list[np.ndarray]:
    """Some rows of two epochs."""
    rows = open_rows(store, RECIPE, 0, "train", build=build)
    return list(rows.assemble(np.arange(min(2 * rows.count, 60))).values())


def rehash(index: Path) -> None:
    """Make the hashes right after a change, as an attacker would."""
    arrays, hashes = [index / f"{name}.npy" for name in ARRAYS], index / "hashes.json"
    if not all(path.is_file() and path.stat().st_size < 1 << 20 for path in arrays):
        return
    if hashes.is_file() and not hashes.is_symlink():  # a FIFO would wait for a reader
        text = json.dumps({path.stem: hash_file(path) for path in arrays})
        hashes.write_text(text, encoding="utf-8")


@bounded(12)
@given(st.lists(changes([f"{name}.npy" for name in ARRAYS] + ["hashes.json"]), min_size=1, max_size=2), st.booleans())
def test_any_change_is_refused_or_harmless(tmp_path_factory, original, made, rehashed):
    expected = assemble(open_store(original))
    with sandbox(original, tmp_path_factory.getbasetemp() / "index_box") as box:
        (index,) = (box.directory / "index").iterdir()
        for name, change in made:
            if (index / name).is_file():
                apply(index / name, change, box.outside)
        if rehashed:
            rehash(index)
        found = box.read(assemble, open_store(box.directory))
        if isinstance(found, ReportedError):
            assert "remove" in str(found)
        elif not rehashed:
            assert all(map(np.array_equal, found, expected))


@bounded(12)
@given(
    st.lists(
        st.tuples(st.sampled_from(ARRAYS), st.integers(0, 1 << 20), st.sampled_from(VALUES)), min_size=1, max_size=3
    )
)
def test_any_values_with_right_hashes_are_refused_or_harmless(tmp_path_factory, original, made):
    with sandbox(original, tmp_path_factory.getbasetemp() / "index_box") as box:
        (index,) = (box.directory / "index").iterdir()
        for name, place, value in made:
            array = np.load(index / f"{name}.npy")
            array.reshape(-1)[place % array.size] = np.array(value).astype(array.dtype)
            np.save(index / f"{name}.npy", array)
        rehash(index)
        found = box.read(assemble, open_store(box.directory))
        assert isinstance(found, list | ReportedError)
