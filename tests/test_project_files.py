"""The project's own files: one version, packages that are whole, pipelines that call what is here; the test run."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import bert_horovod
from tests.horovod_runs import PATIENCE_S, PROJECT, run_python

BUILD = "from setuptools import build_meta; print(build_meta.build_{kind}({where!r}))"
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "bert_horovod", "run")


def test_the_version_is_written_once_and_pages_name_it():
    declared = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in declared
    assert "version=" not in (PROJECT / "setup.py").read_text(encoding="utf-8")
    citation = (PROJECT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (\S+)$", citation, re.MULTILINE)[1] == bert_horovod.__version__
    released = re.findall(r"^## (\d\S+)", (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert released[0] == bert_horovod.__version__


def test_pipelines_and_forms_name_what_is_here():
    yaml = pytest.importorskip("yaml")
    workflows = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))
    assert [path.stem for path in workflows] == ["docs", "full", "quick", "slow"]
    words = []
    for path in workflows:
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
        assert all(job["timeout-minutes"] for job in jobs)
        words += [word for job in jobs for step in job["steps"] for word in step.get("run", "").split()]
    hooks = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    words += [word for repo in hooks for hook in repo["hooks"] for word in hook.get("entry", "").split()]
    named = [word for word in words if "/" in word and not word.startswith(".venv")]
    assert {"run/test.sh", ".ci/run"} <= set(named)
    assert [word for word in named if not (PROJECT / word).exists()] == []
    form = yaml.safe_load((PROJECT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8"))
    assert "bert-horovod doctor --json" in {part["attributes"]["label"] for part in form["body"]}


def built(kind: str, tree: Path, where: Path) -> Path:
    """A package of a tree, built without a network."""
    command = [sys.executable, "-c", BUILD.format(kind=kind, where=str(where))]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return where / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel that is made of the source package."""
    directory = tmp_path_factory.mktemp("packages")
    tree = directory / "tree"
    for name in SOURCES:
        source, target = PROJECT / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    sources = built("sdist", tree, directory)
    with tarfile.open(sources) as archive:
        archive.extractall(directory / "unpacked", filter="data")
    [unpacked] = (directory / "unpacked").iterdir()
    assert (unpacked / "run" / "setup.sh").stat().st_mode & 0o100
    assert (unpacked / "run" / "horovod_headers" / "standard.h").is_file()
    return built("wheel", unpacked, directory)


@pytest.mark.slow
def test_a_wheel_of_the_source_package_has_every_file(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = archive.read(f"bert_horovod-{bert_horovod.__version__}.dist-info/METADATA").decode()
    package = PROJECT / "bert_horovod"
    files = {str(path.relative_to(PROJECT)) for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    recipes = {f"bert_horovod/recipes/{path.name}" for path in (PROJECT / "run" / "recipes").glob("*.toml")}
    assert packed == files | recipes
    assert "Classifier: Typing :: Typed" in metadata
    assert "License-Expression: Apache-2.0" in metadata


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_without_the_checkout(wheel, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    python, program = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "bert-horovod"

    def run(*command: object) -> str:
        words = list(map(str, command))
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    [own] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    assert (own / "bert_horovod" / "py.typed").is_file()
    # What the wheel needs comes from this environment, whose own links to the checkout are not followed.
    there = Path(importlib.metadata.distribution("absl-py").locate_file(""))
    (own / "packages.pth").write_text(f"{there}\n")
    assert run(program, "--version").strip() == bert_horovod.__version__
    assert "bert-base" in run(program, "recipes")
    recipe = own / "bert_horovod" / "recipes" / "bert-base.toml"
    assert "days" in run(program, "plan", "--recipe", recipe, "--device", "A100")
    code = (
        "from bert_horovod.model.gpu_kernels import catalogue; import bert_horovod\n"
        "print(bert_horovod.__file__, len([text.read('bf16') for text in catalogue.all_texts()]))"
    )
    where, texts = run(python, "-c", code).split()
    assert Path(where).is_relative_to(own)
    assert int(texts) > 40


WORDS = ("-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "tests/test_wording.py")


@pytest.mark.full
def test_no_test_begins_after_the_time_given_and_the_summary_counts_them():
    done = run_python(*WORDS, "--begin-until", "0", cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    (left,) = re.findall(r"^not begun: (\d+) tests, because the time given was over", done.stdout, re.M)
    assert int(left) > 0
    assert f"{left} skipped" in done.stdout
    assert "passed" not in done.stdout


@pytest.mark.full
def test_the_tests_of_a_file_are_done_by_one_worker_so_that_they_share_its_fixtures():
    files = ["tests/test_wording.py", "tests/costs/test_exchanges.py", "tests/costs/test_clusters.py"]
    words = ("-m", "pytest", "-n", "2", "--dist", "loadgroup", "-v", "-p", "no:cacheprovider")
    done = run_python(*words, *files, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    places = set(re.findall(r"^\[(gw\d)\].* PASSED (\S+?)::", done.stdout, re.M))
    assert sorted(file for _, file in places) == sorted(files)
