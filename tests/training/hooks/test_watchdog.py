"""A rank that waits too long ends the job, and says what it waits for."""

import subprocess

import pytest

from bert_horovod.collectives.world import World
from bert_horovod.training.hooks.watchdog import EXIT_CODE, Status, Watchdog, explain
from tests.cluster.launches import LAUNCH, QUICK, launched
from tests.horovod_runs import run_python
from tests.toy_runs import pretrain_arguments

FIRST_STEP = "step 1/"
# Longer than anything at the start takes on a machine that does other things too.
STALL = {"stall_s": 10.0}
WAITS = Status(9, "node1", 17, "forward, backward and update, in the collectives gradients.1", True)
NAMED = (
    "bert-horovod: error: rank 1 on localhost gave no sign of life; of those that noticed it rank 0 on localhost ended "
    "first, with exit code "
)
READS = Status(9, "node2", 17, "reading rows", False)


def errors_of_a_stop(store, tmp_path, execution: dict) -> list[str]:
    """The lines that two ranks leave of which one is stopped."""
    pytest.importorskip("horovod")
    arguments = pretrain_arguments(tmp_path, store, tmp_path / "run", phase={"steps": 100_000}, execution=execution)
    with launched([*LAUNCH, "-np", "2", "--", "pretrain", *arguments], tmp_path, str(tmp_path / "run")) as run:
        run.await_output(FIRST_STEP)
        run.stop(1)
        _, errors = run.end(code=1)
        run.await_no_process()
    return errors.splitlines()


@pytest.mark.full
def test_a_rank_that_is_stopped_ends_the_job_and_is_named(store, tmp_path):
    *stacks, stalled, silent, blamed, last = errors_of_a_stop(store, tmp_path, QUICK | STALL)
    assert any("in _train_phase" in line for line in stacks)
    assert stalled.startswith("bert-horovod: error: stalled: rank 0 on ")
    assert " s: step " in stalled
    assert "in the collectives " in stalled
    assert stalled.endswith("; expected at most execution.stall_s = 10 (raise it if a step takes longer)")
    assert "gives no sign of life: stopped, dead or cut off. It was at step " in silent
    assert blamed == "so rank 0 waits for rank 1"
    assert last == f"{NAMED}{EXIT_CODE}"


@pytest.mark.slow
def test_a_rank_that_is_stopped_until_its_connection_ends_is_named_by_those_that_lost_it(store, tmp_path):
    *_, lost, last = errors_of_a_stop(store, tmp_path, QUICK)
    assert lost.startswith("bert-horovod: error: rank 1 on ")
    assert " gives no sign of life: stopped, dead or cut off. It was at step " in lost
    assert lost.endswith(" has lost it; the same command resumes")
    assert last == f"{NAMED}1"


def watched(program: str) -> subprocess.CompletedProcess:
    """A process with a watchdog that beats often."""
    begin = (
        "import ctypes, sys, time\n"
        "from bert_horovod.training.hooks import watchdog\n"
        "from bert_horovod.collectives.world import World\n"
    )
    return run_python("-c", begin + program)


@pytest.mark.full
def test_a_rank_that_holds_pythons_lock_for_too_long_is_ended_too():
    done = watched(
        "watchdog.BEAT_S = watchdog._PATIENCE_S = 0.2\n"
        "watchdog.Watchdog(World(), 0.8)\n"
        "time.sleep(0.5)\n"
        "ctypes.PyDLL(None).sleep(60)\n"
    )
    assert done.returncode == 1
    assert "Timeout (0:00:01" in done.stderr
    assert 'File "<string>", line 7' in done.stderr


@pytest.mark.full
def test_long_work_may_take_longer():
    done = watched(
        "watchdog.BEAT_S = 0.1\n"
        'watchdog.Watchdog(World(), 0.2).begin("opening the rows", 1, 2.0)\n'
        "time.sleep(1)\n"
        'print("still here", flush=True)\n'
        "time.sleep(60)\n"
    )
    assert (done.returncode, done.stdout) == (EXIT_CODE, "still here\n")
    last = done.stderr.splitlines()[-1]
    assert "step 1, opening the rows; expected at most execution.stall_s = 0.2 and 2 more" in last


def test_a_rank_that_gets_on_with_its_work_is_left_alone(monkeypatch):
    monkeypatch.setattr("bert_horovod.training.hooks.watchdog.BEAT_S", 0.02)
    limit_s = 1.0
    watchdog = Watchdog(World(), limit_s)
    for step in range(60):
        watchdog.begin("working", step)
        watchdog._closed.wait(2.4 * limit_s / 60)
    watchdog.close()


@pytest.mark.parametrize(
    ("mine", "others", "last"),
    [
        (WAITS, {1: (READS, True), 2: (WAITS, True)}, "so ranks 0, 2 wait for rank 1"),
        (READS, {1: (WAITS, True)}, "so rank 1 waits for rank 0"),
        (WAITS, {1: (WAITS, False), 2: (READS, True)}, "so ranks 0, 2 wait for rank 1"),
        (WAITS, {1: (None, False)}, "so rank 0 waits for rank 1"),
        (
            WAITS,
            {1: (WAITS, True)},
            "so all ranks wait for each other: the network between them carries nothing, or ranks differ",
        ),
    ],
)
def test_who_waits_for_whom(mine, others, last):
    lines = explain(0, mine, others, len(others) + 1, heard=True)
    assert lines[-1] == last
    assert len(lines) == len(others) + 1


def test_what_is_not_known_is_said():
    assert explain(0, WAITS, {}, 1, heard=False) == []
    (line,) = explain(0, WAITS, {}, 2, heard=False)
    assert "horovodrun's rendezvous server did not answer" in line
    never, _ = explain(0, WAITS, {1: (None, False)}, 2, heard=True)
    assert never == "rank 1: never gave a sign of life"
