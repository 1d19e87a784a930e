#!/usr/bin/env python3
"""A cluster in a box: hosts on this machine, joined by Ethernet links of a known rate. Needs root.

python lab/cluster.py --hosts 4 --link 1gbit                                   (a shell on the first host)
python lab/cluster.py --hosts 2 --link 100mbit -- horovodrun --gloo -np 2 --hostfile '{hostfile}' python ...

A host has its own network, name, /etc/hosts, processes and sshd; ssh between hosts asks for nothing. Files, cores and
users are this machine's. Links are shaped in both directions; a packet's delay is the machine's own, some 0.05 ms.
Everything is in namespaces that only the hosts' processes hold: when they end, nothing is left, whatever ended them.
Packages (Debian): iproute2 openssh-server openssh-client util-linux.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

NETWORK = "10.77.0"
INTERFACE = "eth0"
READY_S = 20.0
_TOOLS = ("ip", "tc", "unshare", "nsenter", "mount", "ssh", "ssh-keygen", "sshd")
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
# Ends, and every process of its host with it, when whoever started it closes its standard input or dies.
_HOST = 'hostname "$0"; mount --make-rprivate /; {prepare} echo ready; read -r _'


def why_not() -> str | None:
    """What this machine lacks for a cluster in a box, or None."""
    if os.geteuid() != 0:
        return "a cluster in a box needs root"
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]
    if missing:
        return f"a cluster in a box needs {', '.join(missing)} (Debian: iproute2, openssh-server, openssh-client)"
    tried = subprocess.run(["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "true"], capture_output=True)
    return None if tried.returncode == 0 else f"this machine allows no namespaces: {tried.stderr.decode().strip()}"


class Cluster:
    """Hosts that run; made by `cluster`."""

    def __init__(self, names: list[str], directory: Path, holders: dict[str, int]) -> None:
        self.hosts = names
        self.directory = directory  # scratch, removed at the end
        self.hostfile = directory / "hostfile"
        self._holders = holders  # of each host, and of the switch between them: the process that holds its namespaces

    def run(
        self, host: str, command: Sequence[str | Path], timeout: float = 120, **options
    ) -> subprocess.CompletedProcess:
        """Run a command on a host to its end; standard output and error are captured as text.

        After `timeout` seconds its process group is killed and TimeoutExpired raised; `options` are Popen's.
        """
        with self.start(host, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def start(self, host: str, command: Sequence[str | Path], **options) -> subprocess.Popen:
        """Start a command on a host, in this process's directory and in a session of its own."""
        return subprocess.Popen(self._inside(host, command), start_new_session=True, **options)

    def shape(self, host: str, rate: str) -> None:
        """Give a host's link another rate, such as 100mbit, in both directions."""
        for holder, device in ((host, INTERFACE), ("switch", host)):
            # A bucket of 1 ms, and never less than two of the largest segments that a host hands to its card at once.
            burst = max(128_000, int(bits_per_s(rate) / 8 / 1000))
            tbf = f"dev {device} root tbf rate {rate} burst {burst} latency 100ms"
            _call(self._inside(holder, ["tc", "qdisc", "replace", *tbf.split()]))

    def traffic(self, host: str) -> tuple[int, int]:
        """Bytes that a host has sent and received, by its interface's counters in the kernel, headers included."""
        table = _call(self._inside(host, ["cat", "/proc/net/dev"]))
        received, sent = re.search(rf"{INTERFACE}: *(\d+)" + r" +\d+" * 7 + r" +(\d+)", table).groups()
        return int(sent), int(received)

    def hosts_file(self, host: str) -> Path:
        """The file that is /etc/hosts on a host; to be changed in place."""
        return self.directory / f"{host}.hosts"

    def cut(self, host: str) -> None:
        """Take a host's link down."""
        _call(self._inside("switch", ["ip", "link", "set", host, "down"]))

    def mend(self, host: str) -> None:
        """Take a host's link up again."""
        _call(self._inside("switch", ["ip", "link", "set", host, "up"]))

    def _inside(self, host: str, command: Sequence[str | Path]) -> list[str | Path]:
        inside = ["nsenter", f"--target={self._holders[host]}", "--net", "--uts", "--mount", "--pid"]
        return [*inside, "env", "-C", os.getcwd(), *command]  # nsenter itself goes to /


@contextlib.contextmanager
def cluster(
    hosts: int = 2, link: str = "1gbit", slots: int = 1, names: Sequence[str] = (), domain: str = ""
) -> Iterator[Cluster]:
    """So many hosts, node1 to nodeN, with links of this rate; `slots` ranks a host in the hostfile.

    `names`: of the hosts, in place of node1 to nodeN, at most 15 characters each; with `domain`, as in ".example.org",
    each has its full name too.

    Raises RuntimeError with what a failed command said.
    """
    lacking = why_not()
    if lacking:
        raise RuntimeError(lacking)
    names = list(names) or [f"node{i + 1}" for i in range(hosts)]
    with tempfile.TemporaryDirectory(prefix="cluster-") as scratch, contextlib.ExitStack() as stack:
        directory = Path(scratch)
        _write_files(directory, names, slots, domain)
        holders = {"switch": stack.enter_context(_host("switch", directory, ""))}
        for name in names:
            holders[name] = stack.enter_context(_host(name, directory, _prepare(directory, name)))
        box = Cluster(names, directory, holders)
        _join(box, link)
        _await_ssh(box)
        yield box


