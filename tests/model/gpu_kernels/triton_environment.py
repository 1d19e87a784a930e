"""A Python with Triton, which must not share a process with TensorFlow: made once, in the user's cache."""

import fcntl
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.horovod_runs import PROJECT

TRITON = "3.1.0"
PACKAGES = [f"triton=={TRITON}", "numpy<2", "setuptools<80"]
NEWEST_PYTHON = 12  # minor version; this Triton has no wheel for a later one
PATIENCE_S = 240


@functools.cache
def triton_python() -> Path:
    """The interpreter of the environment; skips the test where there can be none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bert_horovod"
    directory = cache / f"triton-{TRITON}"
    python = directory / "bin" / "python"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"triton-{TRITON}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            _make(directory, python)
    return python


def _make(directory: Path, python: Path) -> None:
    candidates = [sys.executable] if sys.version_info[1] <= NEWEST_PYTHON else []
    candidates += [shutil.which(f"python3.{minor}") for minor in (12, 11, 10)]
    for base in filter(None, candidates):
        shutil.rmtree(directory, ignore_errors=True)
        commands = [base, "-m", "venv", directory], [python, "-m", "pip", "install", "-q", *PACKAGES]
        try:
            for command in commands:
                subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
        except (OSError, subprocess.SubprocessError):
            continue
        (directory / "complete").touch()
        return
    pytest.skip(f"needs an environment with triton {TRITON}: a Python 3.10 to 3.12 and a package index")


def run_with_triton(*arguments: str | Path, interpret: bool = False, patience_s: int = PATIENCE_S) -> str:
    """The output of a command of that Python, in the project's directory; `interpret`: kernels run as NumPy."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "TRITON_INTERPRET": "1" if interpret else "0"}
    done = subprocess.run(
        [triton_python(), *arguments], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=patience_s
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
