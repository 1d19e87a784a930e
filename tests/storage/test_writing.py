"""A directory that is made under a temporary name is there whole, or not at all; files that users name."""

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from bert_horovod.errors import UserError
from bert_horovod.storage.writing import new_directory, write_output


def names(path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def make(path, error: BaseException | None = None) -> None:
    with new_directory(path) as temporary:
        (temporary / "file").touch()
        if error:
            raise error


def test_it_appears_when_all_is_written(tmp_path):
    directory = tmp_path / "a" / "made"
    with new_directory(directory) as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "file").write_text("x")
        assert not directory.exists()
    assert (directory / "inner" / "file").read_text() == "x"
    assert names(directory.parent) == ["made"]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_nothing_is_left_after_an_error(tmp_path, error):
    with pytest.raises(error):
        make(tmp_path / "made", error())
    assert names(tmp_path) == []


def test_what_a_killed_command_left_and_an_empty_directory_are_no_hindrance(tmp_path):
    (tmp_path / ".made.abc.partial").mkdir()
    (tmp_path / ".made.abc.partial" / "old").touch()
    (tmp_path / "made").mkdir()
    with new_directory(tmp_path / "made") as temporary:
        (temporary / "new").touch()
    assert names(tmp_path / "made") == ["new"]
    assert names(tmp_path) == ["made"]
    (tmp_path / "other").mkdir()  # with the rights that the umask gives
    assert (tmp_path / "made").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_link_to_an_empty_directory_is_followed(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    make(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "target") == ["file"]


def test_two_commands_do_not_write_one_directory_at_the_same_time(tmp_path):
    with new_directory(tmp_path / "made") as temporary:
        (temporary / "mine").touch()
        with pytest.raises(UserError, match=r"another command is writing .*made"):
            make(tmp_path / "made")
        make(tmp_path / "other")  # beside it
    assert names(tmp_path / "made") == ["mine"]
    with pytest.raises(UserError, match="exists"):
        make(tmp_path / "made")


@pytest.mark.parametrize(
    ("place", "message"), [("", "exists"), (".", "exists"), ("/", "is a mount point"), ("..", "exists")]
)
def test_places_without_a_name_are_refused(tmp_path, monkeypatch, place, message):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").touch()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match=message):
        make(Path(place))
    assert names(tmp_path / "here") == ["file"]


def test_a_file_that_the_user_names_is_written_to_the_target_of_a_link(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "target").write_text("old")
    (tmp_path / "link").symlink_to("inner/target")
    (tmp_path / "dangling").symlink_to("inner/new")
    for name in ("link", "dangling", "plain"):
        write_output(tmp_path / name, "text")
        assert (tmp_path / name).read_text() == "text"
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "inner") == ["new", "target"]


def test_devices_and_fifos_stay_what_they_are(tmp_path):
    write_output(Path("/dev/null"), "text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    received = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_text()))
    reader.start()
    write_output(fifo, "text")
    reader.join()
    assert received == ["text"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_text_goes_into_open_descriptors_and_leaves_what_is_there_before(tmp_path):
    reading, writing = os.pipe()
    write_output(Path(f"/dev/fd/{writing}"), "text")  # of a shell's >(command)
    os.close(writing)
    with open(reading) as pipe:
        assert pipe.read() == "text"
    with open(tmp_path / "log", "a") as log:
        log.write("before\n")
        log.flush()
        write_output(Path(f"/proc/self/fd/{log.fileno()}"), "text\n")
        log.write("after\n")
    assert (tmp_path / "log").read_text() == "before\ntext\nafter\n"


def test_a_file_that_is_written_anew_keeps_its_permissions(tmp_path):
    (tmp_path / "file").touch(mode=0o600)
    write_output(tmp_path / "file", "text")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("place", "message"),
    [
        *((f"/dev/fd/{number}", f"cannot write .*/fd/{number}: ") for number in ("987654321", "9" * 30)),
        *((place, "is a directory; expected the name of a file") for place in (".", "/", "")),
    ],
)
def test_a_descriptor_that_is_not_open_and_a_directory_are_told(place, message):
    with pytest.raises(UserError, match=message):
        write_output(Path(place), "text")


def test_sockets_and_circular_links_are_refused_and_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(UserError, match="socket is a socket; expected the name of a file"):
            write_output(Path("socket"), "text")
    Path("link").symlink_to("link")
    with pytest.raises(UserError, match="cannot write link: Too many levels of symbolic links"):
        write_output(Path("link"), "text")
    assert Path("link").is_symlink()


def test_other_things_are_refused_and_stay(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for name, message in (
        ("file", "exists; expected a new or empty directory"),
        ("full", "exists; expected a new or empty directory"),
        ("file/made", "cannot write .*: File exists"),
    ):
        with pytest.raises(UserError, match=message):
            make(tmp_path / name)
    assert names(tmp_path) == ["file", "full"]
