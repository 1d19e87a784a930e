"""Serve the page of a running run, to browsers on this host only."""

import json
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bert_horovod.errors import ReportedError, UserError
from bert_horovod.reporting.page import page

_HOST = "127.0.0.1"


def serve(content: Callable[[], dict[str, Any]], port: int = 0) -> None:
    """Serve until Ctrl-C.

    Args:
        content: returns the page's data; called for each request.
        port: to listen on; 0: a free one.

    Raises:
        UserError: the port is taken, or `content` cannot be made at the start.
    """
    content()

    class Handler(BaseHTTPRequestHandler):
        """Answers requests for the page and for its new data."""

        def do_GET(self) -> None:
            try:
                if self.path == "/":
                    self._answer(HTTPStatus.OK, "text/html", page(content()))
                elif self.path == "/report.json":
                    self._answer(HTTPStatus.OK, "application/json", json.dumps(content(), allow_nan=False))
                else:
                    self._answer(HTTPStatus.NOT_FOUND, "text/plain", "expected / or /report.json")
            except ReportedError as error:
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", str(error))

        def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *ignored: object) -> None:
            """Log nothing, because the page asks every 5 seconds."""

    try:
        server = ThreadingHTTPServer((_HOST, port), Handler)
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}; give another one") from error
    with server:
        print(f"http://{_HOST}:{server.server_address[1]}/ (end with Ctrl-C)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
