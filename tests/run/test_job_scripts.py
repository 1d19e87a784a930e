"""The scheduler scripts with real ranks; of a scheduler there are only its variables here, and what it is asked.

run/slurm.sbatch in a real SLURM: slurm_job.py. Over several hosts: tests/cluster/launching/test_box_launch.py.
"""

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.launches import QUICK, launched
from tests.horovod_runs import PROJECT, clean_environment, run_command
from tests.toy_runs import pretrain_arguments
from tests.toys import SMALL_VOCABULARY, write_toy_store

RUN = PROJECT / "run"


@pytest.fixture
def flags(tmp_path) -> list[str]:
    """Of a run that would go on for hours."""
    pytest.importorskip("horovod")
    store = write_toy_store(tmp_path / "store", shards=1, held_out=0.1, vocabulary=SMALL_VOCABULARY)
    return pretrain_arguments(tmp_path, store, tmp_path / "run", phase={"steps": 100_000}, execution=QUICK)


def start(command: list, environment: dict[str, str], **options) -> subprocess.Popen:
    """Start a script where `bert-horovod` is that of the tests."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    options["env"] = clean_environment(PATH=path) | environment
    return subprocess.Popen(command, start_new_session=True, **options)


@pytest.mark.full
def test_the_slurm_script_saves_before_the_limit_and_queues_the_job_again(flags, tmp_path):
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    scontrol.chmod(0o755)
    job = {
        "SLURM_SUBMIT_DIR": str(PROJECT),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NTASKS_PER_NODE": "2",
        "PATH": os.pathsep.join([str(scontrol.parent), str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    command = ["bash", RUN / "slurm.sbatch", *flags]
    with launched(command, tmp_path, str(tmp_path / "run"), partial(start, environment=job)) as run:
        run.await_output("step 1/")
        run.process.send_signal(signal.SIGUSR1)
        output, errors = run.end()
    assert "asked to stop: saved at step" in output
    assert "2 slots, from SLURM_JOB_NODELIST, SLURM_NTASKS_PER_NODE" in errors
    assert (tmp_path / "asked").read_text() == "requeue 7\n"


@pytest.mark.full
def test_the_slurm_script_ends_as_a_failed_run_does(flags, tmp_path):
    job = {"SLURM_SUBMIT_DIR": str(PROJECT), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost"}
    command = ["bash", RUN / "slurm.sbatch", *flags, "--nonsense"]
    with launched(command, tmp_path, str(tmp_path / "run"), partial(start, environment=job)) as run:
        _, errors = run.end(code=2)
    assert "unrecognized arguments: --nonsense" in errors


@pytest.mark.full
def test_the_line_of_the_page_for_pyxis_is_a_rank_of_sruns(flags):
    """What srun starts inside the container, with the variables that pyxis hands over."""
    page = (PROJECT / "docs" / "cluster.md").read_text(encoding="utf-8")
    words = re.search(r"srun (?:--\S+ )*--container-image(?:.*\\\n)*.*", page)[0].replace("\\\n", "").split()
    words = [words[words.index("bert-horovod") + 1], *flags, "--max_steps", "1"]
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    rank = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.0"}
    done = run_command(*words, **job, **rank)
    assert done.returncode == 0, done.stderr
    assert "world: 1 rank(s)" in done.stdout


@pytest.mark.slow
def test_the_pbs_script_saves_before_the_limit(flags, tmp_path):
    (tmp_path / "nodes").write_text("localhost\nlocalhost\n")
    job = {
        "PBS_O_WORKDIR": str(PROJECT),
        "PBS_NODEFILE": str(tmp_path / "nodes"),
        "SAVE_AFTER": "15s",
        "RECIPE": flags[1],
        "DATA_DIR": flags[3],
        "OUTPUT_DIR": flags[5],
    }
    with launched([RUN / "pbs.sh"], tmp_path, str(tmp_path / "run"), partial(start, environment=job)) as run:
        output, errors = run.end()
    assert "asked to stop: saved at step" in output
    assert "1 host, 2 slots, from PBS_NODEFILE" in errors


@pytest.mark.full
@pytest.mark.parametrize("script", ["multi_node.sh", "mpi_job.sh"])
def test_a_script_without_arguments_says_how_it_is_used(script):
    done = subprocess.run([RUN / script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"run/{script} HOSTFILE --recipe R --data_dir D --output_dir O" in done.stderr
