"""bert-horovod launch with two real ranks on this host: signals, last words, and who outlives whom."""

import importlib.util
import os
import re
import signal
import time

import pytest

from bert_horovod.cluster.doctor import ask
from bert_horovod.cluster.launching import deadline
from bert_horovod.cluster.launching.launcher import LaunchPlan, _Ranks, check_plan, command_line
from bert_horovod.errors import UserError
from tests.cluster.launches import FAULTS, LAUNCH, QUICK, launched, require_mpi
from tests.horovod_runs import PATIENCE_S
from tests.toy_runs import newest, pretrain_arguments

needs_horovod = pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod")
FIRST_STEP = "step 1/"


@pytest.fixture(params=["gloo", pytest.param("mpi", marks=pytest.mark.slow)])
def controller(request) -> list[str]:
    """The flags for each way to join ranks."""
    if request.param == "mpi":
        require_mpi()
        return ["--mpi"]
    return []


@pytest.fixture
def start(tmp_path, store):
    """A function that starts two ranks of a run that would go on for hours."""

    def begin(*flags: str, launch_flags: list[str] | None = None):
        output_dir = tmp_path / "run"
        arguments = pretrain_arguments(tmp_path, store, output_dir, phase={"steps": 100_000}, execution=QUICK)
        words = [*LAUNCH, *(launch_flags or []), "-np", "2", "--", "pretrain", *arguments, *flags]
        return launched(words, tmp_path, str(output_dir))

    return begin


def without_epochs(errors: str) -> list[str]:
    """The lines but for the warning that such a small store is read thousands of times."""
    return [line for line in errors.splitlines() if "epochs of this token store" not in line]


@pytest.mark.full
@needs_horovod
def test_sigusr1_saves_and_the_same_command_resumes_to_the_end(start, tmp_path):
    with start() as run:
        run.await_output(FIRST_STEP)
        run.signal(signal.SIGUSR1)
        output, errors = run.end()
    assert "asked to stop: saved at step" in output
    assert "asked the ranks to save and stop" in errors
    assert len(without_epochs(errors)) == 1
    step = int(newest(tmp_path / "run").name.removeprefix("step-"))
    with start("--max_steps", str(step + 2)) as run:
        output, errors = run.end()
    assert not without_epochs(errors)
    assert f"resuming from {tmp_path / 'run'}" in output
    assert newest(tmp_path / "run").name == f"step-{step + 2:08d}"
    assert "]<std" not in output


@pytest.mark.slow
@needs_horovod
def test_sigterm_to_every_process_of_the_job_saves(start, controller):
    with start(launch_flags=[*controller, "--restarts", "1"]) as run:
        run.await_output(FIRST_STEP)
        for process in run.processes():
            os.kill(process, signal.SIGTERM)
        output, _ = run.end()
    assert "asked to stop: saved at step" in output


@pytest.mark.slow
@needs_horovod
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_before_the_ranks_have_started_is_not_lost(start, number):
    with start() as run:
        while len(run.processes()) < 2:  # horovodrun is there
            time.sleep(0.05)
        run.signal(number)
        output, _ = run.end()
    assert "asked to stop: saved at step" in output


@pytest.mark.slow
@needs_horovod
def test_a_request_waits_for_a_step_that_takes_longer_than_horovodruns_patience(start, controller, tmp_path):
    with start(launch_flags=controller) as run:
        run.await_output(FIRST_STEP)
        run.stop(1)  # so that this step takes as long
        for process in run.processes():
            os.kill(process, signal.SIGTERM)
        time.sleep(7)  # horovodrun by itself kills after 5
        os.kill(run.rank(1), signal.SIGCONT)
        output, _ = run.end()
    step = re.search(r"asked to stop: saved at step (\d+)", output)[1]
    assert newest(tmp_path / "run").name == f"step-{int(step):08d}"


@pytest.mark.slow
@needs_horovod
def test_a_second_sigterm_kills(start, controller):
    with start(launch_flags=[*controller, "--restarts", "1"]) as run:
        run.await_output(FIRST_STEP)
        run.stop(1)  # a rank that hangs, so that no vote ends
        run.signal(signal.SIGTERM)
        time.sleep(0.5)
        run.signal(signal.SIGTERM)
        _, errors = run.end(code=128 + signal.SIGTERM)
        run.await_no_process()
    assert "killing the ranks" in errors


