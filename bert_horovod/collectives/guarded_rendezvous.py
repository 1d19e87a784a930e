"""horovodrun with a safer rendezvous server: it listens on one address, and only its writer's host may change a key.

Horovod's own server listens on all addresses of the host and accepts writes from anybody. It cannot ask for a secret,
because Horovod's client, in C++, could not send one.
"""

import signal
from functools import partial
from typing import Any

from horovod.runner import gloo_run, launch
from horovod.runner.driver import driver_service
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer, RendezvousServer
from horovod.runner.util.threads import in_thread

from bert_horovod.runtime.lasting_log import warn

MOST_BYTES = 1 << 20  # of a value: Horovod's values are addresses
MOST_KEYS = 1 << 18
_FORBIDDEN = 403


class GuardedHandler(RendezvousHandler):
    """Only the host that wrote a key first may change or delete it."""

    def do_PUT(self) -> None:
        length = self.headers["Content-Length"] or ""
        if not length.isdecimal() or int(length) > MOST_BYTES:
            self._refuse(f"writes {length[:20] or 'an unknown number of'} bytes")
        elif self._is_its_own():
            super().do_PUT()

    def do_DELETE(self) -> None:
        if self._is_its_own():
            super().do_DELETE()

    def _is_its_own(self) -> bool:
        """Whether this client wrote the path first; if not, refuse its request."""
        client, owners = self.client_address[0], self.server.owners
        with self.server.cache_lock:
            if len(owners) < MOST_KEYS:
                owners.setdefault(self.path, client)
            owner = owners.get(self.path)
        if owner != client:
            self._refuse(f"changes {self.path[:100]!r}, which {owner or 'nobody'} wrote")
        return owner == client

    def _refuse(self, problem: str) -> None:
        client = self.client_address[0]
        if client not in self.server.refused:
            self.server.refused.add(client)
            warn(
                f"warning: the rendezvous server refused that {client} {problem}: if no rank runs there, a stranger "
                "reaches the ranks' network; let a firewall admit the run's hosts alone"
            )
        self.close_connection = True
        self.send_status_code(_FORBIDDEN)


class GuardedServer(RendezvousServer):
    """A rendezvous server that listens on one address.

    Args:
        address: where the ranks look for the server.
        verbose: as Horovod's.
    """

    def __init__(self, address: str, verbose: int = 0) -> None:
        super().__init__(verbose)
        self._address = address

    def start(self, handler_cls: type = GuardedHandler) -> int:
        """Begin to listen; returns the port."""
        self._httpd = RendezvousHTTPServer((self._address, 0), handler_cls, self._verbose)
        self._httpd.owners, self._httpd.refused = {}, set()
        self._listen_thread = in_thread(target=self._httpd.serve_forever)
        return self._httpd.server_address[1]


def _launch_gloo(original: Any, command: Any, exec_command: Any, settings: Any, nics: Any, env: Any, server_ip: str):
    gloo_run.RendezvousServer = partial(GuardedServer, server_ip)
    return original(command, exec_command, settings, nics, env, server_ip)


def _safe_remote_command(original: Any, command: str, **options: Any) -> str:
    """Let a helper that horovodrun starts over ssh import no modules from the home directory."""
    return original(f"env PYTHONSAFEPATH=1 {command}", **options)


def main() -> None:
    """horovodrun's command line."""
    # horovodrun's own handlers would kill the ranks at a signal that a scheduler sends to all processes of a job.
    signal.signal = lambda *_: None
    gloo_run.launch_gloo = partial(_launch_gloo, gloo_run.launch_gloo)
    driver_service.get_remote_command = partial(_safe_remote_command, driver_service.get_remote_command)
    launch.run_commandline()
