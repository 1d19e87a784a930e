"""Let Python run this checkout in child processes and on other hosts; versions tested and installed.

Imports the standard library alone.
"""

import contextlib
import ctypes
import hashlib
import importlib.metadata
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

PROJECT = Path(__file__).resolve().parents[2]
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # opened here, because end_with_parent may run between fork and exec


def python_settings() -> dict[str, str]:
    """Environment variables with which Python imports this checkout, and nothing from its working directory.

    An empty entry of PYTHONPATH means the working directory, so empty entries are left out. Python also puts the
    working directory first by itself, unless PYTHONSAFEPATH is set (Python 3.11 and later): it would import a json.py
    there instead of its own.
    """
    paths = [str(PROJECT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONSAFEPATH": "1"}


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when process `parent` ends, even by SIGKILL; call it in the child of `parent`.

    It is the end of the parent's thread that started the child: let that thread live as long as the child.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the line above
            os._exit(1)


def run_whole(words: Sequence[str], limit_s: float, output: IO | int = subprocess.DEVNULL, errors: Any = None) -> int:
    """Run a program in a session of its own, and give its exit code; `output` and `errors`: its streams, no pipes.

    A process that it leaves behind lives on. Raises subprocess.TimeoutExpired after `limit_s` seconds, and OSError;
    then, and after any other error, all that it has started is killed.
    """
    silent = subprocess.DEVNULL
    errors = output if errors is None else errors
    with subprocess.Popen(words, stdin=silent, stdout=output, stderr=errors, start_new_session=True) as process:
        try:
            return process.wait(limit_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def installed_version(package: str) -> str | None:
    """The version of an installed package; None if it is missing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def source_hash() -> str:
    """SHA-256 over the paths and texts of this package's modules."""
    package = Path(__file__).resolve().parents[1]
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        for part in (str(path.relative_to(package)).encode(), path.read_bytes()):
            total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()


# As in pyproject.toml. The metadata of an environment that an older checkout installed name the older version.
TENSORFLOW = "2.21.0"


def set_up(host: str = "") -> str:
    """What installs the tested packages, Horovod included: a script of the source code, which a wheel does not have."""
    script = Path(__file__).parents[2] / "run" / "setup.sh"
    where = f" on {host}" if host else ""
    return f"run/setup.sh{where}" if script.is_file() else f"run/setup.sh of this project's source code{where}"


def tested_versions() -> tuple[str, dict[str, str]]:
    """The tested versions of Python and of each package that a run needs, Horovod included, as specifiers.

    Raises importlib.metadata.PackageNotFoundError, or ImportError, if the project is not installed.
    """
    from packaging.requirements import Requirement

    package = importlib.metadata.metadata("bert_horovod")
    declared = [Requirement(text) for text in package.get_all("Requires-Dist", [])]
    specifiers = {
        requirement.name: str(requirement.specifier)
        for requirement in declared
        if requirement.marker is None or requirement.marker.evaluate({"extra": "horovod"})
    }
    return package["Requires-Python"], specifiers | {"tensorflow": f"=={TENSORFLOW}"}


def untested_versions() -> list[str]:
    """Installed packages outside the tested version ranges, as `package version, expected range`."""
    from packaging.specifiers import SpecifierSet

    try:
        _, packages = tested_versions()
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that was never installed
        packages = {"tensorflow": f"=={TENSORFLOW}"}
    installed = {name: installed_version(name) for name in packages}
    return [
        f"{name} {version}, expected {packages[name]}"
        for name, version in installed.items()
        if version is not None and not SpecifierSet(packages[name]).contains(version, prereleases=True)
    ]