@needs_horovod
def test_a_users_mistake_is_one_message_and_exit_code_2(start, controller, tmp_path):
    with start("--set", "phase.0.learning_rate=-1", launch_flags=[*controller, "--restarts", "1"]) as run:
        output, errors = run.end(code=2)
    assert output == ""
    wrong = "phase.0.learning_rate = -1: expected more than 0 and at most 10000.0"
    assert errors == f"bert-horovod: error: the recipe {tmp_path / 'recipe.toml'} with --set: {wrong}\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.full
@needs_horovod
def test_a_rank_that_fails_is_named_after_its_last_words_though_another_ends_first(
    start, controller, tmp_path, monkeypatch
):
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with start(launch_flags=controller) as run:
        run.await_output(FIRST_STEP)
        os.kill(run.rank(1), signal.SIGUSR2)  # Horovod tells rank 0, which ends while this one still tidies up
        _, errors = run.end(code=1)
        run.await_no_process()
    assert errors.endswith(
        "\nRuntimeError: words of a rank that fails\n"
        "bert-horovod: error: rank 1 on localhost ended first, with exit code 1\n"
    )
    assert errors.count("Traceback (") == 1


@pytest.mark.full
@needs_horovod
def test_no_rank_outlives_the_launcher(start, controller):
    with start(launch_flags=controller) as run:
        run.await_output(FIRST_STEP)
        run.signal(signal.SIGKILL)
        run.await_no_process()


@pytest.mark.full
@needs_horovod
def test_nothing_outlives_a_launcher_that_is_killed_before_its_ranks_start(start):
    with start() as run:
        end = time.monotonic() + 60
        while len(run.processes()) < 3:  # launch, horovodrun, and its fork that imports TensorFlow for seconds
            assert time.monotonic() < end
            time.sleep(0.05)
        run.signal(signal.SIGKILL)
        end = time.monotonic() + 1.5
        while left := run.processes():
            assert time.monotonic() < end, left
            time.sleep(0.05)


@pytest.mark.full
@needs_horovod
def test_a_host_that_cannot_be_reached_is_named(tmp_path):
    words = [*LAUNCH, "-np", "2", "-H", "no-such-host.invalid:2", "--", "fill-mask", "--checkpoint", str(tmp_path), "x"]
    with launched(words, tmp_path, str(tmp_path)) as run:
        _, errors = run.end(code=1)
    assert "no-such-host.invalid" in errors
    assert "could not connect to some hosts via ssh" in errors
    assert "Traceback" not in errors


@needs_horovod
def test_mpi_without_mpirun_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="found no mpirun on PATH"):
        check_plan(LaunchPlan(2, {"localhost": 2}, ["pretrain"], None, mpi=True))


@pytest.mark.parametrize(("ranks", "uneven"), [(2, False), (3, True), (4, False), (5, True)])
def test_ranks_are_told_that_hosts_have_other_numbers_of_them(ranks, uneven):
    ours = _Ranks(LaunchPlan(ranks, {"a": 2, "b": 2, "c": 1}, ["pretrain"], None), "an attempt")._environment()
    assert ("BERT_HOROVOD_UNEVEN" in ours) == uneven
    assert ours["BERT_HOROVOD_ATTEMPT"] == "an attempt"
    assert "BERT_HOROVOD_RANKS_MAY_LIVE" not in ours


