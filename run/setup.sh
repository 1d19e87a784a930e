#!/usr/bin/env bash
# Set up .venv at the project's root with the tested versions: TensorFlow, then Horovod built against it.
#
#   run/setup.sh [--test]     --test adds what the tests need (pytest, ruff, transformers, torch). PyPI's torch brings 3 GB
#                             for GPUs; where PIP_EXTRA_INDEX_URL names PyTorch's index for CPUs, it does not
#
#   PYTHON=/path/to/python3   the interpreter to use (3.10 to 3.13)
#   GPU=yes | no | nvcc       with NCCL for NVIDIA GPUs or without, where this machine's own GPUs should not decide (a
#                             login node, an image that is being built); nvcc: with it where a CUDA toolkit is found
#   CUDA_HOME=/path/to/cuda   the CUDA toolkit to build that with, where it is not the PATH's nvcc's or /usr/local/cuda
#
# Packages come from where pip's settings say (index, proxy, certificate). uv installs them, because it takes a small part
# of pip's time; it keeps what it fetched for the next checkout, as does the cache below for Horovod's wheel. The versions
# are those of run/constraints, one file for each Python; run/constraints/renew.sh writes them anew.
# Needs no root. Horovod gets Gloo always, MPI where mpicxx is found, NCCL where an NVIDIA GPU is found. Without a CUDA
# toolkit the compiler comes from NVIDIA's wheels, for the build alone: CUDA 13.0, for GPUs from compute capability 7.5
# on (T4 and later, not V100) with driver 580.65.06 or later.
# Running it again does only what is missing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
extras=
case "${1:-}" in
    "") ;;
    --test) extras=test ;;
    -h | --help) sed -n '2,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "setup: unknown argument '$1'; the only one is --test" >&2; exit 2 ;;
esac

say() { echo "setup: $*"; }
fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }

# An interpreter in the tested range that can make a virtual environment; one that is named by PYTHON, or none.
find_python() {
    local candidate candidates=(python3 python3.13 python3.12 python3.11 python3.10) found="found no Python 3.10 to 3.13"
    if [ -n "${PYTHON:-}" ]; then
        candidates=("$PYTHON")
        found="PYTHON=$PYTHON is no Python 3.10 to 3.13"
    fi
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
            2> /dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    fail "$found with the modules venv and ensurepip" \
        "  Debian, Ubuntu:  apt-get install python3 python3-venv python3-dev" \
        "  Red Hat, Rocky:  dnf install python3.12 python3.12-devel" \
        "  conda:           conda create -n bert python=3.12 && conda activate bert" \
        "  anywhere:        uv python install 3.12   (needs the internet, and uv: https://docs.astral.sh/uv)," \
        "                   then PYTHON=\$(uv python find 3.12) $0" \
        "or name one: PYTHON=/path/to/python3.12 $0"
}

# This machine's CUDA toolkit, or nothing. nvcc is asked where it is, because that of the PATH may be a script or a link.
find_toolkit() {
    local bin nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
    if [ -z "${CUDA_HOME:-}" ]; then nvcc=$(command -v nvcc || echo "$nvcc"); fi
    if [ -x "$nvcc" ]; then
        bin=$("$nvcc" --dryrun -x cu -c /dev/null 2>&1 | sed -n 's/^#\$ _HERE_=//p')
        dirname "${bin:-$(dirname "$nvcc")}"
    fi
}

# The compiler of NVIDIA's wheels builds for GPUs and drivers of a certain age; older ones need a toolkit of their time.
require_gpus_for_wheels() {
    local too_old
    command -v nvidia-smi > /dev/null || return 0
    too_old=$(nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2> /dev/null |
        awk -F ', ' 'NF == 3 && ($2 + 0 < 580 || $3 + 0 < 7.5) {print $1 " (driver " $2 ", compute capability " $3 ")"; exit}') || true
    if [ -n "$too_old" ]; then
        fail "found $too_old and no CUDA toolkit (nvcc); the compiler of NVIDIA's wheels, CUDA 13.0, builds for" \
            "driver 580.65.06 and compute capability 7.5 or later. CUDA 12 builds for older ones, such as the V100 (7.0):" \
            "  Debian, Ubuntu:  apt-get install cuda-toolkit-12-5   (from NVIDIA's repository)" \
            "  Red Hat, Rocky:  dnf install cuda-toolkit-12-5       (from NVIDIA's repository)" \
            "  conda:           conda install -c nvidia cuda-toolkit=12.5" \
            "or name its directory: CUDA_HOME=/path/to/cuda $0" \
            "or do without NCCL:    GPU=no $0"
    fi
}

