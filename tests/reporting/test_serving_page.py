"""The server of `report --watch`: whom it answers, and that clients neither stop it nor make it speak."""

import http.client
import json
import socket
import struct
import threading

import pytest

from bert_horovod.errors import UserError
from bert_horovod.reporting import page
from bert_horovod.reporting.page import PageServer, content


@pytest.fixture
def server(monkeypatch):
    """A server of an empty page in a thread, whose connections may be silent for half a second."""
    monkeypatch.setattr(page._Handler, "timeout", 0.5)
    with PageServer(lambda: content([], {}), 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def answer(server: PageServer, *hosts: str, path: str = "/report.json") -> tuple[int, str]:
    connection = http.client.HTTPConnection(*server.server_address, timeout=60)
    connection.putrequest("GET", path, skip_host=True)
    for host in hosts:
        connection.putheader("Host", host)
    connection.endheaders()
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}", "LocalHost:8000", "127.0.0.1"]
)
def test_this_hosts_own_names_are_answered(server, host):
    host = host.format(port=server.server_address[1])
    status, text = answer(server, host)
    assert status == 200
    assert json.loads(text)["runs"] == []
    status, text = answer(server, host, path="/")
    assert status == 200
    assert text.startswith("<!doctype html>")


@pytest.mark.parametrize(
    "hosts",
    [
        ("evil.example",),
        ("evil.example:{port}",),
        ("localhost.evil.example",),
        ("127.0.0.1.evil.example",),
        ("127.0.0.1@evil.example",),
        ("evil.example/localhost",),
        ("127.0.0.2",),
        ("0.0.0.0",),
        ("[::2]",),
        ("",),
        (),
        ("localhost", "evil.example"),
    ],
)
def test_a_foreign_name_is_not_answered(server, hosts):
    for path in ("/", "/report.json"):
        status, text = answer(server, *(host.format(port=server.server_address[1]) for host in hosts), path=path)
        assert (status, text) == (403, "expected the Host localhost, 127.0.0.1 or [::1]")


def test_clients_that_leave_or_talk_nonsense_make_it_say_nothing(server, capfd):
    for words in (b"", b"GET /report.json HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HT", b"\x00\xff\r\n\r\n"):
        for _ in range(8):
            client = socket.create_connection(server.server_address)
            client.sendall(words)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
            client.close()
    assert answer(server, "localhost")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_an_idle_connection_is_ended(server):
    with socket.create_connection(server.server_address, timeout=60) as client:
        assert client.recv(1) == b""


def test_what_cannot_be_read_is_told_and_the_server_lives_on(server):
    def fail():
        raise UserError("no run.json")

    server.content = fail
    assert answer(server, "localhost") == (500, "no run.json")
    server.content = lambda: content([], {})
    assert answer(server, "localhost")[0] == 200
