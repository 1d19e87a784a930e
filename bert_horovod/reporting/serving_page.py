"""Serve the page of a running run, to browsers on this host only."""

import json
import re
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bert_horovod.errors import ReportedError, UserError
from bert_horovod.reporting.page import page

_HOST = "127.0.0.1"
# Names by which this host's own browser asks. Any other name is a foreign page's, made to lead here (DNS rebinding).
_OWN_NAMES = re.compile(rf"(localhost|127\.0\.0\.1|\[::1\]|{re.escape(_HOST)})(:[0-9]{{1,5}})?", re.IGNORECASE)
_SILENCE_S = 10.0  # that a client may keep its connection without a word


def serve(content: Callable[[], dict[str, Any]], port: int = 0) -> None:
    """Serve until Ctrl-C.

    Args:
        content: returns the page's data; called for each request.
        port: to listen on; 0: a free one.

    Raises:
        UserError: the port is taken, or `content` cannot be made at the start.
    """
    content()
    try:
        server = PageServer(content, port)
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}; give another one") from error
    with server:
        print(f"http://{_HOST}:{server.server_address[1]}/ (end with Ctrl-C)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


class PageServer(ThreadingHTTPServer):
    """Answers requests of browsers on this host; arguments as in `serve`. Raises OSError if the port is taken."""

    daemon_threads = True

    def __init__(self, content: Callable[[], dict[str, Any]], port: int) -> None:
        self.content = content
        super().__init__((_HOST, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has left, or was too slow."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for the page and for its new data."""

    timeout = _SILENCE_S
    server: PageServer

    def do_GET(self) -> None:
        names = self.headers.get_all("Host", [])
        if len(names) != 1 or not _OWN_NAMES.fullmatch(names[0].strip()):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", f"expected the Host localhost, {_HOST} or [::1]")
            return
        try:
            if self.path == "/":
                answer = HTTPStatus.OK, "text/html", page(self.server.content())
            elif self.path == "/report.json":
                answer = HTTPStatus.OK, "application/json", json.dumps(self.server.content(), allow_nan=False)
            else:
                answer = HTTPStatus.NOT_FOUND, "text/plain", "expected / or /report.json"
        except (ReportedError, OSError) as error:
            answer = HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", str(error)
        self._answer(*answer)

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *ignored: object) -> None:
        """Log nothing, because the page asks every 5 seconds."""
