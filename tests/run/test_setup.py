"""run/setup.sh in a copy of the tree, with stand-ins for Python and compilers: nothing is downloaded or built."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.horovod_runs import PATIENCE_S

PROJECT = Path(__file__).resolve().parents[2]
TOOLS = (
    *("awk", "bash", "cat", "chmod", "cksum", "cp", "dirname", "env", "find"),
    *("grep", "ln", "mkdir", "mv", "nproc", "rm", "sed", "sort", "tail"),
)
BUILD_TOOLS = ("g++", "make")
# Answers what the script asks, makes .venv/bin/python a copy of itself, writes down installations; fails if told to.
PYTHON = """#!/bin/bash
case "$*" in
    *"import pip"*) [ ! -e "${0%/*}/no-pip" ] ;;
    "-m venv --clear "*) rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; echo venv >> "$CALLS" ;;
    *"print(sys.executable)"*) echo "$0" ;;
    *"%d.%d"*) echo 3.11 ;;
    *get_include*) echo /include ;;
    *'print(m.version("tensorflow"))'*) echo 2.21.0 ;;
    *"m.requires"*" horovod") echo horovod==0.28.1 ;;
    *"m.requires"*" nvcc") echo "nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.*" ;;
    *"nvidia.nccl"*) mkdir -p "${0%/*}/nccl/lib"; echo "${0%/*}/nccl" ;;
    "-m pip config list") [ ! -e "$HOME/pip-settings" ] || cat "$HOME/pip-settings" ;;
    *install* | *"pip wheel"*)
        echo "${*:5}" "${HOROVOD_WITH_MPI:+with MPI}" \
            "${HOROVOD_CUDA_HOME:+for $HOROVOD_BUILD_CUDA_CC_LIST by $HOROVOD_CUDA_HOME/bin/nvcc}" \
            "${LDFLAGS:+with $LDFLAGS}" "${UV_INDEX:+from $UV_DEFAULT_INDEX, $UV_INDEX, $UV_FIND_LINKS}" >> "$CALLS"
        if [[ "$*" = *" --target "* ]]; then
            mkdir -p "$VENV_CUDA/bin" "$VENV_CUDA/lib"
            cp "$NVCC" "$VENV_CUDA/bin/nvcc"
        fi
        if [[ -n ${FAIL:-} && "$*" = *"${FAIL:-}"* ]]; then echo "no room left"; exit 1; fi
        if [[ "$*" = *"--wheel-dir "* ]]; then
            words=$*
            wheels=${words##*--wheel-dir }
            mkdir -p "${wheels%% *}"
            echo "$CXXFLAGS; $NVCC_APPEND_FLAGS" > "$CALLS.flags"
            echo "$HOROVOD_CUDA_HOME" > "${wheels%% *}/horovod-0.28.1.whl"
        fi ;;
esac
"""
NVCC = """#!/bin/bash
case "$1" in
    --dryrun) echo "#$ _HERE_=${0%/*}" >&2 ;;
    --version) echo "Cuda compilation tools, release RELEASE, V1.2.3" ;;
    --list-gpu-code) printf 'sm_75\\nsm_90\\nsm_90a\\n' ;;
esac
"""
NVIDIA_SMI = """#!/bin/bash
case "$*" in
    -L) echo "GPU 0: some GPU" ;;
    "--query-gpu=name,driver_version,compute_cap --format=csv,noheader") echo "FACTS" ;;
esac
"""
A100, V100 = "NVIDIA A100, 550.54.15, 8.0", "Tesla V100, 580.95.05, 7.0"
PACKAGE_MANAGERS = ("Debian, Ubuntu:  apt-get install", "Red Hat, Rocky:  dnf install", "conda:           conda ")


class Tree:
    """A copy of what run/setup.sh needs, and a PATH with nothing else on it."""

    def __init__(self, root: Path, bin_directory: Path) -> None:
        self.root, self.bin = root, bin_directory
        self.calls_file = bin_directory.parent / "calls"
        (root / "run").mkdir(parents=True)
        bin_directory.mkdir()
        for name in ("setup.sh", "constraints", "horovod_headers"):
            source = PROJECT / "run" / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, root / "run" / name)
        for name in ("setup.py", "pyproject.toml"):
            shutil.copy(PROJECT / name, root)
        for name in TOOLS:
            (bin_directory / name).symlink_to(shutil.which(name))
        for name in BUILD_TOOLS:
            self.stub(name, "#!/bin/bash\n")
        self.stub("python3", PYTHON)
        self.wheels_nvcc = self.toolkit(bin_directory.parent / "wheels", "13.0") / "bin" / "nvcc"

    def stub(self, name: str, text: str) -> None:
        """Put a program on the PATH."""
        (self.bin / name).write_text(text, encoding="utf-8")
        (self.bin / name).chmod(0o755)

    @staticmethod
    def toolkit(root: Path, release: str) -> Path:
        """Make a CUDA toolkit with nothing but a compiler that answers questions."""
        (root / "bin").mkdir(parents=True)
        (root / "bin" / "nvcc").write_text(NVCC.replace("RELEASE", release), encoding="utf-8")
        (root / "bin" / "nvcc").chmod(0o755)
        return root

    def gpu(self, facts: str) -> None:
        """Let nvidia-smi find one GPU: name, driver and compute capability."""
        self.stub("nvidia-smi", NVIDIA_SMI.replace("FACTS", facts))

    @property
    def cuda_of_wheels(self) -> Path:
        return self.root / ".venv" / "cuda-wheels" / "nvidia" / "cu13"

    def setup(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        """Run the script. This machine's own toolkit, if it has one, is not seen, because CUDA_HOME names another."""
        environment = {
            "PATH": str(self.bin),
            "HOME": str(self.root),
            "CALLS": str(self.calls_file),
            "CUDA_HOME": "/nowhere",
            "NVCC": str(self.wheels_nvcc),
            "VENV_CUDA": str(self.cuda_of_wheels),
            **variables,
        }
        command = ["bash", str(self.root / "run" / "setup.sh"), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)

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


