"""A toy store."""

import pytest

from bert_horovod.corpus.store import Store
from tests.toys import SMALL_VOCABULARY, write_toy_store


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> Store:
    """About 600 windows of 32 tokens."""
    return write_toy_store(tmp_path_factory.mktemp("cluster") / "store", held_out=0.1, vocabulary=SMALL_VOCABULARY)
