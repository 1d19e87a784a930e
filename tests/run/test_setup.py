"""run/setup.sh in a copy of the tree, with stand-ins for Python and compilers: nothing is downloaded or built."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
TOOLS = ("bash", "cat", "chmod", "cksum", "cp", "dirname", "grep", "ln", "mkdir", "rm", "sed", "tail")
BUILD_TOOLS = ("g++", "make")
# Answers what the script asks, makes .venv/bin/python a copy of itself, writes down installations; fails if told to.
PYTHON = """#!/bin/bash
case "$*" in
    *"import pip"*) [ ! -e "${0%/*}/no-pip" ] ;;
    "-m venv --clear "*) rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; echo venv >> "$CALLS" ;;
    *"print(sys.executable)"*) echo "$0" ;;
    *'print(m.version("tensorflow"))'*) echo 2.18.1 ;;
    *"m.requires"*) echo horovod==0.28.1 ;;
    *install*)
        echo "${*:5}" "${HOROVOD_WITH_MPI:+with MPI}" >> "$CALLS"
        if [[ -n ${FAIL:-} && "$*" = *"${FAIL:-}"* ]]; then echo "no room left"; exit 1; fi ;;
esac
"""
PACKAGE_MANAGERS = ("Debian, Ubuntu:  apt-get install", "Red Hat, Rocky:  dnf install", "conda:           conda ")


class Tree:
    """A copy of what run/setup.sh needs, and a PATH with nothing else on it."""

    def __init__(self, root: Path, bin_directory: Path) -> None:
        self.root, self.bin = root, bin_directory
        self.calls_file = bin_directory.parent / "calls"
        (root / "run").mkdir(parents=True)
        bin_directory.mkdir()
        shutil.copy(PROJECT / "run" / "setup.sh", root / "run")
        shutil.copy(PROJECT / "setup.py", root)
        for name in TOOLS:
            (bin_directory / name).symlink_to(shutil.which(name))
        for name in BUILD_TOOLS:
            self.stub(name, "#!/bin/bash\n")
        self.stub("python3", PYTHON)

    def stub(self, name: str, text: str) -> None:
        """Put a program on the PATH."""
        (self.bin / name).write_text(text, encoding="utf-8")
        (self.bin / name).chmod(0o755)

    def setup(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        """Run the script."""
        environment = {"PATH": str(self.bin), "HOME": str(self.root), "CALLS": str(self.calls_file), **variables}
        return subprocess.run(
            ["bash", str(self.root / "run" / "setup.sh"), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def calls(self) -> list[str]:
        """What was made or installed since the last call, one line each."""
        if not self.calls_file.exists():
            return []
        lines = self.calls_file.read_text(encoding="utf-8").splitlines()
        self.calls_file.unlink()
        return [line.strip() for line in lines]


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "project", tmp_path / "bin")


@pytest.mark.parametrize("missing", BUILD_TOOLS)
def test_without_compiler_or_make_it_names_the_packages_and_makes_nothing(tree, missing):
    (tree.bin / missing).unlink()
    result = tree.setup()
    assert result.returncode == 1
    assert "found no C++ compiler (g++) or no make" in result.stderr
    assert all(manager in result.stderr for manager in PACKAGE_MANAGERS)
    assert "gxx make   (then: export CXX=$CONDA_PREFIX/bin/" in result.stderr
    assert not (tree.root / ".venv").exists()


def test_without_python_it_names_the_packages_and_makes_nothing(tree):
    (tree.bin / "python3").unlink()
    result = tree.setup()
    assert result.returncode == 1
    assert "found no Python 3.10, 3.11 or 3.12 with the modules venv and ensurepip" in result.stderr
    assert all(manager in result.stderr for manager in PACKAGE_MANAGERS)
    assert not (tree.root / ".venv").exists()


def test_a_python_that_is_too_old_is_not_taken(tree):
    tree.stub("python3", "#!/bin/bash\nexit 1\n")
    assert "found no Python 3.10" in tree.setup().stderr
    tree.stub("python3.10", PYTHON)
    result = tree.setup()
    assert result.returncode == 0, result.stderr
    assert f"with {tree.bin}/python3.10" in result.stdout


def test_a_python_that_is_named_and_unusable_is_refused(tree):
    result = tree.setup(PYTHON="/nowhere/python3")
    assert result.returncode == 1
    assert "PYTHON=/nowhere/python3 is no Python 3.10, 3.11 or 3.12" in result.stderr


def test_a_gpu_without_cuda_compiler_is_refused_before_anything_is_made(tree):
    tree.stub("nvidia-smi", "#!/bin/bash\necho 'GPU 0: some GPU'\n")
    result = tree.setup(CUDA_HOME="/nowhere")
    assert result.returncode == 1
    assert "found an NVIDIA GPU but no CUDA compiler (nvcc)" in result.stderr
    assert not (tree.root / ".venv").exists()


def test_nccl_can_be_asked_for_where_no_gpu_is_visible(tree):
    result = tree.setup(GPU="yes", CUDA_HOME="/nowhere")
    assert result.returncode == 1
    assert "GPU=yes, but found no CUDA compiler (nvcc)" in result.stderr
    assert "GPU=no " in result.stderr
    assert tree.setup(GPU="nvcc", CUDA_HOME="/nowhere").returncode == 0
    assert tree.calls()[2].endswith(f"-e {tree.root}")
    tree.stub("nvcc", "#!/bin/bash\n")
    result = tree.setup(GPU="nvcc")
    assert result.returncode == 0, result.stderr
    assert tree.calls()[1].endswith(f"-e {tree.root}[gpu]")
    assert "building Horovod with Gloo, NCCL" in result.stdout
    assert tree.setup(GPU="yes").returncode == 0
    assert tree.calls() == []


def test_a_gpu_can_be_left_unused(tree):
    tree.stub("nvidia-smi", "#!/bin/bash\necho 'GPU 0: some GPU'\n")
    result = tree.setup(GPU="no", CUDA_HOME="/nowhere")
    assert result.returncode == 0, result.stderr
    assert tree.calls()[2].endswith(f"-e {tree.root}")


def test_another_word_for_gpu_is_refused(tree):
    result = tree.setup(GPU="on")
    assert result.returncode == 1
    assert "GPU=on is none of yes, no and nvcc" in result.stderr
    assert not (tree.root / ".venv").exists()


def test_a_path_with_spaces_is_refused(tmp_path):
    result = Tree(tmp_path / "my project", tmp_path / "bin").setup()
    assert result.returncode == 1
    assert "fails in a path with spaces" in result.stderr


def test_a_second_run_does_nothing(tree):
    result = tree.setup()
    assert result.returncode == 0, result.stderr
    calls = tree.calls()
    assert calls[0] == "venv"
    assert calls[2].endswith(f"-e {tree.root}")
    assert calls[3].endswith("--no-deps horovod==0.28.1")
    assert calls[4].endswith(f"-e {tree.root}[horovod]")
    result = tree.setup()
    assert result.returncode == 0, result.stderr
    assert tree.calls() == []
    assert "Horovod is in place" in result.stdout


def test_a_finished_set_up_needs_no_compiler(tree):
    tree.setup()
    (tree.bin / "g++").unlink()
    assert tree.setup().returncode == 0


def test_the_test_packages_are_added_and_contain_the_others(tree):
    tree.setup()
    tree.calls()
    assert tree.setup("--test").returncode == 0
    assert tree.calls()[-1].endswith(f"-e {tree.root}[test]")
    assert tree.setup("--test").returncode == tree.setup().returncode == 0
    assert tree.calls() == []


def test_horovod_is_built_again_with_mpi_where_mpi_appears(tree):
    tree.setup()
    assert not any("with MPI" in call for call in tree.calls())
    tree.stub("mpicxx", "#!/bin/bash\n")
    result = tree.setup()
    assert "building Horovod with Gloo, MPI" in result.stdout
    calls = tree.calls()
    assert any(call.endswith(f"-e {tree.root}[mpi]") for call in calls)
    assert any("horovod==0.28.1 with MPI" in call for call in calls)


@pytest.mark.parametrize("step", ["cmake", "horovod==", "[horovod]"])
def test_a_failed_step_shows_its_log_and_is_done_again(tree, step):
    result = tree.setup(FAIL=step)
    assert result.returncode == 1
    assert "no room left" in result.stderr
    assert "the whole log: " in result.stderr
    tree.calls()
    assert tree.setup().returncode == 0
    assert any(step in call for call in tree.calls())


def test_a_half_made_environment_is_made_again(tree):
    (tree.root / ".venv" / "bin").mkdir(parents=True)
    assert tree.setup().returncode == 0
    assert tree.calls()[0] == "venv"
    (tree.root / ".venv" / "bin" / "no-pip").touch()  # interrupted between Python and pip
    assert tree.setup().returncode == 0
    assert tree.calls()[0] == "venv"


def test_an_environment_that_was_moved_is_made_again(tree):
    tree.setup()
    tree.calls()
    moved = tree.root.with_name("moved")
    os.rename(tree.root, moved)
    tree.root = moved
    assert tree.setup().returncode == 0
    assert tree.calls()[0] == "venv"


def test_help_and_a_wrong_argument(tree):
    assert "run/setup.sh [--test]" in tree.setup("--help").stdout
    result = tree.setup("--tests")
    assert result.returncode == 2
    assert "unknown argument '--tests'" in result.stderr
    assert tree.calls() == []


@pytest.mark.parametrize("script", ["run/setup.sh", "run/quickstart.sh", "run/test.sh", ".ci/run"])
def test_the_scripts_are_valid_bash_and_can_be_executed(script):
    subprocess.run(["bash", "-n", PROJECT / script], check=True)
    assert os.access(PROJECT / script, os.X_OK)
