"""A package of others with an update rule and an exchange, to be installed beside this project."""

import shutil
from pathlib import Path

from tests.horovod_runs import PROJECT

MODULES = (PROJECT / "tests" / "optimizers" / "toy_rule.py", PROJECT / "tests" / "exchange" / "toy_method.py")
METHODS = "sign_momentum = toy_rule:SignMomentum\nscaled_gradients = toy_method:ScaledGradientsSettings\n"


def install(directory: Path, version: str = "1.0", methods: str = METHODS) -> Path:
    """Install `toy` into a directory of a Python path, as pip would do; returns it."""
    information = directory / f"toy-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: toy\nVersion: {version}\n")
    (information / "entry_points.txt").write_text(f"[bert_horovod.methods]\n{methods}")
    for module in MODULES:
        shutil.copy(module, directory)
    return directory
