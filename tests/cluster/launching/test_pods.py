"""Pods of Kubernetes' MPI operator, without Kubernetes: run/container.sh as another user, keys, names, variables."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from lab.cluster import Cluster
from tests.cluster.launches import LAUNCH, QUICK, YIELD, launched
from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment
from tests.toy_runs import metrics, pretrain_arguments

pytestmark = pytest.mark.slow

USER = 1000  # of the image
WORKERS = ["bert-worker-0", "bert-worker-1"]
DOMAIN = ".bert.default.svc"
CONTAINER = ["bash", PROJECT / "run" / "container.sh"]
# What a pod has of its own: /etc with this user, an empty home, keys as a Secret is mounted, the operator's files.
POD = r"""
umount /etc/ssh/ssh_config
cp /etc/hosts "$0/hosts"
mountpoint -q /mnt || mount -t tmpfs tmpfs /mnt
mkdir /mnt/home /mnt/home/bert /mnt/keys /mnt/keys/..2026_11_28
change() {
    mkdir -p "/mnt$1/upper" "/mnt$1/work"
    mount -t overlay overlay -o "lowerdir=$1,upperdir=/mnt$1/upper,workdir=/mnt$1/work" "$1"
}
change /etc
for directory in $CLOSED; do change "$directory"; chmod 755 "$directory"; done
cp "$0/hosts" /etc/hosts
echo "bert:x:$1:$1::/mnt/home/bert:/bin/bash" > /etc/passwd
chown "$1" /mnt/home/bert
mkdir /etc/mpi
printf '%s slots=1\n' "${@:2}" > /etc/mpi/hostfile
{ echo '#!/bin/sh'; printf 'echo %s\n' "${@:2}"; } > /etc/mpi/discover_hosts.sh
chmod 755 /etc/mpi/discover_hosts.sh
cp "$0/id_rsa" "$0/id_rsa.pub" /mnt/keys/..2026_11_28
cp "$0/id_rsa.pub" /mnt/keys/..2026_11_28/authorized_keys
chmod 644 /mnt/keys/..2026_11_28/*
ln -s ..2026_11_28 /mnt/keys/..data
for name in id_rsa id_rsa.pub authorized_keys; do ln -s "..data/$name" "/mnt/keys/$name"; done
"""
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
IN_POD = {"HOME": "/mnt/home/bert", "KEYS": "/mnt/keys", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
OF_LAUNCHER = {
    "K_MPI_JOB_ROLE": "launcher",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_set_default_slots": "1",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    "NVIDIA_VISIBLE_DEVICES": "",
    "NVIDIA_DRIVER_CAPABILITIES": "",
}


class Pods:
    """A launcher and two workers."""

    def __init__(self, box: Cluster, directory: Path) -> None:
        self.box, self.directory = box, directory
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
        self.environment = clean_environment(PATH=path, **IN_POD, **YIELD)
        used = [path for start in (Path(sys.executable).resolve(), PROJECT) for path in start.parents]
        closed = {"CLOSED": " ".join(str(path) for path in used if not path.stat().st_mode & 0o001)}
        for name in box.hosts:
            words = ["bash", "-ec", POD, directory, str(USER), *(worker + DOMAIN for worker in WORKERS)]
            made = self.box.run(name, words, env=os.environ | closed)
            assert made.returncode == 0, made.stderr
        for name in WORKERS:
            self.start_worker(name)

    def start_worker(self, name: str) -> None:
        """Start the container of a worker, and wait until it is ready: its readiness probe is this port."""
        with (self.directory / f"{name}.log").open("a") as log:
            self.box.start(
                name,
                ["bash", "-c", 'echo $$ > /mnt/container; exec "$@"', "bash", *AS_USER, *CONTAINER, "sshd"],
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + 60
        while self.in_pod(name, "exec 3<> /dev/tcp/localhost/2222").returncode:
            assert time.monotonic() < end, (self.directory / f"{name}.log").read_text()
            time.sleep(0.1)

    def in_pod(self, name: str, script: str) -> subprocess.CompletedProcess:
        return self.box.run(name, ["bash", "-c", script])

    def evict(self, name: str) -> None:
        """SIGTERM to the container."""
        assert self.in_pod(name, 'kill -TERM "$(cat /mnt/container)"').returncode == 0

    def await_end(self, name: str) -> None:
        """Wait until the container has ended by itself."""
        end = time.monotonic() + PATIENCE_S
        while not self.in_pod(name, 'kill -0 "$(cat /mnt/container)"').returncode:
            assert time.monotonic() < end
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        """End a worker without a word: all of its processes but the first, with which the test holds the host."""
        self.in_pod(name, "kill -9 -1")

    def start_launcher(self, command: list, **options) -> subprocess.Popen:
        environment = self.environment | OF_LAUNCHER
        return self.box.start("bert-launcher", [*AS_USER, *CONTAINER, *command], env=environment, **options)


@pytest.fixture
def pods(start_cluster):
    """The pods, and a directory on a disk that they share; directories of the interpreter are opened to their user."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own directories are closed to other users
        directory = Path(name)
        directory.chmod(0o755)
        subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-m", "PEM", "-N", "", "-f", directory / "id_rsa"], check=True)
        yield Pods(start_cluster(names=["bert-launcher", *WORKERS], domain=DOMAIN), directory)


def test_pods_are_evicted_killed_and_started_again_and_the_run_ends_as_if_nothing_had_been(pods, store, tmp_path):
    directory, steps = pods.directory, 160
    shutil.copytree(store.path, directory / "store")
    run = directory / "run"
    flags = pretrain_arguments(
        directory, store, run, phase={"steps": steps}, execution=QUICK | {"checkpoint_steps": 20}
    )
    flags[flags.index("--data_dir") + 1] = str(directory / "store")
    for path in [directory, *directory.rglob("*")]:
        os.chown(path, USER, USER)
    command = [*LAUNCH, "--restarts", "3", "--wait_for_hosts", "5m", "--", "pretrain", *flags]

    def launch():
        return launched(command, tmp_path, str(run), pods.start_launcher)

    with (tmp_path / "doctor").open("w+") as said:
        pods.start_launcher([*LAUNCH[:3], "doctor", "--expect_gbit", "0.1"], stdout=said, stderr=said).wait(PATIENCE_S)
        said.seek(0)
        output = said.read()
    for check in (
        "job +2 hosts, 2 slots, from /etc/mpi/hostfile of a job in Kubernetes\n",
        "ssh",
        "name",
        "all-reduce",
    ):
        assert re.search(f"ok +{check}", output), output
    with launch() as job:
        job.await_error("2 hosts, 2 slots, from /etc/mpi/hostfile of a job in Kubernetes")
        job.await_output("world: 2 rank(s)", "step 5/")
        pods.evict("bert-worker-1")
        job.await_error(f"the host of rank 1, bert-worker-1{DOMAIN}, goes away: the ranks have saved and stopped")
        pods.await_end("bert-worker-1")
        job.await_error("1 of 2 slots are there; waiting for the others")
        pods.start_worker("bert-worker-1")
        job.await_error(f"restart 1 of 3 with 2 rank(s) on bert-worker-0{DOMAIN}:1, bert-worker-1{DOMAIN}:1")
        job.await_output("asked to stop: saved at step", "resuming from", "step 22/")
        pods.kill("bert-worker-0")
        job.await_error("restart 2 of 3 in")
        pods.start_worker("bert-worker-0")
        job.await_error("restart 2 of 3 with 2 rank(s)")
        job.await_output("asked to stop: saved at step", "resuming from", "resuming from", "step ")
        for name in WORKERS:
            pods.evict(name)
        job.signal(signal.SIGTERM)
        output, errors = job.end(code=128 + signal.SIGTERM)  # 0 would complete the job
    assert output.count("asked to stop: saved at step") == 2
    assert "Traceback" not in errors
    for name in WORKERS:
        pods.await_end(name)
        pods.start_worker(name)
    with launch() as job:
        output, errors = job.end()
    assert "resuming from" in output
    assert [line["step"] for line in metrics(run)] == list(range(1, steps + 1))