@pytest.mark.full
@pytest.mark.parametrize("missing", [*BUILD_TOOLS, "python3"])
def test_without_compiler_make_or_python_it_names_the_packages_and_makes_nothing(tree, missing):
    (tree.bin / missing).unlink()
    done = tree.setup()
    assert done.returncode == 1
    found = "Python 3.10 to 3.13 with the modules venv and ensurepip" if missing == "python3" else "C++ compiler (g++)"
    assert f"found no {found}" in done.stderr
    assert all(manager in done.stderr for manager in PACKAGE_MANAGERS)
    assert not (tree.root / ".venv").exists()


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "message"),
    [
        (["--tests"], {}, 2, "unknown argument '--tests'"),
        ([], {"GPU": "on"}, 1, "GPU=on is none of yes, no and nvcc"),
        ([], {"PYTHON": "/nowhere/python3"}, 1, "PYTHON=/nowhere/python3 is no Python 3.10 to 3.13"),
    ],
)
def test_a_wrong_word_and_an_unusable_python_are_refused(tree, arguments, variables, code, message):
    done = tree.setup(*arguments, **variables)
    assert done.returncode == code
    assert message in done.stderr
    assert not (tree.root / ".venv").exists()


@pytest.mark.full
@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (A100, "found NVIDIA A100 (driver 550.54.15, compute capability 8.0)"),
        (V100, "found Tesla V100 (driver 580.95.05, compute capability 7.0)"),
    ],
)
def test_a_gpu_or_driver_too_old_for_the_wheels_needs_a_toolkit(tree, facts, found):
    tree.gpu(facts)
    done = tree.setup()
    assert done.returncode == 1
    assert f"{found} and no CUDA toolkit (nvcc)" in done.stderr
    assert "driver 580.65.06 and compute capability 7.5 or later" in done.stderr
    assert "GPU=no " in done.stderr
    assert not (tree.root / ".venv").exists()
    toolkit = tree.toolkit(tree.bin.parent / "cuda", "12.5")
    done = tree.setup(CUDA_HOME=str(toolkit))
    assert done.returncode == 0, done.stderr
    assert f"building Horovod with Gloo, NCCL (CUDA 12.5 from {toolkit})" in done.stdout


@pytest.mark.full
def test_a_second_run_does_nothing_and_test_packages_are_added(tree):
    done = tree.setup()
    assert done.returncode == 0, done.stderr
    calls = tree.calls()
    assert calls[0] == "venv"
    assert calls[2].endswith(f"-e {tree.root}")
    assert calls[3].endswith("--no-deps horovod==0.28.1")
    assert calls[4].endswith(f"-e {tree.root}[horovod]")
    done = tree.setup()
    assert done.returncode == 0, done.stderr
    assert tree.calls() == []
    assert "Horovod is in place" in done.stdout
    assert tree.setup("--test").returncode == 0
    assert tree.calls()[-1].endswith(f"-e {tree.root}[test]")
    assert tree.setup("--test").returncode == tree.setup().returncode == 0
    assert tree.calls() == []  # the test packages contain the others


@pytest.mark.full
def test_horovod_is_built_again_with_mpi_where_mpi_appears(tree):
    tree.setup()
    assert not any("with MPI" in call for call in tree.calls())
    tree.stub("mpicxx", "#!/bin/bash\n")
    done = tree.setup()
    assert done.returncode == 0, done.stderr
    assert "building Horovod with Gloo, MPI" in done.stdout
    calls = tree.calls()
    assert any("horovod==0.28.1 with MPI" in call for call in calls)


