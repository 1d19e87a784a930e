"""Python that this program starts: with this very checkout, and without the modules of the directory it starts in."""

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def python_settings() -> dict[str, str]:
    """Variables of the environment for it, on any host.

    An empty entry of PYTHONPATH would be the directory in which Python is started, and Python puts that directory first
    by itself, unless PYTHONSAFEPATH says otherwise (from Python 3.11 on): a json.py there would be run.
    """
    paths = [str(PROJECT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONSAFEPATH": "1"}
