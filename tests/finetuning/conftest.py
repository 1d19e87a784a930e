"""A toy task of GLUE and a checkpoint to start from, shared by a module's tests."""

from pathlib import Path

import pytest

from tests.toy_glue import write_checkpoint, write_glue


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("toy")
    return {"data_dir": write_glue(directory / "glue"), "checkpoint": write_checkpoint(directory / "checkpoint")}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("toy") / "checkpoint")
