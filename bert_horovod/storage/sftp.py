"""Files of hosts that ssh reaches, with the keys and settings of ~/.ssh; a host that ssh does not know is refused."""

import os
from contextlib import suppress
from pathlib import Path

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem

from bert_horovod.errors import UserError

_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"


class SshFiles(SFTPFileSystem):
    """The files of one host over one connection, which serves one thread."""

    cachable = False  # a broken connection must not come back

    def __init__(self, server: str, timeout_s: float):
        """Connect. `server`: [user@]host[:port], where host may be a name that ~/.ssh/config knows."""
        self._timeout_s = timeout_s
        super().__init__(server)

    def _connect(self) -> None:
        user, _, address = self.host.rpartition("@")
        alias, _, port = address.partition(":")
        config = Path("~/.ssh/config").expanduser()
        known = (paramiko.SSHConfig.from_path(str(config)) if config.is_file() else paramiko.SSHConfig()).lookup(alias)
        host, port = known["hostname"], int(port or known.get("port", 22))
        command = known.get("proxycommand")
        if jump := known.get("proxyjump"):
            command = f"ssh -W {host}:{port} {jump}"
        self.client = paramiko.SSHClient()
        self.client.load_system_host_keys()
        with suppress(OSError):
            self.client.load_system_host_keys(_KNOWN_HOSTS)
        self.client.set_missing_host_key_policy(_RefuseUnknown())
        self.client.connect(
            host,
            port,
            user or known.get("user"),
            key_filename=[os.path.expanduser(name) for name in known.get("identityfile", [])] or None,
            timeout=self._timeout_s,
            banner_timeout=self._timeout_s,
            sock=paramiko.ProxyCommand(command) if command else None,
        )
        self.ftp = self.client.open_sftp()
        self.ftp.get_channel().settimeout(self._timeout_s)


class _RefuseUnknown(paramiko.MissingHostKeyPolicy):
    def missing_host_key(self, _client, hostname, key) -> None:
        raise UserError(
            f"the host {hostname} is not in ~/.ssh/known_hosts (its key is {key.fingerprint}); log in once with ssh, "
            "compare the key, and accept it"
        )
