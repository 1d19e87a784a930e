"""A server on this host that speaks the part of the Hugging Face Hub's protocol by which huggingface_hub uploads."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import yaml

TOKEN = "hf_of_a_test_and_nobody"


class Hub:
    """The server's state, in memory; use it as a context manager.

    Attributes:
        repositories: files by name, by branch, by repository.
        private: whether a repository was made so.
        commits: (repository, branch, summary, number of files) in their order.
        uploads: bytes that came as large files.
        fails: path patterns that are answered with this status, once each.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: dict[str, bool] = {}
        self.commits: list[tuple[str, str, str, int]] = []
        self.uploads = 0
        self.fails: dict[str, int] = {}
        self._large: dict[str, bytes] = {}
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict]:
        """Status and JSON for a request."""
        for pattern, status in list(self.fails.items()):
            if re.search(pattern, path):
                del self.fails[pattern]
                return status, {"error": "the test says so"}
        for pattern, act in (
            (r"POST /api/repos/create", self._create),
            (r"POST /api/models/([^/]+/[^/]+)/branch/(.+)", self._branch),
            (r"POST /api/validate-yaml", self._validate),
            (r"POST /api/models/([^/]+/[^/]+)/preupload/(.+)", self._preupload),
            (r"POST /([^/]+/[^/]+)\.git/info/lfs/objects/batch", self._batch),
            (r"PUT /large/(\w+)", self._take),
            (r"POST /api/models/([^/]+/[^/]+)/commit/(.+)", self._commit),
            (r"GET /api/models/([^/]+/[^/]+)/revision/(.+)", self._about),
        ):
            if found := re.fullmatch(pattern, f"{method} {path}"):
                return act(body, *found.groups())
        return 404, {"error": f"nothing at {method} {path}"}

    def _create(self, body: bytes) -> tuple[int, dict]:
        asked = json.loads(body)
        repo = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] != "lab":
            return 403, {"error": "You don't have the rights to create a model under this namespace"}
        url = {"url": f"{self.endpoint}/{repo}"}
        if repo in self.repositories:
            return 409, url | {"error": "You already created this model repo"}
        self.repositories[repo] = {"main": {".gitattributes": b""}}
        self.private[repo] = asked.get("visibility") == "private"
        return 200, url

    def _branch(self, body: bytes, repo: str, branch: str) -> tuple[int, dict]:
        branches = self.repositories[repo]
        if branch in branches:
            return 409, {"error": "Reference already exists"}
        branches[branch] = dict(branches["main"])
        return 201, {}

    def _validate(self, body: bytes) -> tuple[int, dict]:
        block = re.match(r"---\n(.*?)\n---\n", json.loads(body)["content"], re.DOTALL)
        try:
            language = yaml.safe_load(block[1]).get("language", [])
        except yaml.YAMLError as error:
            return 400, {"errors": [{"message": str(error)}]}
        if not all(isinstance(code, str) for code in language):
            return 400, {"errors": [{"message": '"language" must be an array of strings'}]}
        return 200, {"errors": [], "warnings": []}

    def _preupload(self, body: bytes, repo: str, branch: str) -> tuple[int, dict]:
        there = self.repositories[repo][branch]
        files = []
        for file in json.loads(body)["files"]:
            large = file["path"].endswith(".safetensors")
            content = there.get(file["path"])
            oid = None if content is None else hashlib.sha256(content).hexdigest() if large else _blob(content)
            mode = "lfs" if large else "regular"
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return 200, {"files": files}

    def _batch(self, body: bytes, repo: str) -> tuple[int, dict]:
        objects = json.loads(body)["objects"]
        for each in objects:
            if each["oid"] not in self._large:
                each["actions"] = {"upload": {"href": f"{self.endpoint}/large/{each['oid']}"}}
        return 200, {"transfer": "basic", "objects": objects}

    def _take(self, body: bytes, oid: str) -> tuple[int, dict]:
        assert hashlib.sha256(body).hexdigest() == oid
        self._large[oid] = body
        self.uploads += len(body)
        return 200, {}

    def _commit(self, body: bytes, repo: str, branch: str) -> tuple[int, dict]:
        header, *operations = [json.loads(line) for line in body.splitlines()]
        files = self.repositories[repo][branch]
        for operation in operations:
            value = operation["value"]
            large = operation["key"] == "lfsFile"
            files[value["path"]] = self._large[value["oid"]] if large else base64.b64decode(value["content"])
        self.commits.append((repo, branch, header["value"]["summary"], len(operations)))
        oid = hashlib.sha1(str(self.commits).encode()).hexdigest()
        return 200, {"commitUrl": f"{self.endpoint}/{repo}/commit/{oid}", "commitOid": oid}

    def _about(self, body: bytes, repo: str, branch: str) -> tuple[int, dict]:
        return 200, {"id": repo, "sha": "0" * 40}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def _respond(self) -> None:
        body = self._body()
        path = unquote(self.path.partition("?")[0])
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}" or path.startswith("/large/")
        refused = (401, {"error": "Invalid username or password."})
        status, content = self.hub.answer(self.command, path, body) if known else refused
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = _respond

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


def _blob(content: bytes) -> str:
    """Git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
