"""Files elsewhere, on real servers: listed, read ahead, written, and read again when a server was away."""

import gzip
import os
import shutil
import threading

import pytest

from bert_horovod.errors import RunError, UserError
from bert_horovod.storage import connections, remote
from bert_horovod.storage.connections import Missing
from bert_horovod.storage.places import parse_place
from tests.rights import small_file_system
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
    yield elsewhere
    elsewhere.http.answers.clear()


@pytest.mark.parametrize("scheme", ["s3", "http", "file"])
def test_files_are_found_and_read_by_ranges(servers, scheme):
    place = parse_place(servers.url(scheme), "--input")
    directory = parse_place(f"{place}/", "--input")
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


@pytest.mark.parametrize("scheme", ["s3", "http", "file"])
def test_a_name_with_brackets_is_the_file_or_folder_of_this_name(servers, scheme):
    for name in ("data[1].txt", "data1.txt", "d[1]/x.txt", "d1/x.txt", "many b/1.txt"):
        (servers.files / name).parent.mkdir(exist_ok=True)
        (servers.files / name).write_text(name)
    servers.publish()
    place = parse_place(servers.url(scheme), "--input")

    def texts(name):
        return [remote.read(file.place).decode() for file in remote.find(place / name)[0]]

    assert texts("data[1].txt") == ["data[1].txt"]
    assert texts("d[1]/") == ["d[1]/x.txt"]
    assert texts("data[12].txt") == ["data1.txt"]
    assert texts("d[12]/*.txt") == ["d1/x.txt"]
    assert texts("many b/*") == ["many b/1.txt"]
    assert texts("**/1.txt") == ["many b/1.txt"]
    assert texts("none[1].txt") == texts("none*/*.txt") == []


def test_a_link_on_this_machine_is_the_file_that_it_leads_to(servers):
    (servers.files / "a" / "link.bin").symlink_to("x.bin")
    found, _ = remote.find(parse_place(f"{servers.url('file')}/a", "--input"))
    assert [(file.place.name, file.bytes) for file in found] == [("link.bin", len(CONTENT)), ("x.bin", len(CONTENT))]
    (servers.files / "a" / "broken.bin").symlink_to("none.bin")
    with pytest.raises(UserError, match=r"a/broken\.bin is a link to a file that is not there"):
        remote.find(parse_place(f"{servers.url('file')}/a", "--input"))


APACHE = """<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 3.2 Final//EN"><html><head><title>Index of /d</title></head><body>
<pre><img src="/icons/blank.gif" alt="Icon "> <a href="?C=N;O=D">Name</a> <a href="?C=M;O=A">Last modified</a>
<a href="/">Parent Directory</a> <a href="b%20c.txt">b c.txt</a> <a href="p&amp;q.txt">p&amp;q.txt</a>
<a href="./dot.txt">dot.txt</a> <a href="/d/sub/">sub/</a> <a href="sub/deep.txt">deep.txt</a></pre>
<address>Apache/2.4 at <a href="mailto:admin@host">host</a></address> <a href="#top">top</a></body></html>"""
PAGE = {"Content-Type": "text/html"}


def test_the_links_of_a_page_to_files_are_its_files(servers):
    names = ["b%20c.txt", "p&q.txt", "dot.txt", "sub/deep.txt", "sub/x.txt"]
    servers.http.answers |= {f"/d/{name}": ({}, name.encode()) for name in names}
    sub = b'<ul><a href="?sort=name&amp;order=desc">Name</a><a href="../">up</a><a href="x.txt">x</a></ul>'
    servers.http.answers |= {"/d/": (PAGE, APACHE.encode()), "/d/sub/": (PAGE, sub)}
    url = f"{servers.http.url}/d/"
    found, is_directory = remote.find(parse_place(url, "--input"))
    assert [str(file.place).removeprefix(url) for file in found] == sorted(names)
    assert is_directory


@pytest.mark.parametrize(
    ("headers", "content", "words"),
    [
        ({"Status": "404"}, b"", "/d/sub.* is listed as a folder, but it is not there"),
        ({"Status": "403"}, b"", "no right to do so"),
        ({"Content-Length": "999"}, b"<html><pre>", r"PayloadError|payload"),
        ({}, b'<html><pre><a href="x.txt">', "breaks off before </html>"),
        ({}, b'["x.txt"]', "expected a page that links to files"),
        ({"Content-Encoding": "gzip"}, gzip.compress(b"<ul></ul>"), "with Content-Encoding: gzip, though asked"),
    ],
    ids=["absent", "forbidden", "cut", "ends early", "no page", "compressed"],
)
def test_a_folder_that_cannot_be_listed_is_not_left_out(servers, monkeypatch, headers, content, words):
    monkeypatch.setattr(connections, "PATIENCE_S", 0.0)
    servers.http.answers |= {
        f"/d/{name}": ({}, b"text") for name in ("b%20c.txt", "p&q.txt", "dot.txt", "sub/deep.txt")
    }
    servers.http.answers |= {"/d/": (PAGE, APACHE.encode()), "/d/sub/": ({**PAGE, **headers}, content)}
    for name in ("", "**/*.txt"):
        with pytest.raises((UserError, RunError), match=words):
            remote.find(parse_place(f"{servers.http.url}/d/{name}", "--input"))