# What Horovod's build needs beside Python, looked for before anything is downloaded.
require_build_tools() {
    if ! command -v "${CXX:-g++}" > /dev/null || ! command -v make > /dev/null; then
        fail "found no C++ compiler (${CXX:-g++}) or no make; Horovod is built from source and needs both" \
            "  Debian, Ubuntu:  apt-get install build-essential" \
            "  Red Hat, Rocky:  dnf install gcc-c++ make" \
            "  conda:           conda install -c conda-forge gxx make   (then: export CXX=\$CONDA_PREFIX/bin/x86_64-conda-linux-gnu-g++)"
    fi
    if [ $gpu = yes ] && [ -z "$toolkit" ]; then require_gpus_for_wheels; fi
    if [[ $root =~ [[:space:]] ]]; then
        fail "the project lies in '$root'; Horovod's build fails in a path with spaces: move it to one without"
    fi
}

# done_already NAME KEY: has the step NAME been done with these inputs?
done_already() { [ "$(cat "$venv/.done-$1" 2> /dev/null)" = "$2" ]; }
mark_done() { echo "$2" > "$venv/.done-$1"; }

# The requirements of an extra in pyproject.toml, which states the tested versions.
requirements_of() {
    "$venv/bin/python" -c 'import importlib.metadata as m, sys
print(*(r.split(";")[0].strip() for r in m.requires("bert_horovod") if r.split()[-1].strip("\"\x27") == sys.argv[1]))' "$1"
}

# A name for Horovod's wheel that another build with other results does not have.
name_of_build() {
    {
        echo "$(requirements_of horovod) $horovod_key ${CXXFLAGS:-} ${LDFLAGS:-}"
        "${CXX:-g++}" --version
        if [ $mpi = yes ]; then mpicxx -show; fi
        "$venv/bin/python" -c 'import platform, sysconfig
print(sysconfig.get_config_var("SOABI"), platform.libc_ver())'
    } 2>&1 | cksum | sed 's/ /-/; s/^/horovod-/'
}

# Run a step with its output in a log; show the end of the log if it fails.
logged() {
    local log=$venv/$1.log
    shift
    "$@" > "$log" 2>&1 || { tail -n 25 "$log" >&2; fail "failed: $*" "the whole log: $log"; }
}

gpu=no
toolkit=$(find_toolkit)
case "${GPU:-}" in
    yes | no) gpu=$GPU ;;
    nvcc) if [ -n "$toolkit" ]; then gpu=yes; fi ;;
    "") if command -v nvidia-smi > /dev/null && nvidia-smi -L 2> /dev/null | grep -q GPU; then gpu=yes; fi ;;
    *) fail "GPU=$GPU is none of yes, no and nvcc" ;;
esac
if [ $gpu = yes ]; then extras=${extras:+$extras,}gpu; fi
mpi=no
if command -v mpicxx > /dev/null; then
    mpi=yes
fi

# A virtual environment that was interrupted while it was made has no pip; one that was moved has wrong paths in it.
usable() {
    [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import pip' 2> /dev/null &&
        [ "$(cat "$venv/.made-at" 2> /dev/null || echo "$venv")" = "$venv" ]
}

[ -e "$venv/.done-horovod" ] && usable || require_build_tools
release_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }
if ! usable; then
    python=$(find_python)
    say "making $venv with $python"
    "$python" -m venv --clear "$venv"
    echo "$venv" > "$venv/.made-at"
elif [ -n "${PYTHON:-}" ]; then
    python=$(find_python)
    if [ "$(release_of "$python")" != "$(release_of "$venv/bin/python")" ]; then
        fail "PYTHON=$PYTHON is Python $(release_of "$python"), but $venv has $(release_of "$venv/bin/python")" \
            "to make it anew:  rm -r '$venv'   then the same command"
    fi
