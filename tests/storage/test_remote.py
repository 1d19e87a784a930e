"""Files elsewhere, on real servers: listed, read ahead, written, and read again when a server was away."""

import os
import shutil
import threading

import pytest

from bert_horovod.errors import RunError, UserError
from bert_horovod.storage import connections, remote
from bert_horovod.storage.connections import Missing
from bert_horovod.storage.places import parse
from tests.servers import free_port

CONTENT = os.urandom(1 << 20) * 9  # three blocks
pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]


@pytest.fixture
def servers(elsewhere):
    """Each server has the files a/x.bin and empty.txt."""
    shutil.rmtree(elsewhere.files)
    (elsewhere.files / "a").mkdir(parents=True)
    (elsewhere.files / "a" / "x.bin").write_bytes(CONTENT)
    (elsewhere.files / "empty.txt").touch()
    elsewhere.publish()
    return elsewhere


@pytest.mark.parametrize("scheme", ["s3", "sftp", "http", "file"])
def test_files_are_found_and_read_by_ranges(servers, scheme):
    place = parse(servers.url(scheme), "--input")
    directory = parse(f"{place}/", "--input")
    found, is_directory = remote.find(directory)
    assert is_directory
    assert [(str(file.place), file.bytes) for file in found] == [
        (f"{place}/a/x.bin", len(CONTENT)),
        (f"{place}/empty.txt", 0),
    ]
    (file,), is_directory = remote.find(place / "a/*.bin")
    assert (file, is_directory) == (remote.entry(place / "a/x.bin"), False)
    assert file.tag
    assert remote.find(place / "a/*.txt")[0] == remote.find(place / "none.txt")[0] == []
    assert remote.read(file.place, 5, 9) == CONTENT[5:9]
    with remote.RangeFile(file) as opened:
        assert b"".join(iter(lambda: opened.read(700_001), b"")) == CONTENT
        opened.seek(-10, os.SEEK_END)
        assert opened.read(100) == CONTENT[-10:]
    assert remote.read(place / "empty.txt") == b""
    with pytest.raises(Missing, match="no such file"):
        remote.entry(place / "none.txt")


@pytest.mark.parametrize("scheme", ["s3", "sftp", "file"])
def test_a_file_is_written_whole_and_by_one_of_several_writers(servers, scheme, tmp_path):
    place = parse(servers.url(scheme), "--mirror") / "new" / "b.bin"
    (tmp_path / "b").write_bytes(CONTENT)
    remote.write(place, tmp_path / "b")
    remote.write(place, b"shorter")
    assert remote.read(place) == b"shorter"
    owner = place.with_name("owner")
    assert [remote.write_new(owner, content) for content in (b"me", b"you", b"me")] == [True, False, True]
    assert sorted(file.place.name for file in remote.find(parse(servers.url(scheme), "") / "new")[0]) == [
        "b.bin",
        "owner",
    ]
    remote.fetch(place, tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == b"shorter"
    for name in (place, owner, owner):
        remote.remove(name)
    assert remote.find(place)[0] == []


def test_nobody_sees_a_part_of_a_new_file_on_a_disk(tmp_path, monkeypatch):
    place, seen, sync = parse(tmp_path / "owner", ""), [], remote.sync

    def look(path):
        seen.append((path.read_bytes(), (tmp_path / "owner").exists()))
        sync(path)

    monkeypatch.setattr(remote, "sync", look)
    assert [remote.write_new(place, content) for content in (b"me", b"you")] == [True, False]
    remote.write(place, b"anew")
    assert seen == [(b"me", False), (b"you", True), (b"anew", True)]  # on the disk before it has its name
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"owner": b"anew"}


def test_a_server_that_is_away_is_tried_again_and_then_named(servers, monkeypatch):
    http = servers.http
    monkeypatch.setattr(connections, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(connections, "PATIENCE_S", 0.2)
    place = parse(f"{http.url}/a/x.bin", "--input")
    http.refusals = 3
    assert (remote.read(place, 0, 4), http.refusals) == (CONTENT[:4], 0)
    http.refusals = 1000
    with pytest.raises(RunError, match=r"503.*tried \d+ times.*run the same command again"):
        remote.read(place, 0, 4)
    with pytest.raises(RunError, match="503"):
        remote.entry(place)
    http.refusals = 0
    for url in (f"http://127.0.0.1:{free_port()}/x", f"sftp://127.0.0.1:{free_port()}/x"):
        with pytest.raises(RunError, match="tried"):
            remote.entry(parse(url, "--input"))


def test_a_server_that_comes_back_is_read_on(servers):
    sftp = servers.sftp
    (file,), _ = remote.find(parse(f"{servers.url('sftp')}/a/x.bin", "--input"))
    with remote.RangeFile(file) as opened:
        beginning = opened.read(10)
        sftp.kill()
        connections._filesystems.clear()  # an open connection outlives the server that listens
        threading.Timer(1, sftp.start, [sftp.port]).start()
        assert beginning + b"".join(iter(lambda: opened.read(1 << 20), b"")) == CONTENT


def test_mistakes_are_named_without_secrets(servers, monkeypatch, tmp_path):
    sftp, http = servers.sftp, servers.http
    monkeypatch.setattr(connections, "PATIENCE_S", 0.0)
    connections._filesystems.clear()
    http.ranges = False
    with pytest.raises(UserError, match="sends the whole file"):
        remote.read(parse(f"{http.url}/a/x.bin", "--input"), 0, 4)
    http.ranges, http.redirect = True, "sig=hidden"
    http.refusals = 0
    assert remote.read(parse(f"{http.url}/a/x.bin", "--input"), 0, 4) == CONTENT[:4]
    with pytest.raises(Missing) as caught:
        remote.read(parse(f"{http.url}/none", "--input"))
    assert "hidden" not in str(caught.value)
    http.redirect = ""
    with pytest.raises(UserError, match=r"gs://lab/x needs gcsfs, .*pip install gcsfs.*'bert_horovod\[remote\]'"):
        remote.entry(parse("gs://lab/x", "--input"))
    with pytest.raises(Missing):
        remote.read(parse("s3://none-such/x", "--input"))
    known = tmp_path / ".ssh"
    known.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"not in ~/\.ssh/known_hosts"):
        remote.entry(parse(f"sftp://127.0.0.1:{sftp.port}/x", "--input"))
    (known / "known_hosts").write_text((sftp.home / ".ssh" / "known_hosts").read_text())
    with pytest.raises(UserError, match=r"no right to do so.*credentials come from the keys of ~/.ssh"):
        remote.entry(parse(f"sftp://127.0.0.1:{sftp.port}/x", "--input"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    connections._filesystems.clear()
    with pytest.raises(UserError, match=r"no right to do so.*credentials come from AWS_ACCESS_KEY_ID"):
        remote.entry(parse("s3://lab/x", "--input"))
