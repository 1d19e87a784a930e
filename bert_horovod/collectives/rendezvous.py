"""Where ranks tell each other what they do when collectives no longer work: horovodrun's own rendezvous server."""

import json
import os
import urllib.error
import urllib.request
from typing import Any

_SCOPE = "bert_horovod"
_TIMEOUT_S = 5
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names


class RendezvousBoard:
    """A value of each rank for all ranks to read; there is none where horovodrun's Gloo did not start the ranks.

    Args:
        subject: what the values are about; those of another subject stand apart.
    """

    def __init__(self, subject: str = "life") -> None:
        address = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
        self._url = address and f"http://{address}:{os.environ.get('HOROVOD_GLOO_RENDEZVOUS_PORT')}/{_SCOPE}_{subject}"

    def write(self, rank: int, value: Any) -> bool:
        """Replace the rank's value, of what JSON can hold; whether that worked."""
        return self._send(rank, json.dumps(value).encode()) is not None

    def read(self, rank: int) -> Any:
        """The rank's last value; None if it never wrote one, or if the server cannot be reached."""
        answer = self._send(rank)
        try:
            return None if answer is None else json.loads(answer)
        except ValueError:
            return None

    def _send(self, rank: int, content: bytes | None = None) -> bytes | None:
        if not self._url:
            return None
        request = urllib.request.Request(f"{self._url}/{rank}", content, method="GET" if content is None else "PUT")
        try:
            with _DIRECT.open(request, timeout=_TIMEOUT_S) as answer:
                return answer.read()
        except OSError:  # urllib's errors are ones
            return None
