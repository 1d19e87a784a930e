"""Scripts in lab/: run as a user does, or loaded as modules."""

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.horovod_runs import PATIENCE_S

DIRECTORY = Path(__file__).resolve().parents[2] / "lab"


def run_script(name: str, *words: object) -> subprocess.CompletedProcess:
    """Run lab/<name>.py with these arguments, without a GPU."""
    command = [sys.executable, DIRECTORY / f"{name}.py", *map(str, words)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=False)


def run_here(name: str, *words: object) -> subprocess.CompletedProcess:
    """As run_script, in this process: for what starts no TensorFlow, or with the one thread that the tests have."""
    output, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        patch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        patch.syspath_prepend((DIRECTORY / name).parent)
        try:
            code = load_script(name).main()
        except SystemExit as end:
            code = end.code
    return subprocess.CompletedProcess(sys.argv, code, output.getvalue(), errors.getvalue())


def load_script(name: str) -> ModuleType:
    """lab/<name>.py as a module."""
    specification = importlib.util.spec_from_file_location(f"lab_{name}", DIRECTORY / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


def cells(line: str) -> list[str]:
    """The columns of a line of a table."""
    return [cell.strip() for cell in line.split("  ") if cell.strip()]
