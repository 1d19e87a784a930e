"""Print a host's facts as one line of JSON: the half of `bert-horovod doctor` that runs on every host.

python -m bert_horovod.cluster.doctor.facts '{"packages": ["numpy"], "others": ["10.0.0.2"], "directories": ["/tmp"]}'

Afterwards it answers every line of standard input with the time, so that clocks can be compared. It needs the standard
library alone, because it must run on hosts where packages are missing or broken.
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bert_horovod.runtime.children import installed_version, source_hash

Facts = dict[str, Any]

_SIOCGIFADDR = 0x8915
# Bytes in Horovod's library that show what it was built with; importing Horovod would tell the same, but takes 2 s.
_BUILT_WITH = {"Gloo": b"HOROVOD_GLOO_IFACE", "MPI": b"MPI_Allreduce", "NCCL": b"ncclAllReduce"}
_CUDA_COMPILER = re.compile(rb"Cuda compilation tools, release (\d+)\.")


def gather(packages: list[str], others: list[str], directories: list[str]) -> Facts:
    """All facts of this host: versions of packages, ways to other hosts, room in directories, which need not exist."""
    return {
        "name": socket.gethostname(),
        "python": platform.python_version(),
        "packages": {name: installed_version(name) for name in packages},
        "source": source_hash(),
        "horovod_with": horovod_with(),
        "horovod_cuda": horovod_cuda(),
        "own_address": own_address(),
        "loopback_line": loopback_line(Path("/etc/hosts"), socket.gethostname()),
        "interfaces": interfaces(),
        "address_to_others": next(filter(None, map(address_towards, others)), None),
        "directories": {directory: room(Path(directory)) for directory in directories},
        "memory_bytes": available_memory_bytes(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": gpus(),
    }


def horovod_with() -> list[str]:
    """Which of Gloo, MPI and NCCL Horovod was built with."""
    libraries = _horovod_libraries()
    return [name for name, mark in _BUILT_WITH.items() if any(mark in path.read_bytes() for path in libraries)]


def horovod_cuda() -> int | None:
    """The CUDA (12, 13) whose compiler made Horovod's kernels; None if it has none."""
    matches = filter(None, (_CUDA_COMPILER.search(path.read_bytes()) for path in _horovod_libraries()))
    return next((int(match[1]) for match in matches), None)


def _horovod_libraries() -> list[Path]:
    horovod = importlib.util.find_spec("horovod")
    return list(Path(horovod.origin).parent.glob("tensorflow/mpi_lib*.so")) if horovod and horovod.origin else []


def own_address() -> str | None:
    """The address on which Gloo listens for this host's ranks: the first of its own name that a socket can bind."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(
            socket.gethostname(), None, type=socket.SOCK_STREAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as tried:
                tried.bind(address)
                return str(address[0])
    return None


def loopback_line(hosts_file: Path, name: str) -> str | None:
    """The line of /etc/hosts that gives a name a loopback address, as `line 2, "127.0.1.1 node1"`."""
    with contextlib.suppress(OSError):
        for number, line in enumerate(hosts_file.read_text(errors="replace").splitlines(), 1):
            address, *names = line.partition("#")[0].split() or [""]
            if name in names and (address.startswith("127.") or address == "::1"):
                return f'line {number}, "{" ".join(line.split())}"'
    return None


def interfaces() -> dict[str, Facts]:
    """Every network interface with an IPv4 address: the address, and the speed in bit/s (None if unknown)."""
    by_name = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                by_name[name] = {"address": socket.inet_ntoa(answer[20:24]), "bits_per_s": _speed(name)}
    return by_name


def _speed(interface: str) -> float | None:
    try:
        megabits = int(Path(f"/sys/class/net/{interface}/speed").read_text())
    except (OSError, ValueError):  # an interface without a speed, such as a bridge
        return None
    return megabits * 1e6 if megabits > 0 else None


def address_towards(other: str) -> str | None:
    """This host's address on the route to another host; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
            tried.connect((other, 9))
            return tried.getsockname()[0]
    except OSError:
        return None


def room(directory: Path) -> Facts:
    """Free bytes for this user where a directory is or will be, and the error of a test write there, if any."""
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if os.path.exists(path))
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        problem = None
    except OSError as error:
        problem = error.strerror
    return {"free_bytes": shutil.disk_usage(existing).free, "wrong": problem}


def available_memory_bytes() -> int:
    """The memory that the kernel would still give to programs."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


def gpus() -> Facts:
    """NVIDIA's GPUs and their driver's version, as nvidia-smi lists them, and its error if it fails."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except FileNotFoundError:
        return {"names": [], "driver": None, "wrong": None}
    except subprocess.TimeoutExpired:
        return {"names": [], "driver": None, "wrong": "nvidia-smi has not answered within 20 s"}
    return read_gpus(asked.stdout, asked.returncode)


def read_gpus(table: str, exit_code: int) -> Facts:
    """Parse nvidia-smi's lines `driver, name`."""
    if exit_code:
        return {"names": [], "driver": None, "wrong": f"nvidia-smi says: {' '.join(table.split())}"}
    lines = [line.split(", ", 1) for line in table.splitlines() if ", " in line]
    return {"names": [name for _, name in lines], "driver": lines[0][0] if lines else None, "wrong": None}


def main() -> None:
    """Print the facts, then the time (s since the epoch) for each line of standard input."""
    print(json.dumps(gather(**json.loads(sys.argv[1]))), flush=True)
    for _ in sys.stdin:
        print(time.time(), flush=True)


if __name__ == "__main__":
    main()
