"""Files that a user names, read; a mapped file that is cut short; the record of what was compared."""

import os
import signal

import numpy as np
import pytest

from bert_horovod.errors import ReportedError, UserError
from bert_horovod.storage.reading import Verified, identity, read_given_json
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
