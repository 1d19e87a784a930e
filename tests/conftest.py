"""What all tests share: the real text beside the project, and hosts joined by real links, where they can be had."""

import contextlib
import functools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from bert_horovod.corpus.store import Store
from bert_horovod.runtime.stopping import STOP_SIGNALS
from lab.cluster import Cluster, cluster, why_not
from tests.toys import SMALL_VOCABULARY, write_toy_store
from tests.two_ranks import TwoRanks

_RANKS = TwoRanks()
_SHARED = ("two_ranks", "transformers")
_PROCESSES = ("subprocess", "start_cluster", "horovod_runs", "cluster.launches", "lab.scripts")
_OUT_OF_TIME = "not begun: the time that --begin-until gives is over"
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory with real books and Google's vocabulary; skips where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs ../shared/data (real books and Google's vocabulary), which is not here")
    return SHARED_DATA


@pytest.fixture
def start_cluster() -> Iterator[Callable[..., Cluster]]:
    """Starts a cluster in a box, with the arguments of lab.cluster.cluster; skips where there can be none."""
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
def two_ranks() -> TwoRanks:
    """Two ranks that horovodrun has started, for jobs."""
    return _RANKS


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """PyTorch, imported where a test needs it: that takes seconds."""
    return pytest.importorskip("torch")


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    """transformers, likewise."""
    return pytest.importorskip("transformers")


@functools.cache
def shared(path: str) -> str | None:
    """What takes long to start and should be started for this file and others together: the word is in its text."""
    text = Path(path).read_text(encoding="utf-8")
    return next((word for word in _SHARED if word in text), None)


@functools.cache
def starts_processes(path: str) -> bool:
    """Whether a file's tests start programs, which takes a multiple of the time of the others."""
    text = Path(path).read_text(encoding="utf-8")
    return any(word in text for word in _PROCESSES)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--begin-until", type=float, metavar="SECONDS", help="begin no test later (seconds since 1970)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what tells most where time is short.

    That is: the golden losses, then what starts nothing, then files that share a start, beside each other; last those
    that start programs.
    """

    def order(item: pytest.Item) -> tuple[bool, bool, int]:
        path = str(item.path)
        programs = starts_processes(path) and not shared(path)
        return (item.path.parent.name != "golden", programs, (None, *_SHARED).index(shared(path)))

    items.sort(key=order)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what would begin too late."""
    until = item.config.getoption("--begin-until")
    if until is not None and time.time() > until:
        pytest.skip(_OUT_OF_TIME)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much was skipped for lack of time, because a run that leaves tests out is no proof of them."""
    left = sum(_OUT_OF_TIME in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    if left:
        terminalreporter.write_line(f"not begun: {left} tests, because the time given was over; run/test.sh runs all")


def pytest_collection_finish() -> None:
    """Give TensorFlow the toy recipe's one thread: there is a worker on each core."""
    if "tensorflow" in sys.modules:
        from bert_horovod.runtime.devices import use_devices

        use_devices(0, 1, 1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the two ranks where no file asks for them next; give back the signals that a run has taken."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if nextitem is None or shared(str(nextitem.path)) != "two_ranks":
        _RANKS.close()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """With --dist loadfile one worker takes all files that share a start; of those with two ranks, two workers."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class SharedTogether(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            start = shared(str(config.rootpath / file))
            half = " of exchanges" if start == "two_ranks" and "/exchange/" in file else ""
            return f"{start}{half}" if start else file

    return SharedTogether(config, log)
