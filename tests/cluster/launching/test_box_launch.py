"""Every way to launch over several hosts, which a cluster in a box gives."""

import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.launches import LAUNCH, QUICK, YIELD, launched, require_mpi
from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment
from tests.toy_runs import newest, pretrain_arguments

pytestmark = pytest.mark.slow
FIRST_STEP = "step 1/"


@pytest.fixture(params=["gloo", "mpi"])
def controller(request) -> str:
    """Each way to join ranks."""
    pytest.importorskip("horovod")
    if request.param == "mpi":
        require_mpi()
    return request.param


def environment() -> dict[str, str]:
    """With the interpreter of the tests as `python`, as after `source .venv/bin/activate`."""
    return clean_environment(PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]), **YIELD)


def arguments(directory: Path, store, steps: int) -> list[str]:
    """The flags of a run of the quickest recipe."""
    return pretrain_arguments(directory, store, directory / "run", phase={"steps": steps}, execution=QUICK)


def test_horovodrun_with_a_hostfile_from_the_directory_of_the_scripts(
    start_cluster, controller, store, tmp_path, monkeypatch
):
    monkeypatch.chdir(PROJECT / "run")  # a host of the box starts commands where its caller is
    box = start_cluster(hosts=4)
    command = ["horovodrun", f"--{controller}", "-np", "4", "-hostfile", box.hostfile, "python", "run_pretraining.py"]
    command += arguments(tmp_path, store, 2)
    done = box.run("node1", command, timeout=PATIENCE_S, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "world: 4 rank(s)" in done.stdout
    assert newest(tmp_path / "run").name == "step-00000002"


def test_the_script_for_several_hosts(start_cluster, controller, store, tmp_path):
    box = start_cluster(hosts=4)
    script = PROJECT / "run" / ("mpi_job.sh" if controller == "mpi" else "multi_node.sh")
    sent = box.traffic("node4")[0]
    done = box.run(
        "node1",
        [script, box.hostfile, *arguments(tmp_path, store, 2)],
        timeout=PATIENCE_S,
        env=environment() | {"INTERFACES": "eth0"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("world: 4 rank(s)")
    assert done.stderr == ""
    assert newest(tmp_path / "run").name == "step-00000002"
    assert box.traffic("node4")[0] - sent > 2 * 2 * 3 / 4 * 90_376  # steps x 2 (n - 1) / n x bytes of gradients


@pytest.fixture
def start(start_cluster, controller, store, tmp_path):
    """A function that starts one rank on each of two hosts, from the first, for hours."""

    def begin():
        box = start_cluster(hosts=2)
        flags = ["--mpi"] if controller == "mpi" else []
        words = [
            *LAUNCH,
            *flags,
            "-hostfile",
            str(box.hostfile),
            "--",
            "pretrain",
            *arguments(tmp_path, store, 100_000),
        ]
        return launched(words, tmp_path, str(tmp_path / "run"), partial(box.start, "node1", env=environment()))

    return begin


def test_sigterm_saves_on_all_hosts(start):
    with start() as run:
        run.await_output(FIRST_STEP)
        run.signal(signal.SIGTERM)
        output, _ = run.end()
    assert "asked to stop: saved at step" in output


def test_a_rank_that_is_killed_is_named_with_its_host(start):
    with start() as run:
        run.await_output(FIRST_STEP)
        os.kill(run.rank(1), signal.SIGKILL)
        _, errors = run.end(code=1)
        run.await_no_process()
    assert "bert-horovod: error: rank 1 on node2 ended first, with" in errors


def test_no_rank_on_any_host_outlives_the_launcher(start):
    with start() as run:
        run.await_output(FIRST_STEP)
        run.stop(1)  # it will not notice by talking to the other rank
        run.signal(signal.SIGKILL)
        os.kill(run.rank(1), signal.SIGCONT)
        run.await_no_process()
