"""Hosts and their slots (ranks a host): from a hostfile, a list, a command, or the variables of this job."""

import ipaddress
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from bert_horovod.errors import UserError
from bert_horovod.runtime.children import run_whole
from bert_horovod.storage.reading import read_text, shown

Hosts = dict[str, int]  # host -> slots, in the order of ranks

_NAME = re.compile(r"(?!-)[\w.-]+")  # ssh would take a name that begins with - as an option
_NO_HOSTS = ("none", "null")  # as programs write a value that is absent
MAXIMUM_SLOTS = 4096  # of a host
_MAXIMUM_HOSTS = 65536
_DISCOVERY_S = 60.0
_LIMIT_BYTES = 16 << 20  # of a hostfile
OPERATORS_HOSTFILE = Path("/etc/mpi/hostfile")  # of Kubernetes' MPI operator
# The operator's script that prints the workers which run now; its hostfile has all, whether they run or not.
OPERATORS_DISCOVERY = Path("/etc/mpi/discover_hosts.sh")
LEFT_OVER = "if the variable is left over from another job, unset it, or say which hosts: -hostfile F or -H host:n,..."


def read_hostfile(path: Path) -> Hosts:
    """The hosts of a hostfile with lines `host slots=N` or `host:N`; "#" begins a comment.

    Horovodrun itself takes neither comments nor empty lines. Raises UserError that names the line.
    """
    return parse_hostfile(_read(path, "the hostfile"), str(path))


def parse_hostfile(text: str, source: str, slots: int | None = None) -> Hosts:
    """The hosts of a hostfile's text; `source` is its name in errors.

    `slots`: of a host that stands alone in its line; None: such a line is refused. Raises UserError.
    """
    hosts: Hosts = {}
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{source}, line {number}: {line!r}"
        stated = line.partition("#")[0].strip()
        if not stated:
            continue
        match = re.fullmatch(r"(\S+)[ \t]+slots=([0-9]+)|([^\s:]+):([0-9]+)", stated)
        if match:
            _add(hosts, match[1] or match[3], match[2] or match[4], where)
        elif slots and re.fullmatch(r"\S+", stated):
            _add(hosts, stated, str(slots), where)
        else:
            raise UserError(f"{where} cannot be read; expected `host slots=N` in every line")
    if not hosts:
        raise UserError(f"{source} names no host; expected lines `host slots=N`")
    return hosts


def parse_hosts(text: str) -> Hosts:
    """The hosts of a list such as `node1:8,node2:8`; raises UserError.

    >>> parse_hosts("node1:8,node2:4")
    {'node1': 8, 'node2': 4}
    """
    hosts: Hosts = {}
    for host_slots in text.split(","):
        match = re.fullmatch(r"(\S+):([0-9]+)", host_slots.strip())
        if not match:
            raise UserError(f"-H {text}: {host_slots!r} is not of the form host:slots, as in -H node1:8,node2:8")
        _add(hosts, match[1], match[2], f"-H {text}")
    return hosts


def format_hostfile(hosts: Hosts) -> str:
    """The lines of a hostfile."""
    return "".join(f"{host} slots={slots}\n" for host, slots in hosts.items())


