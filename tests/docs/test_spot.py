"""The scripts of docs/tutorials/spot.md, as they are copied, against a server that answers as the clouds' pages say."""

import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bert_horovod.cluster.launching.hostfiles import discover
from bert_horovod.errors import UserError
from tests.docs.test_pages import DOCS

SCRIPTS = DOCS / "tutorials"
EVENT = '{"EventType":"%s","ResourceType":"VirtualMachine","Resources":["%s"]}'
ANSWERS = {  # by method and path; the headers without which each is refused, and the answers: staying, leaving
    ("PUT", "/latest/api/token"): ("X-aws-ec2-metadata-token-ttl-seconds", "secret", "secret"),
    ("GET", "/latest/meta-data/spot/instance-action"): ("X-aws-ec2-metadata-token", None, '{"action": "stop"}'),
    ("GET", "/computeMetadata/v1/instance/preempted"): ("Metadata-Flavor", "FALSE", "TRUE"),
    ("GET", "/metadata/instance/compute/name"): ("Metadata", "vm_1", "vm_1"),
    ("GET", "/metadata/scheduledevents"): (
        "Metadata",
        '{"Events":[' + EVENT % ("Preempt", "vm_11") + "," + EVENT % ("Reboot", "vm_1") + "]}",
        '{"Events":[' + EVENT % ("Reboot", "vm_2") + "," + EVENT % ("Preempt", "VM_1") + "]}",
    ),
    ("GET", "/latest/meta-data/instance/spot/termination-time"): ("Host", None, "2026-01-01T00:00:00Z"),
}


@pytest.fixture
def metadata():
    """The server; its `leaving` says whether the machine goes away."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            header, *answers = ANSWERS.get((self.command, self.path.partition("?")[0]), ("none", None, None))
            answer = answers[self.server.leaving] if header in self.headers else None
            self.send_response(404 if answer is None else 200)
            self.end_headers()
            self.wfile.write((answer or "").encode())

        do_PUT = do_GET

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def notice(*words: object, **variables: str) -> int:
    command = [SCRIPTS / "notice.sh", *map(str, words)]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, timeout=60).returncode


@pytest.mark.parametrize("cloud", ["aws", "google", "azure", "alibaba"])
def test_a_notice_of_the_metadata_address_is_seen(metadata, cloud):
    address = f"127.0.0.1:{metadata.server_address[1]}"
    found = []
    for metadata.leaving in (False, True):
        found.append(notice(cloud, METADATA=address))
    assert (found[0] not in (0, 126, 127), found[1]) == (True, 0)
    metadata.leaving = True
    assert notice(cloud, METADATA="127.0.0.1:1") not in (0, 126, 127)  # nobody answers


def test_a_notice_is_a_file_too_and_another_word_is_refused(tmp_path):
    assert notice("file", tmp_path / "leaving") == 1
    (tmp_path / "leaving").touch()
    assert notice("file", tmp_path / "leaving") == 0
    assert (notice("gpc"), notice()) == (127, 127)  # with which --stop_when is refused


def test_the_fleet_is_the_machines_of_the_list_that_answer(tmp_path, monkeypatch):
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nwhile [ "$1" != true ]; do host=$1; shift; done\n[ "$host" != gone ]\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "machines").write_text("# mine\nnode2 slots=8\ngone slots=8\n\nnode1 slots=4\n")
    assert discover(f"{SCRIPTS}/fleet.sh {tmp_path}/machines") == {"node1": 4, "node2": 8}
    with pytest.raises(UserError, match=r"exit code 2, .*fleet.sh: cannot read"):
        discover(f"{SCRIPTS}/fleet.sh {tmp_path}/none")


def test_the_page_shows_the_scripts():
    scripts, text = sorted(SCRIPTS.glob("*.sh")), (SCRIPTS / "spot.md").read_text(encoding="utf-8")
    assert [path.name for path in scripts] == ["fleet.sh", "notice.sh"]
    assert all(f"({path.name})" in text and os.access(path, os.X_OK) for path in scripts)
