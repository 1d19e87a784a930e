"""A mapped file that is cut under a process is named in one message."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.errors import DamagedData
from bert_horovod.storage.mapped import cut_files
from tests.horovod_runs import PATIENCE_S, PROJECT

PROGRAM = f"""
import os, sys, threading
sys.path.insert(0, {str(PROJECT)!r})
from pathlib import Path
import numpy as np
from bert_horovod import __main__
from bert_horovod.storage.reading import load_array

def read(arguments):
    array = load_array(Path(cut), np.int64, (None,))
    kept = load_array(Path(whole), np.int64, (None,))
    os.truncate(cut, 8192)
    if where == "thread":
        reading = threading.Thread(target=array.sum)
        reading.start()
        reading.join()
    print(array.sum() + kept.sum())

_, cut, whole, where = sys.argv
__main__.dispatch, sys.argv = read, ["bert-horovod", "hosts"]
__main__.main()
"""


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_file_that_is_cut_while_it_is_mapped_is_named(tmp_path, where):
    for name in ("cut.npy", "whole.npy"):
        np.save(tmp_path / name, np.arange(100_000))
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "cut.npy"), str(tmp_path / "whole.npy"), where]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == DamagedData.exit_code
    assert done.stdout == ""
    assert done.stderr == (
        f"bert-horovod: error: cannot read {tmp_path / 'cut.npy'}: cut short while it was read (SIGBUS). See which "
        "files of a token store are damaged with: bert-horovod verify --data_dir DIR; then run the same command again\n"
    )


def test_files_that_are_whole_or_gone_are_not_called_cut(tmp_path):
    np.save(tmp_path / "a b.npy", np.arange(100_000))
    mapped = np.load(tmp_path / "a b.npy", mmap_mode="r")
    maps = Path("/proc/self/maps").read_text()
    assert str(tmp_path) in maps
    assert not list(cut_files(maps))
    (tmp_path / "a b.npy").write_bytes(b"")
    assert list(cut_files(maps)) == [tmp_path / "a b.npy"]
    (tmp_path / "a b.npy").unlink()
    assert not list(cut_files(Path("/proc/self/maps").read_text()))
    del mapped
