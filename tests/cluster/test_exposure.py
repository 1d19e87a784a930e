"""What a run shows to others: ports, the environment, files."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.launches import LAUNCH, QUICK, launched, listening
from tests.horovod_runs import PATIENCE_S, clean_environment, run_ranks
from tests.toy_runs import pretrain_arguments

pytestmark = pytest.mark.full

HOROVOD_ALONE = """
import horovod.tensorflow as horovod
from tests.cluster.launches import listening
horovod.init()
print("listens on", listening("self"))
"""
SECRETS = {"SECRET_OF_MINE": "correct-horse", "GITHUB_TOKEN": "battery-staple", "DB_PASSWORD": "tr0ub4dor"}
SECRETS |= dict.fromkeys(("WANDB_KEY", "ENCRYPTION_KEY", "SSH_KEY", "DB_PASS", "SESSION_COOKIE"), "hunter2-and-hunter3")
UMASK = 0o027


@pytest.fixture(scope="module")
def run(store, tmp_path_factory):
    """Two ranks that train, started by a user with secrets in the environment and a umask of their own."""
    pytest.importorskip("horovod")
    tmp_path = tmp_path_factory.mktemp("exposed")
    execution = QUICK | {"checkpoint_steps": 5}
    arguments = pretrain_arguments(tmp_path, store, tmp_path / "run", phase={"steps": 100_000}, execution=execution)
    words = [*LAUNCH, "-np", "2", "--", "pretrain", *arguments, "--set", 'execution.trackers=["tensorboard"]']

    def start(command: list, **options) -> subprocess.Popen:
        return subprocess.Popen(
            command, start_new_session=True, env=clean_environment(**SECRETS), umask=UMASK, **options
        )

    with launched(words, tmp_path, str(tmp_path / "run"), start) as started:
        started.await_output("step 1/")
        yield started


@pytest.mark.slow
def test_ranks_listen_on_horovods_ports_alone(run):
    alone = run_ranks(2, HOROVOD_ALONE).stdout
    expected = int(alone.partition("listens on ")[2].split()[0])
    assert [listening(run.rank(rank)) for rank in (0, 1)] == [expected, expected]


@pytest.mark.slow
def test_one_process_listens_on_no_port(store, tmp_path):
    arguments = pretrain_arguments(tmp_path, store, tmp_path / "run", phase={"steps": 100_000}, execution=QUICK)
    command = [sys.executable, "-m", "bert_horovod", "pretrain", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment()) as alone:
        while not alone.stdout.readline().startswith("step 1/"):
            assert alone.poll() is None
        port_count = listening(alone.pid)
        alone.kill()
    assert port_count == 0


@pytest.mark.slow
def test_files_get_the_users_umask(run):
    output_dir = run.stdout.parent / "run"
    end = time.monotonic() + PATIENCE_S
    while not list(output_dir.glob("checkpoints/step-*")):
        assert time.monotonic() < end
        time.sleep(0.05)
    run.stop(0)  # else files come and go meanwhile
    written = [output_dir, *(path for path in output_dir.rglob("*") if ".partial" not in str(path))]
    modes = {path: path.stat().st_mode for path in written}
    os.kill(run.rank(0), signal.SIGCONT)
    assert {"model.safetensors", "optimizer.safetensors", "metrics.jsonl", "run.json", ".lock"} <= {
        path.name for path in written
    }
    for path, mode in modes.items():
        assert mode & 0o777 == (0o777 if stat.S_ISDIR(mode) else 0o666) & ~UMASK, path


def test_no_secret_is_in_a_log_a_file_or_a_command_line(run):
    commands = "".join(Path(f"/proc/{process}/cmdline").read_text(errors="replace") for process in run.processes())
    os.kill(run.rank(1), 9)  # a failure prints more than a good end
    run.end(code=1)
    tmp_path = run.stdout.parent
    assert run.stderr.stat().st_size
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    shown = commands.encode() + b"".join(path.read_bytes() for path in files)
    assert b"HOROVOD_RANK=1" in commands.encode()
    for secret in SECRETS.values():
        assert secret.encode() not in shown
