"""horovodrun with a rendezvous server that listens on one address; Horovod's own listens on all of the host's.

It cannot ask for a secret, because Horovod's client, in C++, could not send one: the network must be private.
"""

import signal
from functools import partial
from typing import Any

from horovod.runner import gloo_run, launch
from horovod.runner.driver import driver_service
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer, RendezvousServer
from horovod.runner.util.threads import in_thread


class GuardedServer(RendezvousServer):
    """A rendezvous server that listens on one address.

    Args:
        address: where the ranks look for the server.
        verbose: as Horovod's.
    """

    def __init__(self, address: str, verbose: int = 0) -> None:
        super().__init__(verbose)
        self._address = address

    def start(self, handler_cls: type = RendezvousHandler) -> int:
        """Begin to listen; returns the port."""
        self._httpd = RendezvousHTTPServer((self._address, 0), handler_cls, self._verbose)
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
