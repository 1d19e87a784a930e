"""The rendezvous server listens on one address."""

import http.client

import pytest

pytest.importorskip("horovod")

from bert_horovod.collectives.guarded_rendezvous import GuardedServer

HOST, STRANGER = "127.0.0.1", "127.0.0.2"  # both are this host's


def ask(address: str, port: int, method: str, body: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, port, timeout=120)
    try:
        connection.request(method, "/global/0", body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_it_listens_on_its_address_alone():
    server = GuardedServer(HOST)
    port = server.start()
    try:
        server.init([])
        assert ask(HOST, port, "PUT", "one")[0] == 200
        assert ask(HOST, port, "GET") == (200, "one")
        with pytest.raises(ConnectionRefusedError):
            ask(STRANGER, port, "GET")
    finally:
        server.stop()
