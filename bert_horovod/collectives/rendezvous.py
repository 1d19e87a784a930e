"""Exchange values between ranks when collectives no longer work, through horovodrun's own rendezvous store."""

import json
import os
import urllib.error
import urllib.request
from typing import Any

_SCOPE = "bert_horovod"
_TIMEOUT_S = 5
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # without the environment's proxies


class RendezvousBoard:
    """One value of each rank, which all ranks can read; works only if horovodrun with Gloo started the ranks.

    Args:
        subject: the topic of the values; a rank has one value for each subject.
    """

    def __init__(self, subject: str = "life") -> None:
        address = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
        self._url = address and f"http://{address}:{os.environ.get('HOROVOD_GLOO_RENDEZVOUS_PORT')}/{_SCOPE}_{subject}"

    def write(self, rank: int, value: Any) -> bool:
        """Replace the rank's value, which JSON can hold; returns whether that worked."""
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
        except OSError:  # urllib's errors are OSErrors
            return None
