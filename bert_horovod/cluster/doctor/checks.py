"""Check the facts of hosts: what is wrong, and how to fix it. Arithmetic alone: nothing is asked or run here."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from bert_horovod.cluster.doctor.ask import HostAnswer
from bert_horovod.cluster.doctor.facts import Facts
from bert_horovod.cluster.launching.hostfiles import Hosts
from bert_horovod.runtime.children import set_up
from bert_horovod.wording import counted, gigabytes

OK, WARNING, FAILED = "ok", "warning", "FAILED"

CLOCK_LIMIT_S = 1.0
# A checkpoint has 12 bytes for each parameter (itself and two moments): BERT-large has 335 million parameters,
# BERT-base 110 million. The newest three checkpoints stay while a fourth is written.
_CHECKPOINT_BYTES = {"BERT-base": 1.3e9, "BERT-large": 4.0e9}
_CHECKPOINTS = 4
_TEMPORARY_BYTES = 100e6  # small files of XLA and of the prepare stages
# Memory of a rank: 16 bytes for each parameter of BERT-base (itself, gradient, two moments), and TensorFlow's 0.6 GB.
_RANK_BYTES = 2.4e9
# NVIDIA's for CUDA 12, which TensorFlow's GPU packages include, and for a Horovod built with CUDA 13. TensorFlow's
# kernels for Hopper are PTX of CUDA 12.5, which only that CUDA's driver or a later one compiles.
_LEAST_DRIVER = {"CUDA 12": "525.60.13", "CUDA 12.5 on Hopper": "555.42.02", "CUDA 13": "580.65.06"}
_HOPPER = re.compile(r"\bG?H(100|200|800|20)\b")


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report: the thing checked, its level, and how to fix it if it is not OK."""

    name: str
    level: str
    found: str
    expected: str = ""
    mend: str = ""
    hosts: tuple[str, ...] = ()  # that cause the failure; empty if that is unknown


def check_ssh(answers: Mapping[str, HostAnswer]) -> list[Check]:
    """Whether every host answers without a password."""
    bad = [
        Check("ssh", FAILED, f"{host}: {answer.wrong}", "an answer without a password", answer.mend, (host,))
        for host, answer in answers.items()
        if answer.facts is None
    ]
    bad += [
        Check(
            "ssh",
            WARNING,
            f"{host}: its host key is unknown here, which horovodrun takes and mpirun refuses",
            "a known key",
            f"ssh-keyscan {host} >> ~/.ssh/known_hosts",
        )
        for host, answer in answers.items()
        if answer.key_unknown and answer.facts is not None
    ]
    return bad or [Check("ssh", OK, f"{counted(len(answers), 'host')} without a password")]


def check_versions(
    facts: Mapping[str, Facts], python: str, packages: Mapping[str, str], alone: bool = False
) -> list[Check]:
    """Whether every host has the tested versions, and all hosts have the same.

    `alone`: a run is one process, which needs no Horovod.
    """
    from packaging.specifiers import SpecifierSet

    bad = []
    for host, host_facts in facts.items():
        versions = {"Python": host_facts["python"], **host_facts["packages"]}
        for name, specifier in {"Python": python, **packages}.items():
            if versions[name] is None or not SpecifierSet(specifier).contains(versions[name], prereleases=True):
                needless = alone and name == "horovod"
                mend = f"{set_up(host)}{' with PYTHON=...' if name == 'Python' else ''}"
                bad.append(
                    Check(
                        "versions",
                        WARNING if needless else FAILED,
                        f"{host}: {name} {versions[name] or 'is missing'}{'; one process works' if needless else ''}",
                        f"{name} {specifier}{', for several ranks' if needless else ''}",
                        mend,
                        (host,),
                    )
                )
        if host_facts["packages"].get("horovod") and "Gloo" not in host_facts["horovod_with"]:
            text = f"{host}: Horovod with {' and '.join(host_facts['horovod_with']) or 'nothing'}"
            bad.append(Check("versions", FAILED, text, "Horovod with Gloo", set_up(host), (host,)))
    bad += _same({host: told["python"] for host, told in facts.items()}, "Python")
    for name in packages:
        bad += _same({host: told["packages"][name] for host, told in facts.items()}, name)
    bad += _same({host: told["source"][:12] for host, told in facts.items()}, "this project's source")
    built = {host: " and ".join(told["horovod_with"]) or "nothing" for host, told in facts.items()}
    bad += _same(built, "Horovod with")
    if bad:
        return bad
    first = next(iter(facts.values()))
    main = ", ".join(f"{name} {first['packages'][name]}" for name in ("tensorflow", "horovod", "numpy"))
    with_ = " and ".join(first["horovod_with"])
    same = f", the same on {counted(len(facts), 'host')}" if len(facts) > 1 else ""
    return [Check("versions", OK, f"Python {first['python']}, {main}; Horovod with {with_}{same}")]


