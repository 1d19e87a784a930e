"""A damaged or hostile row index is refused with one message, and nothing else happens."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_horovod.batches.text.rows import open_rows
from bert_horovod.corpus.store import Store, open_store
from bert_horovod.errors import ReportedError
from tests.mutations import apply, bounded, changes, sandbox
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store

RECIPE = toy_recipe()
ARRAYS = ("start", "first", "by_length", "classes", "template_rows", "template_lengths")


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


@bounded(12)
@given(st.lists(changes([f"{name}.npy" for name in ARRAYS] + ["hashes.json"]), min_size=1, max_size=2))
def test_any_change_is_refused_or_harmless(tmp_path_factory, original, made):
    expected = assemble(open_store(original))
    with sandbox(original, tmp_path_factory.getbasetemp() / "index_box") as box:
        (index,) = (box.directory / "index").iterdir()
        for name, change in made:
            if (index / name).is_file():
                apply(index / name, change, box.outside)
        arrays = box.read(assemble, open_store(box.directory))
        if isinstance(arrays, ReportedError):
            assert "remove" in str(arrays)
        else:
            assert all(map(np.array_equal, arrays, expected))
