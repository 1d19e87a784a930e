#!/usr/bin/env python3
"""run/slurm.sbatch in a real SLURM of one node: stopped, requeued, resumed to the end; and who is a rank there.

    python tests/run/slurm_job.py        needs root and Debian's slurm-wlm and munge; about 2 minutes

Not part of the test run: it needs daemons that few machines have.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

# ruff: noqa: E402
from tests.cluster.launches import QUICK
from tests.horovod_runs import PATIENCE_S, clean_environment
from tests.toy_runs import pretrain_arguments
from tests.toys import SMALL_VOCABULARY, write_toy_store

CONFIGURATION = """
ClusterName=box
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
MinJobAge=300
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores}
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def main() -> int:
    """Run the job; 0 if all was as promised."""
    daemons: list[subprocess.Popen] = []
    with tempfile.TemporaryDirectory(prefix="slurm-") as scratch:
        directory = Path(scratch)
        environment = clean_environment(SLURM_CONF=str(directory / "slurm.conf"))
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}:/usr/sbin"
        try:
            start_slurm(directory, environment, daemons)
            ask_who_is_a_rank(directory, environment)
            run_job(directory, environment)
        finally:
            for daemon in reversed(daemons):
                daemon.terminate()
                daemon.wait()
    print("as promised: saved, queued again, resumed, finished")
    return 0


def start_slurm(directory: Path, environment: dict[str, str], daemons: list[subprocess.Popen]) -> None:
    """munged, slurmctld and slurmd, until the node is idle."""
    for name in ("state", "spool"):
        (directory / name).mkdir()
    directory.chmod(0o755)
    (directory / "slurm.conf").write_text(
        CONFIGURATION.format(host=socket.gethostname(), directory=directory, cores=os.cpu_count())
    )
    key = directory / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    paths = [f"--{name}-file={directory}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    for command in (
        ["munged", "-F", "--force", f"--socket={directory}/munge.socket", *paths],
        ["slurmctld", "-D"],
        ["slurmd", "-D"],
    ):
        with (directory / f"{command[0]}.out").open("w") as log:
            daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        time.sleep(2)
        assert daemons[-1].poll() is None, (directory / f"{command[0]}.out").read_text()
    wait_for(lambda: "idle" in call(["sinfo", "-h", "-o", "%T"], environment), "an idle node")


def ask_who_is_a_rank(directory: Path, environment: dict[str, str]) -> None:
    """In the script of a job of two tasks a command is one process; under srun it is two ranks; srun -n 1 makes one."""
    output = directory / "who.out"
    ask = f"{sys.executable} -c 'from bert_horovod.collectives.launched import launch; print(launch())'"
    size = ["--ntasks=2", "--nodes=1", f"--output={output}", f"--chdir={PROJECT}"]
    job = call(["sbatch", "--parsable", *size, f"--wrap={ask}; srun {ask}; srun -n 1 {ask}"], environment).strip()
    wait_for(lambda: "COMPLETED" in state(job, environment), "the job to end", output.read_text)
    script, *steps, one = output.read_text().splitlines()
    assert "launcher=None, rank=0, size=1," in script, script
    assert [f"launcher='srun', rank={rank}, size=2," in line for rank, line in enumerate(sorted(steps))] == [True] * 2
    assert "launcher='srun', rank=0, size=1," in one, one


def run_job(directory: Path, environment: dict[str, str]) -> None:
    """Submit the script, stop it in the middle, and see it come back."""
    store = write_toy_store(directory / "store", held_out=0.1, vocabulary=SMALL_VOCABULARY)
    run = directory / "run"
    flags = pretrain_arguments(directory, store, run, phase={"steps": 1000}, execution=QUICK | {"log_steps": 100})
    output = directory / "job.out"
    size = ["--nodes=1", "--ntasks-per-node=2", "--time=30", f"--output={output}", f"--chdir={PROJECT}"]
    script = directory / "slurm.sbatch"  # this node has no GPUs to ask for
    script.write_text(re.sub(r"#SBATCH --gpus.*\n", "", (PROJECT / "run" / "slurm.sbatch").read_text()))
    job = call(["sbatch", "--parsable", *size, script, *flags], environment, cwd=PROJECT).strip()

    def said() -> str:
        return output.read_text() if output.exists() else ""

    wait_for(lambda: "step 100/" in said(), "step 100", said)
    call(["scancel", "--batch", "--signal=USR1", job], environment)
    wait_for(lambda: "asked to stop: saved at step" in said(), "the save", said)
    # What waits two minutes after a requeue is let go at once.
    wait_for(lambda: "PENDING" in state(job, environment), "the job to be queued again", said)
    call(["scontrol", "update", f"JobId={job}", "StartTime=now"], environment)
    wait_for(lambda: "resuming from" in said(), "the job to resume", said)
    wait_for(lambda: "COMPLETED" in state(job, environment), "the job to end", said)
    assert "at step 1000 of 1000" in said(), said()
    assert "2 slots, from SLURM_JOB_NODELIST, SLURM_NTASKS_PER_NODE" in said(), said()


def state(job: str, environment: dict[str, str]) -> str:
    """What SLURM says of the job."""
    return re.search(r"JobState=\S+", call(["scontrol", "show", "job", job], environment))[0]


def call(command: list, environment: dict[str, str], **options) -> str:
    """A command's standard output; raises with its standard error."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, **options)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def wait_for(condition, what: str, said=lambda: "") -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited for {what}\n{said()}"
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
