"""Ask all hosts for their facts at once: other hosts over ssh, this host directly."""

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, cast

from bert_horovod.cluster.doctor.facts import Facts, interfaces
from bert_horovod.runtime.children import PROJECT, python_settings

CONNECT_S = 5  # for ssh to reach a host
ANSWER_S = 40.0  # for a host's whole answer: Python may be on a slow network file system
CLOCK_ROUNDS = 3

# ssh's message (a pattern), what is wrong, and how to fix it on {host}, with ssh's {options}.
_REFUSALS = (
    (
        "Could not resolve hostname",
        "its name is not resolved",
        "correct the name, or add a line `ADDRESS {host}` to /etc/hosts here (or to the DNS)",
    ),
    (
        "Connection refused",
        "nothing listens on its ssh port",
        "on {host}: systemctl start ssh (Debian, Ubuntu) or sshd; or name its port: --ssh_port N",
    ),
    (
        "timed out|No route to host|unreachable",
        "it cannot be reached",
        "see that {host} runs and that no firewall is between: ping {host}",
    ),
    (
        "Permission denied|Too many authentication failures",
        "it asks for a password",
        "ssh-copy-id {options}{host} (after ssh-keygen, if there is no key yet)",
    ),
    (
        "IDENTIFICATION HAS CHANGED",
        "its host key is not the one that is known",
        "if the host was set up anew: ssh-keygen -R {host} && ssh-keyscan {host} >> ~/.ssh/known_hosts",
    ),
)


@dataclass
class HostAnswer:
    """A host's facts, or why there are none."""

    facts: Facts | None = None
    wrong: str = ""  # why there are no facts
    mend: str = ""
    key_unknown: bool = False
    clock_s: float = 0.0  # how far its clock is ahead of this host's
    clock_error_s: float = 0.0  # the largest error of clock_s


def is_here(host: str) -> bool:
    """Whether horovodrun takes a host for this one, because the host's address is that of an interface here."""
    return _address(host) in {interface["address"] for interface in interfaces().values()}


def ask_all(
    hosts: Iterable[str], ssh_port: int | None, packages: list[str], directories: list[str]
) -> dict[str, HostAnswer]:
    """Ask all hosts at once; returns an Answer for each within a minute, also if a host fails."""
    hosts = list(hosts)
    addresses = {host: _address(host) for host in hosts}
    running: list[subprocess.Popen] = []

    def ask(host: str) -> HostAnswer:
        other_addresses = [address for name, address in addresses.items() if name != host and address]
        question = {"packages": packages, "others": other_addresses, "directories": directories}
        words = [sys.executable, "-m", "bert_horovod.cluster.doctor.facts", json.dumps(question)]
        if is_here(host):
            return _ask(words, host, ssh_port, running)
        if shutil.which("ssh") is None:
            return HostAnswer(wrong="this host has no ssh to ask it", mend="install openssh-client here")
        answer = _ask(ssh(host, ssh_port, words), host, ssh_port, running)
        if answer.wrong == _KEY_UNKNOWN:  # horovodrun takes any key, so ask the host in spite of that
            answer = _ask(ssh(host, ssh_port, words, "-o", "StrictHostKeyChecking=no"), host, ssh_port, running)
            answer.key_unknown = True
        return answer

    with ThreadPoolExecutor(max_workers=64) as pool:
        try:
            return dict(zip(hosts, pool.map(ask, hosts), strict=True))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.kill()
            raise


def clock_difference(sent_s: float, answer_s: float, received_s: float) -> tuple[float, float]:
    """How far another host's clock is ahead, and the largest error of that; both in seconds, from one question.

    `sent_s` and `received_s` are by this host's clock. The other host answered at some time between them: this takes
    the middle, which is wrong by at most half of the round trip.
    """
    return answer_s - (sent_s + received_s) / 2, (received_s - sent_s) / 2


def _address(host: str) -> str | None:
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError):  # the latter: a name with an empty part, or one of more than 63 letters
        return None


def ssh(host: str, port: int | None, words: list[str], *options: str) -> list[str]:
    """The ssh command that runs `words` on a host with this checkout on Python's path; it never asks for a password."""
    remote = shlex.join(["env", *(f"{name}={value}" for name, value in python_settings().items()), *words])
    asked = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", *options, *_port(port)]
    return ["ssh", *asked, "--", host, remote]


def _port(port: int | None) -> list[str]:
    return ["-p", str(port)] if port else []


def _ask(command: list[str], host: str, port: int | None, running: list[subprocess.Popen]) -> HostAnswer:
    environment = os.environ | {"LC_ALL": "C"} | python_settings()
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        running.append(process)
        timer = threading.Timer(ANSWER_S, process.kill)
        timer.start()
        try:
            # A shell's start-up files may print something first.
            stdin, stdout = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
            line = next((line for line in stdout if line.startswith('{"name"')), None)
            if line is not None:
                clock_s, error_s = min((_tick(stdin, stdout) for _ in range(CLOCK_ROUNDS)), key=lambda tick: tick[1])
                stdin.close()
                return HostAnswer(json.loads(line), clock_s=clock_s, clock_error_s=error_s)
            code = process.wait()
        except (OSError, ValueError):  # Python on the host ended in the middle of its answer
            with contextlib.suppress(OSError):  # else Popen raises it: what could not be written is written at the end
                stdin.close()
            code = process.wait()
        finally:
            timer.cancel()
        errors.seek(0)
        return _refusal(errors.read(), code, host, port)


def _tick(stdin: IO[str], stdout: IO[str]) -> tuple[float, float]:
    sent_s = time.time()
    stdin.write("\n")
    stdin.flush()
    answer_s = float(stdout.readline())
    return clock_difference(sent_s, answer_s, time.time())


_KEY_UNKNOWN = "its host key is unknown here"


def _refusal(errors: str, code: int, host: str, port: int | None) -> HostAnswer:
    """Why a host gave no facts, from the messages of ssh or of the host's Python."""
    if code == 255:
        for pattern, wrong, mend in _REFUSALS:
            if re.search(pattern, errors):
                options = "".join(f"{word} " for word in _port(port))
                return HostAnswer(wrong=wrong, mend=mend.format(host=host, options=options))
        if "Host key verification failed" in errors:
            return HostAnswer(wrong=_KEY_UNKNOWN)
    lines = errors.strip().splitlines()
    last = lines[-1] if lines else f"no word, exit code {code}"
    if code < 0:
        return HostAnswer(wrong=f"it gave no answer within {ANSWER_S:g} s", mend=f"see what hangs: ssh {host} uptime")
    if code == 127 or "No module named" in last or "No such file" in last:
        return HostAnswer(
            wrong=f"it has no {sys.executable} with {PROJECT} ({last})",
            mend="put the project and its .venv at the same path on every host",
        )
    return HostAnswer(wrong=f"it fails: {last}", mend=f"try by hand: ssh {host} {sys.executable} --version")