def in_kubernetes(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a pod."""
    return bool(environment.get("KUBERNETES_SERVICE_HOST") or environment.get("K_MPI_JOB_ROLE"))


def discover(command: str, slots: int = 1) -> Hosts:
    """The hosts that a shell command prints as a hostfile; a host alone in its line has `slots`. Raises UserError."""
    # Files, because a daemon that the command starts would hold pipes open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            code = run_whole(["sh", "-c", command], _DISCOVERY_S, output, errors)
            output.seek(0)
            errors.seek(0)
            printed = output.read(_LIMIT_BYTES).decode()
            said = errors.read(_LIMIT_BYTES).decode(errors="replace").strip()
        except (subprocess.TimeoutExpired, UnicodeDecodeError) as error:
            raise UserError(f"--discover {command}: {error}; expected lines `host slots=N`") from error
    if code:
        said = shown(said) if said else "no word"
        raise UserError(f"--discover {command}: exit code {code}, {said}; expected lines `host slots=N`")
    return parse_hostfile(printed, f"--discover {command}", slots)


def from_scheduler(environment: Mapping[str, str] = os.environ) -> tuple[Hosts, str] | None:
    """The hosts of the scheduler's job of this process, and the names of the variables read; None outside of a job.

    Raises UserError if a scheduler's variable cannot be read.
    """
    for variable, read in _SCHEDULERS.items():
        if environment.get(variable):
            if environment[variable].lower().strip("()") in _NO_HOSTS:
                raise UserError(f"{variable}={environment[variable]} names no host; {LEFT_OVER}")
            hosts, source = read(environment[variable], environment)
            if not hosts:
                raise UserError(f"{variable} names no host: {shown(environment[variable])}")
            checked: Hosts = {}
            for host, slots in hosts.items():
                _add(checked, host, str(slots), f"{variable}={shown(environment[variable])}")
            return checked, source
    if OPERATORS_HOSTFILE.is_file():  # of an Intel MPI or MPICH, whose variables are others
        return _operators(str(OPERATORS_HOSTFILE), environment)
    return None


def expand_nodelist(text: str) -> list[str]:
    """Expand names in SLURM's compressed form, such as node[01-03,7],gpu-a[1-2]-ib; raises UserError.

    >>> expand_nodelist("node[08-10,12],gpu-a[1-2]-ib")
    ['node08', 'node09', 'node10', 'node12', 'gpu-a1-ib', 'gpu-a2-ib']
    """
    # Commas inside brackets separate numbers; all other commas separate names.
    entries = re.findall(r"(?:\[[^\[\]]*\]|[^\[\],])+", text)
    if ",".join(entries) != text:
        raise UserError(f"SLURM_JOB_NODELIST={text}: brackets or commas do not match; expected a form as node[01-03,7]")
    names = list(islice((name for entry in entries for name in _expand(entry, text)), _MAXIMUM_HOSTS + 1))
    if len(names) > _MAXIMUM_HOSTS:
        raise UserError(
            f"SLURM_JOB_NODELIST={shown(text)} names more than {_MAXIMUM_HOSTS:,} hosts; expected those of this job; "
            f"{LEFT_OVER}"
        )
    return names


def expand_counts(text: str, hosts: int) -> list[int]:
    """Expand SLURM's compressed numbers: 8(x3),4 is 8, 8, 8, 4; a single one is for all hosts. Raises UserError.

    >>> expand_counts("8(x3),4", hosts=4)
    [8, 8, 8, 4]
    """
    counts: list[int] = []
    for host_count in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", host_count)
        if not match or not int(match[1]) or int(match[2] or 1) > _MAXIMUM_HOSTS:
            raise UserError(f"SLURM says {shown(text)} for the tasks of its nodes; expected a form as 8(x3),4")
        counts += [int(match[1])] * int(match[2] or 1)
    if len(counts) == 1:
        counts *= hosts
    if len(counts) != hosts:
        raise UserError(f"SLURM says {text} for the tasks of its nodes, which is {len(counts)} nodes; it lists {hosts}")
    return counts


def _expand(entry: str, text: str) -> Iterator[str]:
    """All names of one entry: one for each combination of the numbers in its brackets."""
    head, bracket, suffix = entry.partition("[")
    if not bracket:
        if not _NAME.fullmatch(entry):
            raise UserError(f"SLURM_JOB_NODELIST={text}: {entry!r} is not a host's name")
        yield entry
        return
    numbers, _, tail = suffix.partition("]")
    for span in numbers.split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", span)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise UserError(f"SLURM_JOB_NODELIST={text}: {span!r} is not a number or a range of them, such as 01-03")
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            yield from _expand(f"{head}{number:0{len(match[1])}}{tail}", text)


def _slurm(nodelist: str, environment: Mapping[str, str]) -> tuple[Hosts, str]:
    """Slots are the tasks that the user asked for; else the GPUs; else the tasks that SLURM chose by itself."""
    names = expand_nodelist(nodelist)
    _tell_of_other_parts(environment)
    asked = environment.get("SLURM_NTASKS") or environment.get("SLURM_NPROCS")
    for variable in (
        *(["SLURM_TASKS_PER_NODE"] if asked else []),  # what each node got; the next is the most that it may get
        "SLURM_NTASKS_PER_NODE",
        "SLURM_GPUS_ON_NODE",
        "SLURM_GPUS_PER_NODE",
        "SLURM_GPUS",
        "SLURM_TASKS_PER_NODE",
    ):
        slots = _without_kinds(environment.get(variable, ""))
        if variable in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS") and slots:
            slots = _gpus_of_a_node(slots, variable, len(names), _without_kinds(environment.get("SLURM_GPUS", "")))
        if slots and not (slots == "0" and "GPUS" in variable):  # as a user asks for none of a partition's GPUs
            return _summed(zip(names, expand_counts(slots, len(names)), strict=True)), f"SLURM_JOB_NODELIST, {variable}"
    return dict.fromkeys(names, 1), "SLURM_JOB_NODELIST; it says no number of tasks or GPUs, so that each has one slot"


def _without_kinds(gpus: str) -> str:
    """A number of GPUs without their types: of a100:8 it is 8, of a100:2,v100:2 it is 4; other texts stay."""
    if ":" not in gpus:
        return gpus
    counts = [kind_count.rpartition(":")[2] for kind_count in gpus.split(",")]
    return str(sum(map(int, counts))) if all(map(str.isdecimal, counts)) else counts[-1]


def _gpus_of_a_node(slots: str, variable: str, nodes: int, in_all: str) -> str:
    """The GPUs of each node, of `in_all` on all nodes; raises UserError if the nodes do not have equally many."""
    if not in_all.isdecimal() or not slots.isdecimal():
        return slots
    each = int(in_all) // nodes if variable == "SLURM_GPUS" else int(slots)
    if each * nodes != int(in_all):
        raise UserError(
            f"SLURM_GPUS={in_all} on {nodes} nodes are not equally many on each, and SLURM does not say which has how "
            "many; say it: -H host:n,..., or ask for --gpus-per-node"
        )
    return str(each)


def _tell_of_other_parts(environment: Mapping[str, str]) -> None:
    """Say on standard error which hosts of a heterogeneous job are left out: SLURM_JOB_NODELIST has its first part."""
    lists = re.compile(r"SLURM_(?:JOB_)?NODELIST_(?:HET|PACK)_GROUP_[1-9]\d*")
    others = dict.fromkeys(environment[name] for name in sorted(environment) if lists.fullmatch(name))
    if others:
        print(f"left out are the other parts of this heterogeneous job: {' '.join(others)}", file=sys.stderr)


def _line_per_slot(variable: str) -> Callable[[str, Mapping[str, str]], tuple[Hosts, str]]:
    def read(path: str, _environment: Mapping[str, str]) -> tuple[Hosts, str]:
        return dict(Counter(_read(Path(path), variable).split())), f"{variable}={path}"

    return read


def _sge(path: str, _environment: Mapping[str, str]) -> tuple[Hosts, str]:
    """Lines `host slots queue processors`."""
    try:
        words = [line.split() for line in _read(Path(path), "PE_HOSTFILE").splitlines()]
        return _summed((host, int(slots)) for host, slots, *_ in words), f"PE_HOSTFILE={path}"
    except ValueError as error:
        raise UserError(
            f"PE_HOSTFILE={path} cannot be read ({error}); expected lines `host slots queue ...`"
        ) from error


def _lsf_counts(text: str, _environment: Mapping[str, str]) -> tuple[Hosts, str]:
    """`host1 8 host2 8`."""
    words = text.split()
    if len(words) % 2 or not all(slots.isdecimal() for slots in words[1::2]):
        raise UserError(f"LSB_MCPU_HOSTS={text}: expected pairs of a host and its slots, as in `node1 8 node2 8`")
    return _summed(zip(words[::2], map(int, words[1::2]), strict=True)), "LSB_MCPU_HOSTS"


def _operators(path: str, environment: Mapping[str, str]) -> tuple[Hosts, str]:
    """The hostfile that Kubernetes' MPI operator and Trainer mount; a variable of Open MPI names it."""
    slots = environment.get("OMPI_MCA_orte_set_default_slots") or "1"
    if not re.fullmatch("0*[1-9][0-9]{0,8}", slots):
        raise UserError(f"OMPI_MCA_orte_set_default_slots={shown(slots)}: expected the ranks of a host, at least 1")
    hosts = parse_hostfile(_read(Path(path), "the hostfile"), path, int(slots))
    return hosts, f"{path}{' of a job in Kubernetes' if in_kubernetes(environment) else ''}"


def _skypilot(addresses: str, environment: Mapping[str, str]) -> tuple[Hosts, str]:
    """An address a line; a slot for each GPU of a node, and one where there is none."""
    gpus = environment.get("SKYPILOT_NUM_GPUS_PER_NODE") or "0"
    if not gpus.isdecimal():
        raise UserError(f"SKYPILOT_NUM_GPUS_PER_NODE={shown(gpus)}: expected a number")
    source = f"SKYPILOT_NODE_IPS{', SKYPILOT_NUM_GPUS_PER_NODE' if int(gpus) else ', which tells of no GPU'}"
    return dict.fromkeys(addresses.split(), max(1, int(gpus))), source


def _summed(hosts_slots: Iterable[tuple[str, int]]) -> Hosts:
    """Hosts with all of their slots: a host that has slots in two queues has an entry for each queue."""
    hosts: Hosts = {}
    for host, slots in hosts_slots:
        hosts[host] = hosts.get(host, 0) + slots
    return hosts


# The variable that a scheduler sets in its jobs -> the function that reads the hosts.
_SCHEDULERS: dict[str, Callable[[str, Mapping[str, str]], tuple[Hosts, str]]] = {
    "SLURM_JOB_NODELIST": _slurm,
    "PBS_NODEFILE": _line_per_slot("PBS_NODEFILE"),
    "LSB_MCPU_HOSTS": _lsf_counts,
    "LSB_DJOB_HOSTFILE": _line_per_slot("LSB_DJOB_HOSTFILE"),
    "LSB_HOSTS": lambda text, _environment: (dict(Counter(text.split())), "LSB_HOSTS"),
    "PE_HOSTFILE": _sge,
    "SKYPILOT_NODE_IPS": _skypilot,
    "OMPI_MCA_orte_default_hostfile": _operators,
}


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).version == 6
    except ValueError:
        return False


def _add(hosts: Hosts, host: str, slots: str, where: str) -> None:
    if _is_ipv6(host):
        raise UserError(
            f"{where}: {host} is an address of IPv6, which horovodrun cannot take, because there a colon separates a "
            "host from its slots; expected the host's name (/etc/hosts can give it one), or its address of IPv4"
        )
    if not _NAME.fullmatch(host) or host.lower() in _NO_HOSTS:
        raise UserError(f"{where}: {host!r} is not a host's name")
    if host in hosts:
        raise UserError(f"{where} names {host} a second time; give all its slots at once")
    if len(slots) > 9 or int(slots) > MAXIMUM_SLOTS:
        raise UserError(f"{where} gives {host} {shown(slots)} slots; expected at most {MAXIMUM_SLOTS} ranks on a host")
    if not int(slots):
        raise UserError(f"{where} gives {host} no slot; expected at least 1, or leave the host out")
    hosts[host] = int(slots)


def _read(path: Path, what: str) -> str:
    try:
        return read_text(path, limit_bytes=_LIMIT_BYTES).removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {what} {path}: {getattr(error, 'strerror', error)}; expected a file") from error
