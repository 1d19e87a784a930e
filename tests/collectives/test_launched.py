"""Who started this process, and whom no world is joined for; what horovodrun sends."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_horovod.collectives.launched import Launch, check_horovodruns_server, launch
from bert_horovod.collectives.starting import connect
from bert_horovod.errors import UserError
from tests.horovod_runs import run_process


@pytest.mark.full
def test_an_elastic_horovodrun_is_refused_and_restarts_are_named(tmp_path):
    pytest.importorskip("horovod")
    discovery = tmp_path / "discovery.sh"
    discovery.write_text("#!/bin/sh\necho localhost:2\n")
    discovery.chmod(0o755)
    rank = [sys.executable, "-m", "bert_horovod", "pretrain", "--recipe", "r", "--data_dir", "d"]
    elastic = [Path(sys.executable).with_name("horovodrun"), "-np", "2", "--host-discovery-script", discovery]
    done = run_process([*elastic, "--network-interfaces", "lo", *rank, "--output_dir", tmp_path / "run"])
    assert done.returncode == 1
    assert "bert-horovod: error: found an elastic horovodrun (--host-discovery-script)" in done.stderr
    assert "bert-horovod launch --restarts N" in done.stderr
    assert not (tmp_path / "run").exists()


def test_horovods_own_word_for_not_elastic_is_taken(monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC", "0")
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    assert launch() == Launch("horovodrun", 1, 2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": server.getsockname()[1]}
        check_horovodruns_server(STALE | {name: str(value) for name, value in here.items()})


STALE = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}
SERVER = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "9"}  # where nobody listens


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (STALE, "HOROVOD_RANK=0 HOROVOD_SIZE=2 in the environment, but no HOROVOD_GLOO_RENDEZVOUS_ADDR and"),
        (STALE | SERVER, "horovodrun's server at 127.0.0.1:9 does not answer"),
        (STALE | SERVER | {"HOROVOD_GLOO_RENDEZVOUS_PORT": "9" * 30}, "does not answer"),
        (STALE | {"HOROVOD_RANK": "2"}, "is no rank of a world"),
        (STALE | {"HOROVOD_SIZE": "99999999999"}, "is no rank of a world"),
    ],
)
def test_variables_of_a_launcher_that_is_gone_are_named_and_not_waited_for(variables, message):
    with pytest.raises(UserError, match=f"{message}.*unset HOROVOD_RANK HOROVOD_SIZE"):
        check_horovodruns_server(variables)


ALONE = ("RANK", "WORLD_SIZE", "MV2_", "PMI", "OMPI_", "HOROVOD_", "SLURM_", "JSM_", "FLUX_", "PALS_", "ALPS_")


@pytest.fixture
def environment(monkeypatch) -> Callable[[dict[str, str]], None]:
    """Sets these variables, and no other of a launcher."""

    def of(variables: dict[str, str]) -> None:
        for name in [name for name in os.environ if name.startswith(ALONE)]:
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return of


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "found RANK=0 WORLD_SIZE=2 of torchrun or.*unset RANK WORLD_SIZE"),
        ({"WORLD_SIZE": "8"}, "found WORLD_SIZE=8 of"),
        ({"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "4"}, "MVAPICH2"),
        ({"PMIX_RANK": "1"}, "found PMIX_RANK=1 of PMIx"),
        ({"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "6"}, "jsrun"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "high", "WORLD_SIZE": ""}, None),
        ({"RANK": "1", "WORLD_SIZE": "2", "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, None),
        ({"PMIX_RANK": "1", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, None),
    ],
)
def test_a_rank_of_a_launcher_that_is_not_known_does_not_train_alone(environment, capsys, variables, message):
    environment(variables)
    if message is None:
        assert launch().size == int(variables.get("HOROVOD_SIZE", variables.get("OMPI_COMM_WORLD_SIZE", "1")))
        assert capsys.readouterr().err == ""
    else:
        with pytest.raises(UserError, match=message):
            launch()


def test_a_lone_rank_of_pmix_is_told(environment, capsys):
    environment({"PMIX_RANK": "0"})
    assert launch() == Launch()
    assert "found PMIX_RANK=0, but nothing that says of how many ranks" in capsys.readouterr().err


def test_a_world_is_not_waited_for_with_such_variables(monkeypatch):
    pytest.importorskip("horovod")
    for name, value in STALE.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="unset HOROVOD_RANK HOROVOD_SIZE"):
        connect(launch())


SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
STEP = SCRIPT | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2"}


@pytest.mark.parametrize(
    ("variables", "launcher", "size"),
    [
        (SCRIPT, None, 1),
        (SCRIPT | {"SLURM_STEP_ID": str(0xFFFFFFFB)}, None, 1),  # the job's script, in newer SLURM
        (SCRIPT | {"SLURM_STEP_ID": str(0xFFFFFFFA), "SLURM_STEP_NUM_TASKS": "2"}, None, 1),  # the shell of salloc
        (SCRIPT | PMI, None, 1),
        (STEP, "srun", 2),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, "srun", 1),  # srun -n 1 in a larger job
        (STEP | PMI, "mpirun", 2),
        (SCRIPT | PMI | {"PMI_FD": "9"}, "mpirun", 2),  # mpirun of MPICH in a job's script
        (PMI, "mpirun", 2),
        (SCRIPT | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "mpirun", 2),
    ],
)
def test_only_a_step_of_a_job_is_ranks_and_its_script_is_one_process(environment, variables, launcher, size):
    environment(variables)
    launched = launch()
    assert (launched.launcher, launched.size) == (launcher, size)


def test_a_time_limit_counts_by_the_clock_of_the_host_that_it_reaches(monkeypatch):
    pytest.importorskip("horovod")
    from horovod.runner import launch
    from horovod.runner.common.util import codec
    from horovod.runner.common.util.timeout import Timeout
    from horovod.runner.driver import driver_service

    from bert_horovod.collectives.horovodrun import main

    for place, name in ((signal, "signal"), (driver_service, "get_remote_command"), (Timeout, "__reduce__")):
        monkeypatch.setattr(place, name, getattr(place, name))  # main replaces them
    monkeypatch.setattr(launch, "run_commandline", lambda: None)
    main()
    sent, now = codec.dumps_base64(Timeout(30, "")), time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: now)
    assert codec.loads_base64(sent).remaining() == 30