def test_weak_and_strong_tags_of_a_text_are_one(servers):
    place, tags = parse_place(f"{servers.http.url}/t.txt", "--input"), []
    for tag in ('W/"abc"', '"abc"', '"abd"'):
        servers.http.answers["/t.txt"] = ({"ETag": tag}, b"text")
        tags.append(remote.entry(place).tag)
    assert tags == ['"abc"', '"abc"', '"abd"']


@pytest.mark.parametrize("target", ["/round", "file:///etc/passwd"])
def test_a_redirect_that_leads_nowhere_is_refused_at_once(servers, target):
    servers.http.answers["/round"] = ({"Status": "302", "Location": target}, b"")
    before = len(servers.http.requests)
    for look in (remote.entry, remote.read):
        with pytest.raises(UserError, match="redirects in a circle, or to no address of the web"):
            look(parse_place(f"{servers.http.url}/round", "--input"))
    assert len(servers.http.requests) - before < 40  # 10 redirects each time


@pytest.mark.parametrize("scheme", ["s3", "file"])
def test_a_file_is_written_whole_and_by_one_of_several_writers(servers, scheme, tmp_path):
    place = parse_place(servers.url(scheme), "--mirror") / "new" / "b.bin"
    (tmp_path / "b").write_bytes(CONTENT)
    remote.write(place, tmp_path / "b")
    remote.write(place, b"shorter")
    assert remote.read(place) == b"shorter"
    owner = place.with_name("owner")
    assert [remote.write_new(owner, content) for content in (b"me", b"you", b"me")] == [True, False, True]
    assert sorted(file.place.name for file in remote.find(parse_place(servers.url(scheme), "") / "new")[0]) == [
        "b.bin",
        "owner",
    ]
    remote.fetch(place, tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == b"shorter"
    for name in (place, owner, owner):
        remote.remove(name)
    assert remote.find(place)[0] == []


def test_nobody_sees_a_part_of_a_new_file_on_a_disk(tmp_path, monkeypatch):
    place, seen, sync = parse_place(tmp_path / "owner", ""), [], remote.sync

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
    place = parse_place(f"{http.url}/a/x.bin", "--input")
    http.refusals = 3
    assert (remote.read(place, 0, 4), http.refusals) == (CONTENT[:4], 0)
    http.refusals = 1000
    with pytest.raises(RunError, match=r"503.*tried \d+ times.*run the same command again"):
        remote.read(place, 0, 4)
    with pytest.raises(RunError, match="503"):
        remote.entry(place)
    http.refusals = 0
    with pytest.raises(RunError, match="tried"):
        remote.entry(parse_place(f"http://127.0.0.1:{free_port()}/x", "--input"))


def test_a_server_that_comes_back_is_read_on(servers):
    http = servers.http
    (file,), _ = remote.find(parse_place(f"{http.url}/a/x.bin", "--input"))
    with remote.RangeFile(file) as opened:
        beginning = opened.read(10)
        http.refusals = 10**6
        threading.Timer(1, setattr, [http, "refusals", 0]).start()
        assert beginning + b"".join(iter(lambda: opened.read(1 << 20), b"")) == CONTENT


def test_mistakes_are_named_without_secrets(servers, monkeypatch):
    http = servers.http
    monkeypatch.setattr(connections, "PATIENCE_S", 0.0)
    connections._filesystems.clear()
    http.ranges = False
    with pytest.raises(UserError, match="sends the whole file"):
        remote.read(parse_place(f"{http.url}/a/x.bin", "--input"), 0, 4)
    http.ranges, http.redirect = True, "sig=hidden"
    http.refusals = 0
    assert remote.read(parse_place(f"{http.url}/a/x.bin", "--input"), 0, 4) == CONTENT[:4]
    with pytest.raises(Missing) as caught:
        remote.read(parse_place(f"{http.url}/none", "--input"))
    assert "hidden" not in str(caught.value)
    http.redirect = ""
    with pytest.raises(UserError, match=r"gs://lab/x needs gcsfs, .*pip install gcsfs.*'bert_horovod\[remote\]'"):
        remote.entry(parse_place("gs://lab/x", "--input"))
    with pytest.raises(Missing):
        remote.read(parse_place("s3://none-such/x", "--input"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    connections._filesystems.clear()
    with pytest.raises(UserError, match=r"no right to do so.*credentials come from AWS_ACCESS_KEY_ID"):
        remote.entry(parse_place("s3://lab/x", "--input"))


def test_a_full_disk_of_this_machine_is_not_a_fault_of_the_server(tmp_path):
    (tmp_path / "x.bin").write_bytes(CONTENT)
    place = parse_place(f"file://{tmp_path}/x.bin", "--input")
    with small_file_system(tmp_path / "disk", 1 << 16) as disk, pytest.raises(OSError, match="No space left"):
        remote.fetch(place, disk / "x.bin")
