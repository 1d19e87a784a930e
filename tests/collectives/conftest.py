"""One run of two real ranks, which all tests of collectives look at: starting one takes long."""

from pathlib import Path

import numpy as np
import pytest

from tests.collectives.two_ranks import RANKS
from tests.horovod_runs import run_ranks


@pytest.fixture(scope="package")
def ranks(tmp_path_factory) -> list[dict[str, np.ndarray]]:
    """What each rank of two_ranks.py got from its collectives."""
    directory = tmp_path_factory.mktemp("ranks")
    done = run_ranks(RANKS, Path(__file__).with_name("two_ranks.py"), str(directory))
    assert done.returncode == 0, done.stdout + done.stderr
    return [dict(np.load(directory / f"rank-{rank}.npz")) for rank in range(RANKS)]
