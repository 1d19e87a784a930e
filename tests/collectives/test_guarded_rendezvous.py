"""The rendezvous server listens on one address, and what one host wrote no other changes."""

import http.client

import pytest

pytest.importorskip("horovod")

from bert_horovod.collectives.guarded_rendezvous import MOST_BYTES, GuardedServer

HOST, STRANGER = "127.0.0.1", "127.0.0.2"  # both are this host's


@pytest.fixture
def port():
    server = GuardedServer(HOST)
    port = server.start()
    server.init([])
    yield port
    server.stop()


def ask(port: int, method: str, path: str, body: str | None = None, client: str = HOST, address: str = HOST):
    connection = http.client.HTTPConnection(address, port, timeout=120, source_address=(client, 0))
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_it_listens_on_its_address_alone(port):
    assert ask(port, "PUT", "/global/0", "one")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        ask(port, "GET", "/global/0", address=STRANGER, client=STRANGER)


def test_a_host_changes_and_removes_what_is_its_own(port):
    for value in ("one", "two"):
        assert ask(port, "PUT", "/board/0", value)[0] == 200
        assert ask(port, "GET", "/board/0") == (200, value)
    assert ask(port, "PUT", "/board/1", "mine", client=STRANGER)[0] == 200
    assert ask(port, "DELETE", "/board/0")[0] == 200
    assert ask(port, "GET", "/board/0")[0] == 404
    assert ask(port, "GET", "/board/1") == (200, "mine")


def test_a_stranger_changes_and_removes_nothing_and_is_named_once(port, capfd):
    ask(port, "PUT", "/global/0", "one")
    for method in ("PUT", "DELETE", "PUT"):
        assert ask(port, method, "/global/0", "another", client=STRANGER)[0] == 403
    assert ask(port, "GET", "/global/0", client=STRANGER) == (200, "one")
    assert capfd.readouterr().err == (
        f"bert-horovod: warning: the rendezvous server refused that {STRANGER} changes '/global/0', "
        f"which {HOST} wrote: "
        "if no rank runs there, a stranger reaches the ranks' network; let a firewall admit the run's hosts alone\n"
    )


def test_values_that_would_fill_the_memory_are_refused(port, capfd):
    connection = http.client.HTTPConnection(HOST, port, timeout=120)
    connection.putrequest("PUT", "/global/0")
    connection.putheader("Content-Length", str(MOST_BYTES + 1))
    connection.endheaders()
    assert connection.getresponse().status == 403
    connection.close()
    assert f"{HOST} writes {MOST_BYTES + 1} bytes" in capfd.readouterr().err
