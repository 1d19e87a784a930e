"""Ranks get what a run needs and what the user names; no secret comes into a command line, no stray module is run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_horovod.cluster.launching.rank_variables import for_mpirun, for_ranks
from bert_horovod.errors import UserError
from tests.cluster.launches import LAUNCH
from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment

SECRETS = (
    *("WANDB_KEY", "ENCRYPTION_KEY", "SSH_KEY", "DB_PASS", "SESSION_COOKIE", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"),
    *("TF_VAR_password", "SLURM_JWT", "PBS_JOBCOOKIE", "_HOROVOD_SECRET_KEY", "http_proxy", "PGPASSWORD", "Cookie"),
    *(
        "HOROVOD_SECRET_KEY",
        "NCCL_TOKEN",
        "CUDA_API_KEY",
        "OMP_PASSWORD",
        "NVIDIA_API_KEY",
        "OMPI_PASS",
        "UCX_KEY_FILE",
        *("NCCL_Token", "HOROVOD_TOKENS", "OMP_KEY2", "XLA_KEYFILE", "NCCL_AUTH", "CUDA_PWD", "TF_GPU_CREDS", "FI_JWT"),
    ),
)
NEEDED = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES"),
    *("HOROVOD_CYCLE_TIME", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS", "OMPI_MCA_btl", "XLA_FLAGS"),
    *("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS", "TF_DETERMINISTIC_OPS", "SLURM_JOB_ID", "SLURM_JOB_END_TIME"),
    *("NCCL_IB_PKEY", "SSH_AUTH_SOCK", "VIRTUAL_ENV", "BERT_HOROVOD_ATTEMPT"),
)


def test_what_a_run_needs_is_handed_over_and_nothing_else():
    variables = for_ranks(dict.fromkeys((*SECRETS, *NEEDED), "value"))
    assert variables.keys() == {*NEEDED, "PYTHONPATH", "PYTHONSAFEPATH"}
    assert {variables[name] for name in NEEDED} == {"value"}


def test_what_the_user_names_is_handed_over_too():
    assert for_ranks({"WANDB_KEY": "a", "DB_PASS": "b"}, ["WANDB_KEY"])["WANDB_KEY"] == "a"
    with pytest.raises(UserError, match="--env NO_SUCH: the environment has no such variable"):
        for_ranks({"WANDB_KEY": "a"}, ["NO_SUCH"])


def test_the_network_that_the_user_names_is_ncclss_unless_the_environment_says_another():
    assert for_ranks({}, network_interfaces="eth1")["NCCL_SOCKET_IFNAME"] == "eth1"
    assert for_ranks({"NCCL_SOCKET_IFNAME": "ib0"}, network_interfaces="eth1")["NCCL_SOCKET_IFNAME"] == "ib0"


def test_an_empty_entry_of_pythonpath_which_is_the_working_directory_is_left_out(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":/somewhere::")
    assert for_ranks({})["PYTHONPATH"] == f"{PROJECT}{os.pathsep}/somewhere"


def test_mpirun_finds_its_scheduler():
    assert for_mpirun({"PBS_JOBCOOKIE": "a", "SLURM_NODELIST": "b", "WANDB_KEY": "c"}).keys() == {
        "PBS_JOBCOOKIE",
        "SLURM_NODELIST",
    }


# Every Python process that is started writes its own and its parent's command line and environment.
RECORD = """
import os, pathlib, uuid
place = pathlib.Path(__file__).with_name("seen") / uuid.uuid4().hex
for process in (os.getpid(), os.getppid()):
    for what in ("cmdline", "environ"):
        try:
            place.with_suffix(f".{process}.{what}").write_bytes(pathlib.Path(f"/proc/{process}/{what}").read_bytes())
        except OSError:
            pass
"""
STRAY = """
import pathlib, sys
pathlib.Path(__file__).with_name("executed").write_text(" ".join(sys.argv))
raise SystemExit("a module of the working directory was run")
"""


@pytest.mark.full
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no PYTHONSAFEPATH")
def test_launched_processes_see_no_secret_and_run_no_module_of_the_working_directory(tmp_path):
    pytest.importorskip("horovod")
    (tmp_path / "seen").mkdir()
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(RECORD.replace("__file__", repr(str(tmp_path / "x"))))
    for module in ("json", "numpy", "horovod", "logging", "bert_horovod", "psutil"):
        (tmp_path / f"{module}.py").write_text(STRAY)
    secret = "hunter2-" + tmp_path.name
    environment = clean_environment(
        **dict.fromkeys(SECRETS, secret), MINE="for the ranks", SLURM_JOB_NODELIST="localhost"
    )
    environment["PYTHONPATH"] = f"{PROJECT}:{tmp_path / 'path'}"
    # The launcher itself is started as the installed command is: without the working directory.
    words = [LAUNCH[0], "-P", *LAUNCH[1:], "-np", "2", "-H", "localhost:2", "--env", "MINE", "--", "hosts"]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "localhost" in done.stdout
    assert not (tmp_path / "executed").exists(), (tmp_path / "executed").read_text()
    lines = [path.read_bytes() for path in Path(tmp_path / "seen").glob("*.cmdline")]
    ranks = [line for line in lines if b"HOROVOD_RANK=" in line]
    assert ranks
    assert any(b"MINE=" in line for line in ranks)
    assert not any(secret.encode() in line for line in lines)
    # Processes of ranks have none in their environment either.
    for path in (tmp_path / "seen").glob("*.environ"):
        if b"HOROVOD_RANK=" in (content := path.read_bytes()):
            assert secret.encode() not in content
