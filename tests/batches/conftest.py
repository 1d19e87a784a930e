"""Toy token stores for the tests of rows."""

from collections.abc import Callable

import pytest

from bert_horovod.corpus.store import Store
from tests.toys import write_toy_store


@pytest.fixture
def make_store(tmp_path) -> Callable[..., Store]:
    """A function that writes and opens a toy store (see tests/toys.py); each call makes another one."""
    calls = []

    def make(**sizes) -> Store:
        calls.append(None)
        return write_toy_store(tmp_path / f"store-{len(calls)}", seed=len(calls), **sizes)

    return make
