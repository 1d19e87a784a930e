"""Files that a user names, read; a mapped file that is cut short; the record of what was compared."""

import os
import re
import signal
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.errors import ReportedError, UserError
from bert_horovod.storage.reading import (
    Seconds,
    Verified,
    check_type,
    identity,
    load_array,
    parse_json,
    read_given_json,
)
from tests.horovod_runs import run_python


def test_a_json_file_that_a_flag_names_is_read_or_told_with_the_flag(tmp_path):
    path = tmp_path / "given.json"
    path.write_text('{"a": 1}', encoding="utf-8")
    assert read_given_json(path, "--given", "an object") == {"a": 1}
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"--given .*given\.json: expected an object \("):
        read_given_json(path, "--given", "an object")
    with pytest.raises(ReportedError, match=r"--given .*none\.json: No such file"):
        read_given_json(tmp_path / "none.json", "--given", "an object")


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e400", "9" * 101, "9" * 5000])
def test_a_number_that_no_field_can_have_is_no_json(number):
    for text in (f'{{"a": [{number}]}}', f'{{"a": [{number}]}}'.encode()):
        with pytest.raises(ValueError, match="a number that no field can have"):
            parse_json(text)
    assert parse_json(f"[{'9' * 31}, 1.5]") == [10**31 - 1, 1.5]  # as transformers writes "no limit"


@dataclass
class Record:
    count: int
    time: Seconds = 0.0
    place: tuple[int, int] | None = None
    by_number: dict[int, str] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({}, "'count' is missing"),
        ({"count": 10.0}, "it.count is 10.0, expected a whole number"),
        ({"count": -1}, "it.count is -1, expected a whole number from 0"),
        ({"count": 1 << 63}, "expected a whole number from 0 to 9223372036854775807"),
        ({"count": 1, "time": 1e300}, "it.time is 1e+300, expected a number within 1e+100"),
        ({"count": 1, "time": 1e12}, r"it.time is 1000000000000.0, expected 0 to 1e+11"),
        ({"count": 1, "place": [1]}, "it.place is [1], expected a list of 2"),
        ({"count": 1, "place": [1, {}]}, "it.place.1 is {}, expected a whole number"),
        ({"count": 1, "by_number": {"x": "a"}}, "a key of it.by_number is 'x', expected digits"),
        ({"count": 1, "new": 1}, "unknown 'new'"),
    ],
)
def test_a_records_fields_have_kind_and_range(record, problem):
    check_type({"count": 10, "time": 5, "place": [1, 2], "by_number": {"7": "a"}}, Record, "it")
    with pytest.raises(ValueError, match=re.escape(problem)):
        check_type(record, Record, "it")


def test_a_mapped_array_keeps_no_file_open_and_its_map_goes_with_its_last_part(tmp_path):
    """A run of twenty stores maps hundreds of files, and a process may have 1,024 open."""
    np.save(tmp_path / "mapped.npy", np.arange(12, dtype=np.uint16).reshape(3, 4))
    files = len(os.listdir("/proc/self/fd"))
    array = load_array(tmp_path / "mapped.npy", np.uint16, (None, 4))
    assert len(os.listdir("/proc/self/fd")) == files
    assert array.tolist() == np.arange(12).reshape(3, 4).tolist()
    assert not array.flags.writeable
    part = array[1:]
    del array
    assert part.sum() == sum(range(4, 12))
    assert "mapped.npy" in Path("/proc/self/maps").read_text()
    del part
    assert "mapped.npy" not in Path("/proc/self/maps").read_text()


@pytest.mark.full
def test_a_mapped_file_that_is_cut_ends_the_process_by_sigbus_with_the_place_that_read_it(tmp_path):
    np.save(tmp_path / "cut.npy", np.arange(100_000))
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from bert_horovod import __main__\n"
        "from bert_horovod.storage.reading import load_array\n"
        "def read(arguments):\n"
        "    array = load_array(Path('cut.npy'), np.int64, (None,))\n"
        "    os.truncate('cut.npy', 8192)\n"
        "    print(array.sum())\n"
        "__main__.dispatch, sys.argv = read, ['bert-horovod', 'hosts']\n"
        "__main__.main()\n"
    )
    done = run_python("-c", program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")
    assert done.stderr.startswith("Fatal Python error: Bus error")
    assert "in read" in done.stderr


def test_a_file_is_known_until_it_changes(tmp_path):
    file, record = tmp_path / "a", Verified(tmp_path / "index" / "verified.jsonl")
    file.write_text("one")
    assert record.names() == {}
    record.remember("a", identity([file]))
    record.remember("b", [1, 2, 3])
    assert Verified(tmp_path / "index" / "verified.jsonl").names() == {"a": identity([file]), "b": [1, 2, 3]}
    facts = file.stat()
    file.write_text("two")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # the time of change cannot be put back
    assert record.names()["a"] != identity([file])
    record.remember("a", identity([file]))
    assert record.names()["a"] == identity([file])


def test_half_a_line_and_a_place_that_cannot_be_written_do_no_harm(tmp_path):
    record = Verified(tmp_path / "verified.jsonl")
    record.remember("a", [1])
    with open(tmp_path / "verified.jsonl", "a", encoding="utf-8") as file:
        file.write('{"name": "b", "ident\n[]\n{}\n')
    record.remember("c", [2])
    assert record.names() == {"a": [1], "c": [2]}
    (tmp_path / "file").touch()
    Verified(tmp_path / "file" / "verified.jsonl").remember("a", [1])
