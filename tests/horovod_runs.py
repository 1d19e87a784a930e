"""Starts real ranks with the virtual environment's own horovodrun."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[1]
# Seconds that a test waits for other processes. On an ordinary machine they take seconds; this is for one that is many
# times slower, and below pytest's own limit for a test, which does not say what was waited for.
PATIENCE_S = 1500
# What other launchers leave behind; a rank must see horovodrun's alone.
_FOREIGN = ("HOROVOD_", "OMPI_", "PMI", "SLURM_")


def run_ranks(world_size: int, script: str | Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run a script as `world_size` ranks on this host and return what horovodrun printed, each line with its rank.

    Args:
        world_size: processes.
        script: a file, or the text of a program.
        arguments: the script's.

    After PATIENCE_S all ranks are killed and TimeoutExpired is raised.
    """
    with tempfile.TemporaryDirectory() as directory:
        if not isinstance(script, Path):
            text, script = script, Path(directory) / "script.py"
            script.write_text(text, encoding="utf-8")
        return run_script(world_size, str(script), *arguments)


def run_script(world_size: int, *words: str) -> subprocess.CompletedProcess:
    """Run `python WORDS` as `world_size` ranks on this host, as run_ranks does; a single one needs no horovodrun."""
    command = [*(horovodrun(world_size) if world_size > 1 else []), sys.executable, *words]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
        cwd=PROJECT,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            kill_tree(process.pid)
            error.stdout, error.stderr = process.communicate()
            raise
        except BaseException:
            kill_tree(process.pid)
            raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def horovodrun(world_size: int) -> list[str | Path]:
    """The words before a command that start it as `world_size` ranks on this host; skips where there is no Horovod."""
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("needs Horovod, which run/setup.sh builds")
    script = Path(sys.executable).with_name("horovodrun")  # not resolved: that would leave the environment
    return [sys.executable, script, "--gloo", "-np", str(world_size)]


def run_command(*words: object, **environment: str) -> subprocess.CompletedProcess:
    """Run `bert-horovod WORDS` to its end, with these variables beside a clean environment."""
    return run_python("-m", "bert_horovod", *words, **environment)


def run_python(*words: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess:
    """Run `python WORDS` to its end, with these variables beside a clean environment."""
    return run_process([sys.executable, *words], clean_environment(**environment), cwd)


def run_process(
    command: Sequence[object], environment: dict[str, str] | None = None, cwd: Path | None = PROJECT, **options: Any
) -> subprocess.CompletedProcess:
    """Run a command to its end; where no environment is given, in a clean one."""
    return subprocess.run(
        list(map(str, command)),
        **{"capture_output": True, "text": True, "timeout": PATIENCE_S, "check": False, "cwd": cwd} | options,
        env=clean_environment() if environment is None else environment,
    )


def clean_environment(**variables: str) -> dict[str, str]:
    """The environment for a process of a test: no launcher's variables, no GPU, the project importable."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    path = os.pathsep.join(filter(None, (str(PROJECT), kept.get("PYTHONPATH"))))
    return kept | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path} | variables


def kill_tree(root: int) -> None:
    """Kill a process and all that came from it: horovodrun gives each rank a session of its own."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
    family = {root}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    for process in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