@pytest.mark.full
def test_another_checkout_takes_the_wheel_unless_it_would_be_built_otherwise(tree):
    def set_up_anew(**variables: str) -> str:
        shutil.rmtree(tree.root / ".venv", ignore_errors=True)
        done = tree.setup(**variables)
        assert done.returncode == 0, done.stderr
        assert "horovod-wheel/horovod-0.28.1.whl" in tree.calls()[-1]
        assert not (tree.root / ".venv" / "horovod-wheel").exists()
        return done.stdout

    kept = tree.root / ".cache" / "bert_horovod"
    assert "building Horovod with Gloo, " in set_up_anew()
    (wheel,) = kept.iterdir()
    assert f"taking Horovod with Gloo from {wheel}\n" in set_up_anew()
    assert "building" in set_up_anew(CXXFLAGS="-march=native")
    assert "building" in set_up_anew(XDG_CACHE_HOME=str(tree.root / "elsewhere"))
    tree.stub("g++", "#!/bin/bash\necho g++ 99\n")
    assert "building" in set_up_anew()
    for _ in range(2):
        assert "building Horovod with Gloo, NCCL" in set_up_anew(GPU="yes")
    assert len(list(kept.iterdir())) == 3


@pytest.mark.full
def test_horovod_is_built_with_the_headers_that_its_source_expects(tree):
    assert tree.setup(GPU="yes", CXXFLAGS="-march=native", NVCC_APPEND_FLAGS="-O1").returncode == 0
    headers = tree.root / "run" / "horovod_headers"
    includes = f"-I{headers} -I/include/external/highwayhash -I/include/external/farmhash_archive/src"
    flags = tree.calls_file.with_name("calls.flags").read_text().strip()
    assert flags == f"-march=native -include {headers}/standard.h {includes} -gtoggle; -O1 -std=c++17"
    assert "Horovod is in place" in tree.setup(GPU="yes").stdout
    with (headers / "standard.h").open("a") as header:
        header.write("#include <vector>\n")
    assert "building Horovod" in tree.setup(GPU="yes").stdout


@pytest.mark.full
def test_every_python_has_versions_that_fit_the_projects_file(tree):
    from packaging.requirements import Requirement
    from packaging.version import Version

    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8").partition("[project]")[2]
    required = [Requirement(line) for line in re.findall(r'"([a-z][a-z0-9-]*(?:[<>=]=?[0-9][^"]*))"', text)]
    assert {"numpy", "tensorflow", "uv", "torch"} <= {requirement.name for requirement in required}
    for python in ("3.10", "3.11", "3.12", "3.13"):
        file = PROJECT / "run" / "constraints" / f"python{python}.txt"
        pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE))
        for requirement in required:
            if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
                assert requirement.specifier.contains(Version(pinned[requirement.name])), (python, requirement)
        assert "triton" not in pinned  # it crashes beside TensorFlow


@pytest.mark.full
@pytest.mark.parametrize("step", ["cmake", "horovod==", "[horovod]"])
def test_a_failed_step_shows_its_log_and_is_done_again(tree, step):
    done = tree.setup(FAIL=step)
    assert done.returncode == 1
    assert "no room left" in done.stderr
    assert "the whole log: " in done.stderr
    tree.calls()
    assert tree.setup().returncode == 0
    assert any(step in call for call in tree.calls())


@pytest.mark.full
def test_an_environment_of_another_python_than_the_named_one_is_not_taken_for_it(tree):
    assert tree.setup().returncode == 0
    tree.calls()
    tree.stub("python3.13", PYTHON.replace("echo 3.11", "echo 3.13"))
    other = tree.setup(PYTHON="python3.13")
    assert (other.returncode, tree.calls()) == (1, [])
    assert f"PYTHON=python3.13 is Python 3.13, but {tree.root}/.venv has 3.11" in other.stderr
    assert "rm -r" in other.stderr
    assert "PYTHON=/nowhere/python3 is no Python" in tree.setup(PYTHON="/nowhere/python3").stderr
    assert tree.setup(PYTHON="python3").returncode == 0


def test_the_page_builds_horovod_by_hand_with_the_same_flags():
    page = (PROJECT / "docs" / "install.md").read_text(encoding="utf-8")
    setup = (PROJECT / "run" / "setup.sh").read_text(encoding="utf-8")
    flags = [re.findall(r"-(?:include |I)[$\w/.]+", text) for text in (page, setup)]
    named = {"$PWD/run/horovod_headers": "$headers", "$external/": "$included/"}
    for mine, theirs in named.items():
        flags[0] = [flag.replace(mine, theirs) for flag in flags[0]]
    assert flags[0] == flags[1] != []
    assert "pip install '.[build]'" in page  # --no-build-isolation: pip fetches no cmake


@pytest.mark.full
def test_a_half_made_environment_is_made_again(tree):
    (tree.root / ".venv" / "bin").mkdir(parents=True)
    assert tree.setup().returncode == 0
    assert tree.calls()[0] == "venv"
    (tree.root / ".venv" / "bin" / "no-pip").touch()  # interrupted between Python and pip
    assert tree.setup().returncode == 0
    assert tree.calls()[0] == "venv"


@pytest.mark.parametrize("script", ["run/setup.sh", "run/quickstart.sh", "run/test.sh", ".ci/run"])
def test_the_scripts_are_valid_bash_and_can_be_executed(script):
    subprocess.run(["bash", "-n", PROJECT / script], check=True)
    assert os.access(PROJECT / script, os.X_OK)