fi
# uv reads none of pip's settings: hand it those that say where packages come from. The later ones of three win, as in pip.
use_pip_settings() {
    local settings source key value
    settings=$("$venv/bin/python" -m pip config list)
    for source in global install :env:; do
        while IFS='=' read -r key value; do
            value=${value//\\n/ }
            read -r value <<< "${value//[\'\"]/}" || true
            case $key in
                "$source".index-url) export UV_DEFAULT_INDEX=$value ;;
                "$source".extra-index-url) export UV_INDEX=$value ;;
                "$source".find-links) export UV_FIND_LINKS=${value// /,} ;;
                "$source".no-index) export UV_NO_INDEX=$value ;;
                "$source".cert) export SSL_CERT_FILE=$value ;;
                "$source".client-cert) export SSL_CLIENT_CERT=$value ;;
                "$source".proxy) export ALL_PROXY=$value ;;
                "$source".trusted-host) export UV_INSECURE_HOST=$value ;;
                "$source".timeout | "$source".default-timeout) export UV_HTTP_TIMEOUT=$value ;;
            esac
        done <<< "$settings"
    done
    export UV_INDEX_STRATEGY=unsafe-best-match # as pip: the best version of all indexes
}

constraints=$root/run/constraints/python$(release_of "$venv/bin/python").txt
install=("$venv/bin/python" -m uv pip install --quiet --python "$venv/bin/python" --constraints "$constraints"
    --overrides "$root/run/constraints/without.txt")
export PATH="$venv/bin:$PATH"

