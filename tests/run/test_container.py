"""run/container.sh, what the image runs, here without a container; tests/docker/build_and_run.sh builds the image."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.horovod_runs import PATIENCE_S

SCRIPT = Path(__file__).resolve().parents[2] / "run" / "container.sh"

pytestmark = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen (openssh-client)")


@pytest.fixture
def container(tmp_path):
    """A function that runs the script with a home and a directory of keys of its own."""
    (tmp_path / "home").mkdir()

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
        places = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "KEYS": str(tmp_path / "keys")}
        command = ["bash", str(SCRIPT), *arguments]
        return subprocess.run(command, env=places | variables, capture_output=True, text=True, timeout=PATIENCE_S)

    return run


@pytest.fixture
def keys(tmp_path) -> Path:
    """A directory of keys as a user mounts it: a pair, readable by all, as files from elsewhere often are."""
    directory = tmp_path / "keys"
    directory.mkdir()
    make_key(directory / "id_ed25519")
    (directory / "id_ed25519").chmod(0o644)
    return directory


def make_key(path: Path, passphrase: str = "") -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path], check=True)


@pytest.mark.full
def test_without_a_command_it_prints_how_to_use_it(container):
    for arguments in ((), ("--help",), ("help",)):
        done = container(*arguments)
        assert done.returncode == 0, done.stderr
        assert "docker run [OPTIONS] IMAGE sshd" in done.stdout
        assert "SSH_PORT=2222" in done.stdout
        assert "set -euo" not in done.stdout


@pytest.mark.full
def test_a_command_is_run_with_its_arguments_and_exit_code(container):
    done = container("bash", "-c", 'echo "$1"; exit 7', "bash", "two words")
    assert (done.returncode, done.stdout) == (7, "two words\n")


@pytest.mark.parametrize("name", ["pretrain", "/opt", "--recipe", "cd"])
def test_an_unknown_command_is_refused_by_name(container, name):
    done = container(name)
    assert done.returncode == 127
    assert f"found no command '{name}' in the image; expected sshd or a program" in done.stderr
    assert "bert-horovod --help lists the commands" in done.stderr


def empty(keys: Path) -> None:
    for path in keys.iterdir():
        path.unlink()


def protect(keys: Path) -> None:
    empty(keys)
    make_key(keys / "id_ed25519", passphrase="secret")


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "command", "messages"),
    [
        (shutil.rmtree, "sshd", ("found no mounted", "-N '' -f keys/id_ed25519", "docker run -v $PWD/keys:/keys:ro")),
        (empty, "sshd", ("found no key in {keys}",)),
        (empty, "true", ("found no key in {keys}",)),
        (lambda keys: (keys / "id_ed25519.pub").unlink(), "sshd", ("found no public key",)),
        (lambda keys: (keys / "id_ed25519.pub").write_text("no\n"), "sshd", ("id_ed25519.pub holds no public key",)),
        (lambda keys: (keys / "authorized_keys").write_text("no\n"), "sshd", ("authorized_keys holds no public",)),
        (protect, "true", ("id_ed25519 is no private key, or one with a passphrase",)),
        (None, "sshd -p 2200", ("sshd takes no arguments, found '-p 2200'; the port is SSH_PORT=2222",)),
        (None, "true", ()),
    ],
)
def test_keys_and_arguments_that_cannot_serve_are_refused(container, keys, change, command, messages):
    if change:
        change(keys)
    done = container(*command.split())
    assert done.returncode == bool(messages), done.stderr
    assert all(message.format(keys=keys) in done.stderr for message in messages), done.stderr


@pytest.mark.full
@pytest.mark.parametrize("port", ["22", "70000", "ssh"])
def test_a_port_that_cannot_serve_is_refused(container, keys, port):
    done = container("true", SSH_PORT=port)
    assert (done.returncode, f"SSH_PORT={port} is no port from 1024 to 65535" in done.stderr) == (1, True)


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, to be another user for once")
def test_a_key_of_another_user_is_refused_with_both_numbers():
    with tempfile.TemporaryDirectory() as name:  # pytest's own directories are closed to other users
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "home").mkdir()
        os.chown(directory / "home", 65534, 65534)
        make_key(directory / "id_ed25519")
        shutil.copy(SCRIPT, directory)
        other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        places = {"PATH": os.environ["PATH"], "HOME": str(directory / "home"), "KEYS": name}
        command = [*other, "bash", directory / SCRIPT.name, "true"]
        done = subprocess.run(command, env=places, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{name}/id_ed25519 belongs to user 0 (mode 600), and user 65534" in done.stderr
    assert "--build-arg USER_ID=" in done.stderr


@pytest.mark.full
def test_keys_are_copied_for_this_user_alone_and_the_command_keeps_its_umask(container, keys, tmp_path):
    for _ in range(2):  # a restarted container finds its own copies
        done = container("bash", "-c", "umask", SSH_PORT="2345")
        assert done.returncode == 0, done.stderr
        assert done.stdout == subprocess.run(["bash", "-c", "umask"], capture_output=True, text=True).stdout
    ssh = tmp_path / "home" / ".ssh"
    assert {path.name for path in ssh.iterdir()} == {"authorized_keys", "config", "id_ed25519"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (ssh, *ssh.iterdir()))
    public = (keys / "id_ed25519.pub").read_text(encoding="utf-8")
    assert (ssh / "authorized_keys").read_text(encoding="utf-8").split() == public.split()
    command = ["ssh", "-G", "-F", ssh / "config", "node2"]
    settings = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"port 2345", "identityfile ~/.ssh/id_ed25519"} <= set(settings)
