"""What all tests share: the real text beside the project, and hosts joined by real links, where they can be had."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.cluster import Cluster, cluster, why_not
from bert_horovod.corpus.store import Store
from tests.horovod_runs import run_ranks
from tests.toy_runs import PROJECT, pretrain_arguments
from tests.toys import SMALL_VOCABULARY, write_toy_store

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


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> Store:
    """About 600 windows of 32 tokens, a tenth of the sections held out."""
    return write_toy_store(tmp_path_factory.mktemp("data") / "store", held_out=0.1, vocabulary=SMALL_VOCABULARY)


@pytest.fixture(scope="session")
def pretrain(tmp_path_factory, store) -> Callable[..., Path]:
    """A function that runs run_pretraining.py, alone or under horovodrun, and returns its output directory."""

    def run(ranks: int = 1, output_dir: Path | None = None, flags: tuple[str, ...] = (), **sections) -> Path:
        output_dir = output_dir or tmp_path_factory.mktemp("run")
        arguments = pretrain_arguments(tmp_path_factory.mktemp("recipe"), store, output_dir, **sections) + list(flags)
        script = PROJECT / "run" / "run_pretraining.py"
        if ranks > 1:
            done = run_ranks(ranks, script, *arguments)
        else:
            done = subprocess.run(
                [sys.executable, script, *arguments],
                capture_output=True,
                text=True,
                timeout=300,
                env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
                check=False,
            )
        assert done.returncode == 0, done.stdout + done.stderr
        return output_dir

    return run