def _same(facts: Mapping[str, str | None], subject: str) -> list[Check]:
    """A failure if a known value differs between hosts: the value of most hosts is right, at a tie the first value."""
    groups: dict[str, list[str]] = defaultdict(list)
    for host, fact in facts.items():
        if fact is not None:
            groups[fact].append(host)
    if len(groups) < 2:
        return []
    differing = "; ".join(f"{text} on {', '.join(hosts)}" for text, hosts in groups.items())
    mend = "copy the project to every host anew" if "source" in subject else set_up("the hosts that differ")
    right = max(groups.values(), key=len)
    differing_hosts = tuple(host for hosts in groups.values() if hosts is not right for host in hosts)
    return [Check("versions", FAILED, f"{subject}: {differing}", "the same on all hosts", mend, differing_hosts)]


def check_clocks(answers: Mapping[str, HostAnswer]) -> list[Check]:
    """Whether the clocks of hosts agree, because users compare the times in logs and files of several hosts."""
    bad = [
        Check(
            "clocks",
            WARNING,
            f"{host}: {abs(answer.clock_s):.1f} s {'ahead of' if answer.clock_s > 0 else 'behind'} this host's",
            f"within {CLOCK_LIMIT_S:g} s",
            f"on {host}: timedatectl set-ntp true (or chronyc makestep)",
        )
        for host, answer in answers.items()
        if abs(answer.clock_s) - answer.clock_error_s > CLOCK_LIMIT_S
    ]
    most = max(abs(answer.clock_s) + answer.clock_error_s for answer in answers.values())
    return bad or [Check("clocks", OK, f"within {most * 1e3:.2g} ms of this host's")]


def check_disks(facts: Mapping[str, Facts], temporary: str, output: str | None = None) -> list[Check]:
    """Whether there is room, and the right to write, for temporary files and, on the first host, for checkpoints."""
    places = [(host, temporary, _TEMPORARY_BYTES, "for temporary files", "set TMPDIR") for host in facts]
    if output:
        checkpoint_text = "for one checkpoint of BERT-base"
        places.append(
            (next(iter(facts)), output, _CHECKPOINT_BYTES["BERT-base"], checkpoint_text, "take another --output_dir")
        )
    bad: list[Check] = []
    fine: dict[str, float] = {}
    for host, directory, least, purpose, otherwise in places:
        free, problem = facts[host]["directories"][directory].values()
        text = f"{host}: {directory}: {f'{problem}, ' if problem else ''}{gigabytes(free)} free"
        wanted_bytes = _CHECKPOINTS * _CHECKPOINT_BYTES["BERT-large"] if directory == output else least
        if problem or free < least:
            mend = f"make room or give leave to write (df -h {directory}; ls -ld {directory}), or {otherwise}"
            bad.append(Check("disk", FAILED, text, f"{gigabytes(least)} {purpose}", mend, (host,)))
        elif free < wanted_bytes:
            expected = f"{gigabytes(wanted_bytes)}: {_CHECKPOINTS} checkpoints of BERT-large; smaller models need less"
            bad.append(Check("disk", WARNING, text, expected, "make room, or --set execution.keep_checkpoints=1"))
        else:
            fine[directory] = min(free, fine.get(directory, free))
    free_text = ", ".join(f"{directory} {gigabytes(free)}" for directory, free in fine.items())
    return bad or [Check("disk", OK, f"writable, and free everywhere: {free_text}")]


