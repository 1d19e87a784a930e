"""Which versions are tested, and what is said of others."""

import importlib.metadata
import re
from pathlib import Path

from bert_horovod.runtime import children as checked
from bert_horovod.runtime.children import TENSORFLOW

DECLARED = Path(__file__).resolve().parents[2] / "pyproject.toml"


def installed(monkeypatch, requires: list[str], **versions: str) -> None:
    """Let these be the metadata's requirements and the versions of packages."""
    version = importlib.metadata.version
    metadata = importlib.metadata.metadata("bert_horovod")
    del metadata["Requires-Dist"]
    for requirement in requires:
        metadata["Requires-Dist"] = requirement
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: metadata)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: versions.get(name) or version(name))


def test_the_tested_versions_are_those_of_the_packages_metadata():
    python, packages = checked.tested_versions()
    assert set(python.split(",")) == {">=3.10", "<3.14"}
    assert packages["tensorflow"] == f"=={TENSORFLOW}"
    assert packages["horovod"] == "==0.28.1"
    assert "torch" not in packages


def test_tensorflows_version_is_that_of_the_projects_file():
    named = re.findall(r'"tensorflow(?:\[and-cuda\])?==(.*?)"', DECLARED.read_text(encoding="utf-8"))
    assert named == [TENSORFLOW, TENSORFLOW]


def test_versions_outside_of_the_tested_ranges_are_named_with_the_range(monkeypatch):
    requires = ["numpy<2.1,>=1.26", "absl-py>=2", "absent>=1", 'pytest<1; extra == "test"']
    installed(monkeypatch, requires, numpy="3.0")
    assert checked.untested_versions() == ["numpy 3.0, expected <2.1,>=1.26"]


def test_an_environment_of_an_older_checkout_is_named_though_its_metadata_fit(monkeypatch):
    installed(monkeypatch, ["tensorflow==2.18.1"], tensorflow="2.18.1")
    assert checked.untested_versions() == [f"tensorflow 2.18.1, expected =={TENSORFLOW}"]
