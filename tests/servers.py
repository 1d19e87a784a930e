"""Real servers of files: S3 (moto's), and HTTP with ranges. Each can be killed and started again."""

import gzip
import io
import os
import re
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

_PATIENCE_S = 60


def free_port() -> int:
    """A TCP port of this host that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A program that serves a port of 127.0.0.1."""

    def __init__(self, command: list[str], log: Path):
        self._command, self._log, self._process = command, log, None

    def start(self, port: int) -> None:
        """Start it, and wait until it answers."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    pytest.fail(self._log.read_text())
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill it (SIGKILL); connections break."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class S3Server(Server):
    """S3 of moto, in memory, with the bucket "lab"; a server that was killed comes back empty."""

    variables = {  # noqa: RUF012
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "the-secret-key-of-the-test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",  # the program itself tries again
    }

    def __init__(self, directory: Path):
        self.port = free_port()
        self.variables = {**S3Server.variables, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}
        super().__init__([sys.executable, "-m", "moto.server", "-p", str(self.port)], directory / "moto.log")
        self.restart()

    def restart(self) -> None:
        """Start it, and make its bucket."""
        self.start(self.port)
        self.client().create_bucket(Bucket="lab")

    def client(self):
        """A client of boto3."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.variables["AWS_ENDPOINT_URL"],
            aws_access_key_id=self.variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.variables["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
        )

    def put(self, files: dict[str, bytes]) -> None:
        """Write objects into the bucket "lab"."""
        client = self.client()
        for key, content in files.items():
            client.put_object(Bucket="lab", Key=key, Body=content)


class FileServers:
    """A server of each kind; HTTP serves `files`, S3 what `publish` puts there."""

    def __init__(self, home: Path):
        self.home, self.files = home, home / "files"
        self.files.mkdir()
        self.s3, self.http = S3Server(home), HttpServer(self.files)
        self.variables = self.s3.variables

    def url(self, scheme: str) -> str:
        """The URL of the directory `files`."""
        return {
            "s3": "s3://lab/files",
            "http": self.http.url,
            "file": f"file://{self.files}",
        }[scheme]

    def publish(self) -> None:
        """Make the bucket hold exactly the files, too."""
        client = self.s3.client()
        for old in client.list_objects_v2(Bucket="lab", Prefix="files/").get("Contents", ()):
            client.delete_object(Bucket="lab", Key=old["Key"])
        files = [path for path in self.files.rglob("*") if path.is_file()]
        self.s3.put({path.relative_to(self.home).as_posix(): path.read_bytes() for path in files})


class HttpServer:
    """The files of a directory over HTTP, with ranges and lists of files, in a thread of this process.

    As many servers do, it compresses for a client that accepts gzip, and then sends no part.

    Attributes: `refusals`, how many of the next requests are answered 503; `ranges`, whether it sends parts of files;
    `requests`, the lines of all requests; `redirect`, a query with which it sends a client on, as a signing server;
    `answers`, by path: the headers and the content with which it answers instead, "Status" among the headers.
    """

    def __init__(self, directory: Path):
        self.refusals, self.ranges, self.requests, self.redirect = 0, True, [], ""
        self.answers: dict[str, tuple[dict[str, str], bytes]] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self, directory))
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def kill(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, owner: HttpServer, directory: Path, *arguments):
        self._owner = owner
        super().__init__(*arguments, directory=str(directory))

    def log_message(self, *_) -> None:
        self._owner.requests.append(self.requestline)

    def send_head(self):
        if self._owner.refusals:
            self._owner.refusals -= 1
            self.send_error(503)
            return None
        if self._owner.redirect and self._owner.redirect not in self.path:
            self.send_response(302)
            self.send_header("Location", f"{self._owner.url}{self.path}?{self._owner.redirect}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        if self.path in self._owner.answers:
            headers, content = self._owner.answers[self.path]
            headers = {"Status": "200", "Content-Length": str(len(content)), **headers}
            self.send_response(int(headers.pop("Status")))
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Connection", "close")  # else the client sends its next request to a closed connection
            self.end_headers()
            return io.BytesIO(content)
        path = self.translate_path(self.path)
        if "gzip" in self.headers.get("Accept-Encoding", "") and os.path.isfile(path):
            content = gzip.compress(Path(path).read_bytes())
            self.send_response(200)
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            return io.BytesIO(content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if self._owner.ranges else None
        if asked is None or not os.path.isfile(path):
            return super().send_head()
        size = os.path.getsize(path)
        begin, end = int(asked[1]), min(int(asked[2] or size), size - 1)
        file = open(path, "rb")  # noqa: SIM115
        file.seek(begin)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {begin}-{end}/{size}")
        self.send_header("Content-Length", str(end - begin + 1))
        self.end_headers()
        self._left = end - begin + 1
        return file

    def copyfile(self, source, outputfile) -> None:
        left = self.__dict__.pop("_left", None)  # one connection answers several requests
        outputfile.write(source.read(left))