def check_resources(facts: Mapping[str, Facts], slots: Hosts) -> list[Check]:
    """Whether every rank has enough cores and memory."""
    bad = []
    for host, host_facts in facts.items():
        if host_facts["cores"] < slots[host]:
            text = f"{host}: {host_facts['cores']} cores for {slots[host]} ranks"
            bad.append(Check("cores", WARNING, text, "a core for each rank", f"give {host} fewer slots"))
        memory_bytes = host_facts["memory_bytes"] / slots[host]
        if memory_bytes < _RANK_BYTES:
            text = f"{host}: {gigabytes(memory_bytes)} available for each of {slots[host]} ranks"
            mend = "fewer slots, or see what fits: bert-horovod bench memory"
            bad.append(Check("memory", WARNING, text, f"{gigabytes(_RANK_BYTES)}: BERT-base before activations", mend))
    cores = min(host_facts["cores"] / slots[host] for host, host_facts in facts.items())
    memory = min(host_facts["memory_bytes"] / slots[host] for host, host_facts in facts.items())
    return bad or [
        Check("resources", OK, f"each rank has at least {cores:.3g} cores and {gigabytes(memory)} of memory")
    ]


def check_gpus(facts: Mapping[str, Facts], slots: Hosts, alone: bool = False) -> list[Check]:
    """If any host has GPUs: whether GPUs, driver and Horovod's NCCL suffice for the ranks of every host.

    `alone`: as in check_versions.
    """
    kinds = {name for host_facts in facts.values() for name in host_facts["gpus"]["names"]}
    bad = []
    for host, host_facts in facts.items():
        gpus = host_facts["gpus"]
        if gpus["wrong"]:
            mend = "restart after a driver's update, or install the driver again"
            bad.append(Check("GPUs", FAILED, f"{host}: {gpus['wrong']}", "an answer of nvidia-smi", mend, (host,)))
            continue
        if kinds and len(gpus["names"]) < slots[host]:
            text, expected = f"{host}: {len(gpus['names'])} GPUs for {slots[host]} ranks", "a GPU for each rank"
            bad.append(Check("GPUs", FAILED, text, expected, f"give {host} no more slots than GPUs", (host,)))
        needed_by = "CUDA 12.5 on Hopper" if any(map(_HOPPER.search, gpus["names"])) else "CUDA 12"
        if (host_facts["horovod_cuda"] or 0) >= 13:
            needed_by = "CUDA 13"
        if gpus["driver"] and _numbers(gpus["driver"]) < _numbers(_LEAST_DRIVER[needed_by]):
            expected = f"{_LEAST_DRIVER[needed_by]} for {needed_by}"
            with_12 = f", or {set_up(host)} with a CUDA 12 toolkit" if needed_by == "CUDA 13" else ""
            bad.append(
                Check("GPUs", FAILED, f"{host}: driver {gpus['driver']}", expected, f"a newer driver{with_12}", (host,))
            )
        if gpus["names"] and "NCCL" not in host_facts["horovod_with"] and not alone:
            mend = f"{set_up(host)}, where nvidia-smi is found"
            text = f"{host}: Horovod without NCCL"
            bad.append(Check("GPUs", FAILED, text, "with NCCL, to reduce on GPUs", mend, (host,)))
    if len(kinds) > 1:
        text = f"several kinds: {', '.join(sorted(kinds))}"
        bad.append(Check("GPUs", WARNING, text, "one kind: the slowest sets the pace", "leave the slower hosts out"))
    if bad:
        return bad
    if not kinds:
        return [Check("GPUs", OK, "none; ranks compute on the CPU")]
    count = sum(len(host_facts["gpus"]["names"]) for host_facts in facts.values())
    driver = next(iter(facts.values()))["gpus"]["driver"]
    return [Check("GPUs", OK, f"{count} of {kinds.pop()}, driver {driver}{'' if alone else ', NCCL'}")]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