def test_a_host_that_does_not_answer_holds_up_no_request_to_stop(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(ask, "ssh", lambda *words: ["sleep", "3600"])
    monkeypatch.setattr(deadline, "_ANSWER_S", 0.1)
    ranks, told = _Ranks(LaunchPlan(1, {"a": 1}, ["pretrain"], None), "an attempt"), ""
    ranks._ask_to_stop(signal.SIGTERM, tmp_path / "on a disk of rank 0" / "stop")
    end = time.monotonic() + PATIENCE_S
    while not told and time.monotonic() < end:
        time.sleep(0.05)
        told = capfd.readouterr().err
    assert "cannot ask the ranks to stop" in told


def test_what_the_user_says_of_the_network_reaches_the_starter():
    plan = LaunchPlan(2, {"a": 2, "b": 1}, ["verify"], None, network_interfaces="eth1", ssh_port=2222)
    words = " ".join(command_line(plan, {}))
    assert "--gloo --disable-cache -np 2 -H a:2,b:1 --network-interfaces eth1 --ssh-port 2222" in words
    words = " ".join(
        command_line(LaunchPlan(**(plan.__dict__ | {"mpi": True})), {"A": "1", "CUDA_VISIBLE_DEVICES": "0"})
    )
    assert "-mca btl_tcp_if_include eth1 -mca oob_tcp_if_include eth1 -mca plm_rsh_args -p 2222 -x A " in words
    assert "CUDA_VISIBLE_DEVICES" not in words


def take(lines: list[str], hosts: dict[str, int] | None = None) -> _Ranks:
    ranks = _Ranks(LaunchPlan(100, hosts or {"a": 64, "b": 64}, ["verify"], None), "id")
    for line in lines:
        ranks._take(line)
    return ranks


def test_lines_that_open_mpi_has_torn_are_put_together_by_rank(capsys):
    take(
        [
            "[1,0]<stdout>:whole\n",
            "[1,0]<stdout>:be[1,1]<stdout>:other\n",
            "[1,0]<stderr>:error\n",
            "[1,0]<stdout>:gun\n",
        ]
    )
    assert capsys.readouterr() == ("whole\nbegun\n", "error\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Process 70 exit with status code 1.", "rank 70 on b ended first, with exit code 1"),
        ("Process 3 exit with status code 255.", "rank 3 on a ended first, with exit code 255 (of ssh: killed"),
        ("Process 3 exit with status code 139.", "rank 3 on a ended first, with SIGSEGV"),
        (
            "process rank 70 with PID 12 on node b exited on signal 9 (Killed).",
            "rank 70 on b ended first, with SIGKILL",
        ),
        ("  Process name: [[9,1],64]\n  Exit code:    3\n", "rank 64 on b ended first, with exit code 3"),
        ("something else", "horovodrun failed: something else"),
        ("", "horovodrun failed: SIGKILL"),
    ],
)
def test_the_first_to_end_is_blamed_however_many_follow(capfd, line, message):
    followers = [f"Process {rank} exit with status code 143.\n" for rank in range(70)] if line[:7] == "Process" else []
    assert take([f"{line}\n", *followers, "[70]<stderr>:its last words\n"])._explain(-9) == 1
    errors = capfd.readouterr().err
    assert message in errors
    assert ("its last words" in errors) == ("rank 70" in message)


def test_a_killed_ssh_client_is_not_taken_for_a_host_whose_memory_was_full(capfd):
    for host, cause in (
        ("elsewhere.invalid", "SIGKILL of the ssh client on this host, or of the rank: by hand, or by the kernel if a"),
        ("127.0.0.1", "SIGKILL: by hand, or by the kernel if the host's memory was full"),
    ):
        take(["Process 0 exit with status code 137.\n"], {host: 1})._explain(1)
        assert f"rank 0 on {host} ended first, with {cause}" in capfd.readouterr().err


SHUT_DOWN = "[0]<stderr>:Traceback (most recent call last):\n[0]<stderr>:UnknownError: Horovod has been shut down.\n"
OWN = "[1]<stderr>:Traceback (most recent call last):\n[1]<stderr>:MemoryError\n"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["Process 0 exit with status code 1.\n", OWN, "Process 1 exit with status code 143.\n"], "rank 1 on a"),
        (["Process 0 exit with status code 1.\n", OWN], "rank 1 on a"),
        (["Process 0 exit with status code 1.\n", "Process 1 exit with status code 137.\n"], "rank 1 on a"),
        (["Process 0 exit with status code 1.\n", "Process 1 exit with status code 143.\n"], "rank 0 on a"),
        (["Process 1 exit with status code 143.\n", "Process 0 exit with status code 1.\n"], "rank 1 on a"),
    ],
)
def test_a_rank_that_others_made_end_is_not_blamed(capfd, lines, message):
    take([SHUT_DOWN, *lines])._explain(1)
    assert f"{message} ended first" in capfd.readouterr().err


def test_a_rank_that_prints_on_after_a_traceback_is_heard(capfd):
    take([SHUT_DOWN, "[0]<stdout>:step 1/9\n", "[0]<stderr>:world: 2 ranks\n"])
    output, errors = capfd.readouterr()
    assert output == "step 1/9\n"
    assert errors.endswith("Horovod has been shut down.\nworld: 2 ranks\n")