# A plain run after a run with --test finds more than it needs, and that is fine.
packages_key="$(cat "$root/pyproject.toml" "$root/setup.py" "$constraints" "${constraints%/*}/without.txt" | cksum) gpu=$gpu"
if done_already packages-test "$packages_key" || { [[ $extras != *test* ]] && done_already packages "$packages_key"; }; then
    say "TensorFlow and the other packages are in place"
else
    say "installing TensorFlow and the other packages (GPU: $gpu), about 1 minute"
    logged packages "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$constraints" uv
    use_pip_settings
    logged packages "${install[@]}" setuptools wheel cmake -e "$root${extras:+[$extras]}"
    # Python keeps the compiled modules of a first import, which the owner of .venv can write and others may not.
    logged import env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -c "import tensorflow, tensorflow_text"
    if [[ $extras == *test* ]]; then mark_done packages-test "$packages_key"; else mark_done packages "$packages_key"; fi
fi

# What Horovod's source includes and today's TensorFlow and GCC do not have. Their contents decide, not their place.
headers=$root/run/horovod_headers
headers_key=$(find "$headers" -name '*.h' -exec cksum {} + | awk '{print $1}' | LC_ALL=C sort | cksum)
tensorflow=$("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("tensorflow"))')
horovod_key="$tensorflow headers=${headers_key// /-} gpu=$gpu mpi=$mpi"
if [ $gpu = yes ] && [ -n "$toolkit" ]; then horovod_key="$horovod_key toolkit=$toolkit"; fi
built=$(cat "$venv/.done-horovod" 2> /dev/null || true)
# A build with a toolkit that is not found now (a module that is not loaded) is as good as one with wheels.
if [[ $built = "$horovod_key" || $built = "$horovod_key toolkit="* ]] &&
    "$venv/bin/python" -c 'import importlib.metadata as m; m.version("horovod")' 2> /dev/null; then
    say "Horovod is in place"
else
    require_build_tools
    export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
    with="Gloo"
    kept_name=$(name_of_build)
    included=$("$venv/bin/python" -c 'import tensorflow; print(tensorflow.sysconfig.get_include())' 2> /dev/null)/external
    CXXFLAGS="${CXXFLAGS:-} -include $headers/standard.h -I$headers"
    export CXXFLAGS="$CXXFLAGS -I$included/highwayhash -I$included/farmhash_archive/src"
    if [ $mpi = yes ]; then
        export HOROVOD_WITH_MPI=1
        with="$with, MPI"
    else
        export HOROVOD_WITHOUT_MPI=1
    fi
    if [ $gpu = yes ]; then
        # TensorFlow brought NCCL along as a wheel, without the name that a linker looks for.
        nccl=$("$venv/bin/python" -c 'import nvidia.nccl as n; print(list(n.__path__)[0])')
        ln -sf libnccl.so.2 "$nccl/lib/libnccl.so"
        cuda=$toolkit
        if [ -z "$cuda" ]; then
            # Only the build needs them: Horovod gets CUDA's runtime inside.
            wheels=$venv/cuda-wheels
            trap 'rm -rf "$wheels"' EXIT
            say "found no CUDA toolkit${CUDA_HOME:+ in CUDA_HOME=$CUDA_HOME}; fetching NVIDIA's wheels of the compiler, 105 MB"
            read -ra nvcc <<< "$(requirements_of nvcc)"
            logged nvcc "${install[@]}" --no-deps --upgrade --target "$wheels" "${nvcc[@]}"
            cuda=$wheels/nvidia/cu13
            ln -s lib "$cuda/lib64"
            ln -s libcudart.so.13 "$cuda/lib/libcudart.so"
        fi
        export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_HOME="$nccl" HOROVOD_NCCL_LINK=SHARED HOROVOD_CUDA_HOME="$cuda"
        # Named, because Horovod would ask the PATH's nvcc, which may be another one.
        capabilities=$("$cuda/bin/nvcc" --list-gpu-code | sed -n 's/^sm_\([0-9]*\)$/\1/p')
        export HOROVOD_BUILD_CUDA_CC_LIST="${capabilities//$'\n'/,}"
        release=$("$cuda/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
        with="$with, NCCL (CUDA $release from ${toolkit:-wheels})"
        # Horovod asks nvcc for C++11, which the headers of GCC 14 are too new for; nvcc takes the standard named last.
        export NVCC_APPEND_FLAGS="${NVCC_APPEND_FLAGS:-} -std=c++17"
        # The linker would take the runtime from TensorFlow, which loads CUDA 12's: that does not fit code of another CUDA.
        runtime=$cuda/lib64/libcudart_static.a
        if [[ $release != 12.* && -e $runtime ]]; then
            export LDFLAGS="${LDFLAGS:-} -Wl,--whole-archive $runtime -Wl,--no-whole-archive,--exclude-libs,libcudart_static.a -lrt -lpthread -ldl"
        fi
    fi
    wheel=$venv/horovod-wheel
    rm -rf "$wheel"
    # Horovod with NCCL is built for this machine's CUDA and is not kept.
    kept=
    if [ $gpu = no ]; then kept=${XDG_CACHE_HOME:-$HOME/.cache}/bert_horovod/$kept_name; fi
    if [ -n "$kept" ] && cp -r "$kept" "$wheel" 2> /dev/null; then
        say "taking Horovod with $with from $kept"
    else
        say "building Horovod with $with, about 2 minutes"
        # Horovod asks for debug information, which takes long to make and is 55 of the 57 MB of its library.
        if "${CXX:-g++}" -gtoggle -x c++ -E /dev/null > /dev/null 2>&1; then export CXXFLAGS="${CXXFLAGS:-} -gtoggle"; fi
        MAKEFLAGS=${MAKEFLAGS:--j$(nproc)} logged horovod "$venv/bin/python" -m pip wheel --quiet --disable-pip-version-check \
            --no-build-isolation --no-cache-dir --wheel-dir "$wheel" --no-deps "$(requirements_of horovod)"
        if [ -n "$kept" ]; then
            mkdir -p "${kept%/*}" && cp -r "$wheel" "$kept.$$" && mv -T "$kept.$$" "$kept" 2> /dev/null || rm -rf "$kept.$$"
        fi
    fi
    # And what Horovod itself needs beside TensorFlow.
    use_pip_settings
    logged horovod "${install[@]}" --no-build-isolation --reinstall-package horovod "$wheel"/horovod-*.whl -e "$root[horovod]"
    rm -rf "$wheel"
    mark_done horovod "$horovod_key"
fi
# Tests between hosts make those hosts themselves, with these, and reports are looked at in a browser; without root both
# are skipped.
hosts_packages=()
command -v chromium > /dev/null || hosts_packages+=(chromium)
command -v ip > /dev/null || [ -x /sbin/ip ] || hosts_packages+=(iproute2)
[ -x /usr/sbin/sshd ] || hosts_packages+=(openssh-server)
if [[ $extras == *test* && ${#hosts_packages[@]} -gt 0 && $(id -u) = 0 ]] && command -v apt-get > /dev/null; then
    say "installing ${hosts_packages[*]} for tests"
    apt-get update -qq > "$venv/hosts.log" 2>&1 || true
    for package in "${hosts_packages[@]}"; do  # one by one: a distribution may lack one of them
        DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "$package" >> "$venv/hosts.log" 2>&1 ||
            say "$package could not be installed ($venv/hosts.log); the tests that need it will be skipped"
    done
fi
say "ready: $venv"
