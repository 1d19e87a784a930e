"""A directory that is made under a temporary name is there whole, or not at all."""

import pytest

from bert_horovod.errors import UserError
from bert_horovod.storage.writing import new_directory


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
    (tmp_path / ".made.partial").mkdir()
    (tmp_path / ".made.partial" / "old").touch()
    (tmp_path / "made").mkdir()
    with new_directory(tmp_path / "made") as temporary:
        (temporary / "new").touch()
    assert names(tmp_path / "made") == ["new"]


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
