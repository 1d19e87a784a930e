"""This very checkout on a host, and Python that runs it there; the standard library alone."""

import hashlib
import importlib.metadata
import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def python_settings() -> dict[str, str]:
    """Variables of the environment for Python that runs this checkout, and no module of where it is started.

    An empty entry of PYTHONPATH would be the directory in which Python is started, and Python puts that directory first
    by itself, unless PYTHONSAFEPATH says otherwise (from Python 3.11 on): a json.py there would be run.
    """
    paths = [str(PROJECT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONSAFEPATH": "1"}


def installed_version(package: str) -> str | None:
    """Of an installed package; None where it is missing."""
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
