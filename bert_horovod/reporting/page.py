"""One HTML file about runs, which opens from disk; its server while a run goes on; the directories of runs."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bert_horovod import __version__
from bert_horovod.errors import ReportedError, UserError

_TEMPLATE = Path(__file__).with_name("page.html")
_PARTS = ("page.css", "chart.js", "comparison.js", "page.js")  # files that page.html names as /* NAME */
_MARK = "null /* the runs */"


def page(content: dict[str, Any]) -> str:
    """The page; `content`: the result of the function of that name."""
    text = json.dumps(content, allow_nan=False).replace("<", "\\u003c")  # a name may hold </script>
    template = _TEMPLATE.read_text(encoding="utf-8")
    for name in _PARTS:
        template = template.replace(f"/* {name} */", _TEMPLATE.with_name(name).read_text(encoding="utf-8"))
    return template.replace(_MARK, text)


def content(
    runs: list[dict[str, Any]],
    metrics: dict[str, dict[str, Any]],
    watched: bool = False,
    tables: Sequence[dict[str, Any]] = (),
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """The object that the page's script reads: of runs as run_record.read_run returns them, with names.

    `watched`: whether the page asks its server for news; `tables`: title, head and rows of text; `left_out`: why runs
    that were found cannot be shown.
    """
    made = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    about = {"watched": watched, "version": __version__, "made": made}
    return {"runs": runs, "metrics": metrics, "tables": list(tables), "left_out": list(left_out)} | about


_HOST = "127.0.0.1"
# Names by which this host's own browser asks. Any other name is a foreign page's, made to lead here (DNS rebinding).
_OWN_NAMES = re.compile(rf"(localhost|127\.0\.0\.1|\[::1\]|{re.escape(_HOST)})(:[0-9]{{1,5}})?", re.IGNORECASE)
_SILENCE_S = 10.0  # that a client may keep its connection without a word


def serve(content: Callable[[], dict[str, Any]], port: int = 0) -> None:
    """Serve what `content` returns, called for each request, until Ctrl-C; port 0: a free one.

    Raises UserError if the port is taken, or `content` cannot be made at the start.
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


_RECORD = "run.json"  # the file that every run's directory has


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The runs that paths mean: a run's directory, or all runs below a directory; raises UserError for neither."""
    found: dict[Path, Path] = {}  # by the real path, so that no run comes twice
    for path in paths:
        runs = [path] if (path / _RECORD).is_file() else _below(path)
        if not runs:
            raise UserError(
                f"{path} is not a run's directory, and there is none below it: found no {_RECORD}; expected what was "
                "given as --output_dir, or a directory of such directories"
            )
        for run in runs:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def names_of(directories: Sequence[Path]) -> list[str]:
    """A name for each run: the last parts of its path, as few as make all names different."""
    parts = [directory.resolve().parts for directory in directories]
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(parts_of_one[-count:]) for parts_of_one in parts]
        if len(set(names)) == len(names):
            return names
    return [str(directory) for directory in directories]


def _below(directory: Path) -> list[Path]:
    """All runs below a directory; links are not followed, and nothing is looked for inside a run."""
    runs = []
    for place, below, files in os.walk(directory):
        if _RECORD in files:
            runs.append(Path(place))
            below.clear()
        below.sort()
    return runs
