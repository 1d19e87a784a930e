"""Signals: the first asks, a second ends at once, and what was ignored before stays so."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bert_horovod.runtime.stopping import STOP_SIGNALS, is_same_request
from tests.horovod_runs import PATIENCE_S, PROJECT

# A run whose step is in C and lets no handler of Python's run.
PROGRAM = f"""
import hashlib, signal, sys
sys.path.insert(0, {str(PROJECT)!r})
from bert_horovod.runtime.stopping import STOP
assert signal.getsignal(signal.SIGHUP) == getattr(signal, sys.argv[1])
STOP.begin(speaks=True)
if sys.argv[2:]:
    STOP.notice("told")
print("step", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", (1 << 31) - 1)
"""


@contextlib.contextmanager
def started(hang_up: str, *notice: str) -> Iterator[subprocess.Popen]:
    """The program in its step; it is ended in the end."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, hang_up, *notice],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: (
            [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGHUP)]
            + [signal.signal(signal.SIGHUP, getattr(signal, hang_up))]
        ),
    ) as run:
        try:
            assert run.stdout.readline() == "step\n"
            yield run
        finally:
            run.kill()


@pytest.mark.full
@pytest.mark.parametrize("second", STOP_SIGNALS[:3])
def test_a_second_signal_ends_at_once_without_a_traceback(second):
    with started("SIG_DFL") as run:
        run.send_signal(signal.SIGHUP)
        asked = run.stderr.readline()
        run.send_signal(second)
        rest = run.stderr.read()
        assert run.wait(PATIENCE_S) == 128 + second
    assert asked == (
        "bert-horovod: SIGHUP: the run saves after this step and ends; once more ends it at once, without saving\n"
    )
    assert rest == (
        f"bert-horovod: {signal.Signals(second).name} once more: ended without saving; "
        "the same command resumes from the last checkpoint\n"
    )


@pytest.mark.full
def test_the_signal_that_follows_a_notice_is_the_first_and_nohup_is_heeded():
    with started("SIG_DFL", "notice") as run:
        run.send_signal(signal.SIGTERM)
        assert run.stderr.readline() == "bert-horovod: told: the run saves after this step and ends\n"
        assert run.stderr.readline().startswith("bert-horovod: SIGTERM: the run saves after this step and ends; once")
    with started("SIG_IGN") as run:
        run.send_signal(signal.SIGHUP)
        run.send_signal(signal.SIGTERM)
        assert run.stderr.readline().startswith("bert-horovod: SIGTERM: the run saves")


@pytest.mark.parametrize(
    ("number", "since_s", "same"),
    [
        (signal.SIGHUP, 0.1, True),
        (signal.SIGHUP, 1.5, False),
        (signal.SIGINT, 0.1, False),
        (signal.SIGTERM, 0.1, False),
    ],
)
def test_a_terminal_that_is_closed_asks_twice_and_means_once(number, since_s, same):
    assert is_same_request(number, since_s) == same
