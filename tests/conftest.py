"""What all tests share: the real text beside the project, and hosts joined by real links, where they can be had."""

import collections
import contextlib
import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from bert_horovod.corpus.store import Store
from bert_horovod.runtime.stopping import STOP_SIGNALS
from bert_horovod.storage import connections
from lab.cluster import Cluster, cluster, why_not
from tests.servers import FileServers
from tests.toys import SMALL_VOCABULARY, write_toy_store
from tests.two_ranks import Ranks

_RANKS = Ranks()
_SHARED = ("two_ranks", "transformers")
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
def started_servers(tmp_path_factory) -> Iterator[FileServers]:
    """S3 and HTTP; for `elsewhere`."""
    servers = FileServers(tmp_path_factory.mktemp("servers"))
    yield servers
    for server in (servers.s3, servers.http):
        server.kill()


@pytest.fixture
def elsewhere(started_servers, monkeypatch) -> FileServers:
    """The servers, with the variables by which they are reached and no connection yet."""
    for name, value in started_servers.variables.items():
        monkeypatch.setenv(name, value)
    connections._filesystems.clear()
    return started_servers


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> Store:
    """About 600 windows of 32 tokens, a tenth of the sections held out."""
    return write_toy_store(tmp_path_factory.mktemp("data") / "store", held_out=0.1, vocabulary=SMALL_VOCABULARY)


@pytest.fixture(scope="session")
def two_ranks() -> Ranks:
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


def shared_start(item: pytest.Item) -> str | None:
    """What a test asks for that takes long to start, and should be started for it and others together."""
    return next((name for name in _SHARED if name in getattr(item, "fixturenames", ())), None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--begin-until", type=float, metavar="SECONDS", help="begin no test later (seconds since 1970)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what tells most where time is short, and give each worker what belongs together.

    First the golden losses, and what one worker is busy with to the end: all with two ranks, and tests with an
    xdist_group of their own. Then what starts nothing, then transformers, last what starts programs.
    One worker takes a file's tests, or all that share a start; of those with two ranks, two workers.
    """

    def order(item: pytest.Item) -> tuple[bool, bool, bool, bool]:
        start = shared_start(item)
        late = start != "two_ranks" and item.get_closest_marker("xdist_group") is None
        programs = start is None and item.get_closest_marker("full") is not None
        return (item.path.parent.name != "golden", late, programs, start is not None)

    items.sort(key=order)
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        group = shared_start(item) or item.nodeid.partition("::")[0]
        half = " of exchanges" if group == "two_ranks" and "exchange" in item.path.parts else ""
        item.add_marker(pytest.mark.xdist_group(group + half))


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
    seconds: collections.Counter[str] = collections.Counter()
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    if len(seconds) > 10:
        terminalreporter.write_sep("=", "slowest 10 files")
        for file, total in seconds.most_common(10):
            terminalreporter.write_line(f"{total:.0f} s {file}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Give TensorFlow the toy recipe's one thread: there is a worker on each core. Tell pytest-xdist the groups.

    pytest-xdist 3.8 writes an item's group where pytest 9.2 does not read its name any more: it would send each test to
    the next worker that is free, so that each worker makes the fixtures of all modules.
    """
    if getattr(session.config.option, "loadgroup", False):
        for item in session.items:
            group = f"@{item.get_closest_marker('xdist_group').args[0]}"
            if not item.nodeid.endswith(group):
                item._id = type(item._id).parse(item.nodeid + group)
    if "tensorflow" in sys.modules:
        from bert_horovod.runtime.devices import use_devices

        use_devices(0, 1, 1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the two ranks where no test asks for them next; give back the signals that a run has taken."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if nextitem is None or shared_start(nextitem) != "two_ranks":
        _RANKS.close()
