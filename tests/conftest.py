"""What all tests share: the real text beside the project, and hosts joined by real links, where they can be had."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.cluster import Cluster, cluster, why_not

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory with real books and Google's vocabulary; skips where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs ../shared/data (real books and Google's vocabulary), which is not here")
    return SHARED_DATA


@pytest.fixture
def start_cluster() -> Iterator[Callable[..., Cluster]]:
    """Starts a cluster in a box, with the arguments of benchmarks.cluster.cluster; skips where there can be none."""
    lacking = why_not()
    if lacking:
        pytest.skip(lacking)
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(cluster(*arguments, **options))