def bits_per_s(rate: str) -> float:
    """Of a rate as tc takes it: 1gbit, 100mbit, 2.5gbit; raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(k|m|g)bit", rate)
    if not match or not float(match[1]):
        raise ValueError(f"{rate}: expected a rate such as 1gbit or 100mbit")
    return float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[match[2]]


def _write_files(directory: Path, names: list[str], slots: int, domain: str) -> None:
    (directory / "hostfile").write_text("".join(f"{name} slots={slots}\n" for name in names))
    full = [f"{name}{domain} {name}" if domain else name for name in names]
    addresses = "".join(f"{NETWORK}.{i + 1} {name}\n" for i, name in enumerate(full))
    for name in names:
        (directory / f"{name}.hosts").write_text(f"127.0.0.1 localhost\n{addresses}")
    for key in ("host_key", "user_key"):
        _call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / key])
    shutil.copy(directory / "user_key.pub", directory / "authorized_keys")
    known = (directory / "host_key.pub").read_text()
    (directory / "known_hosts").write_text("".join(f"{name} {known}" for name in names))
    (directory / "ssh_config").write_text(
        f"Host *\n  IdentityFile {directory}/user_key\n  IdentitiesOnly yes\n"
        f"  GlobalKnownHostsFile {directory}/known_hosts\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    (directory / "sshd_config").write_text(
        f"HostKey {directory}/host_key\nAuthorizedKeysFile {directory}/authorized_keys\nStrictModes no\n"
        "PermitRootLogin yes\nUsePAM no\nPidFile none\nMaxStartups 100\nPasswordAuthentication no\n"
    )


def _prepare(directory: Path, name: str) -> str:
    """What a host does before it is ready, as shell commands."""
    return (
        f"mount --bind {directory}/{name}.hosts /etc/hosts; mount --bind {directory}/ssh_config /etc/ssh/ssh_config; "
        "mount -t sysfs sysfs /sys; "
        f"mkdir -p /run/sshd; $(command -v sshd) -f {directory}/sshd_config -E {directory}/{name}.sshd.log; "
    )


@contextlib.contextmanager
def _host(name: str, directory: Path, prepare: str) -> Iterator[int]:
    """The process id of a shell that holds new namespaces."""
    spaces = ["--net", "--uts", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
    command = ["unshare", *spaces, "bash", "-ec", _HOST.format(prepare=prepare), name]
    errors = directory / f"{name}.log"
    with (
        errors.open("w") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=os.environ | {"PATH": _PATH}
        ) as process,
    ):
        try:
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"the host {name} did not start: {errors.read_text().strip()}")
            yield int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        finally:
            process.kill()


def _join(box: Cluster, link: str) -> None:
    """Wire every host to the switch."""

    def ip(holder: int, arguments: str) -> None:
        _call(["nsenter", f"--target={holder}", "--net", "ip", *arguments.split()])

    switch = box._holders["switch"]
    ip(switch, "link add bridge type bridge")
    ip(switch, "link set bridge up")
    for i, name in enumerate(box.hosts):
        host = box._holders[name]
        ip(switch, f"link add {name} type veth peer name {INTERFACE} netns {host}")
        ip(switch, f"link set {name} master bridge up")
        ip(host, f"address add {NETWORK}.{i + 1}/24 dev {INTERFACE}")
        for device in ("lo", INTERFACE):
            ip(host, f"link set {device} up")
        box.shape(name, link)


def _await_ssh(box: Cluster) -> None:
    """Wait until the first host reaches all by ssh."""
    for name in box.hosts:
        end = time.monotonic() + READY_S
        while (tried := box.run(box.hosts[0], ["ssh", name, "hostname"])).stdout.strip() != name:
            if time.monotonic() > end:
                raise RuntimeError(f"ssh to {name}: {tried.stderr.strip() or tried.stdout.strip()}")
            time.sleep(0.1)


def _call(command: Sequence[str | Path]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PATH": _PATH})
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def main() -> int:
    """Run a command, or a shell, on the first host; {hostfile} in the command is the hostfile's path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--link", default="1gbit", metavar="RATE", help="of a host, each way (default: %(default)s)")
    parser.add_argument("command", nargs="*", help="on the first host (default: a shell); {hostfile} is filled in")
    arguments = parser.parse_args()
    if not 1 <= arguments.hosts <= 250:
        parser.error(f"--hosts {arguments.hosts}: expected 1 to 250")
    try:
        bits_per_s(arguments.link)
    except ValueError as error:
        parser.error(f"--link {error}")
    lacking = why_not()
    if lacking:
        parser.exit(1, f"error: {lacking}\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with cluster(arguments.hosts, arguments.link) as box:
        command = [word.replace("{hostfile}", str(box.hostfile)) for word in arguments.command]
        if not command:
            print(f"{', '.join(box.hosts)}; hostfile: {box.hostfile}; leave the shell to end them", file=sys.stderr)
            command = [os.environ.get("SHELL", "bash")]
        try:
            return subprocess.run(box._inside(box.hosts[0], command)).returncode
        except KeyboardInterrupt:
            return 130


if __name__ == "__main__":
    sys.exit(main())
