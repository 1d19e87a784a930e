"""Work goes on when its words can no longer be written."""

import os
import subprocess
import sys

import pytest

from bert_horovod.runtime.lasting_log import warn
from tests.horovod_runs import PATIENCE_S, PROJECT

pytestmark = pytest.mark.full

PROGRAM = f"""
import os, sys
sys.path.insert(0, {str(PROJECT)!r})
from bert_horovod.runtime.lasting_log import outlive_log
outlive_log()
outlive_log()
for step in range(10000):
    print("step", step, flush=True)
    print("warning", step, file=sys.stderr)
print(os.fstat(os.open(os.devnull, os.O_RDONLY)) is not None)
os.write(int(sys.argv[1]), b"done")
"""


def run(shell: str) -> subprocess.CompletedProcess:
    """Run the program in a shell's command, where 3 is a file that takes its last word."""
    return subprocess.run(
        ["bash", "-c", shell, sys.executable, PROGRAM], capture_output=True, text=True, timeout=PATIENCE_S
    )


def test_a_reader_that_goes_a_disk_without_room_and_no_stream_at_all_end_nothing(tmp_path):
    word = tmp_path / "word"
    broken = ("| head -1", "> /dev/full", "> /dev/full 2>&1", ">&- 2>&-", "2> /dev/full")
    for place in broken:
        done = run(f'set -o pipefail; "$0" -c "$1" 3 3> {word} {place}')
        assert done.returncode == 0, (place, done.stderr[-500:])
        assert word.read_text() == "done", place
    done = run(f'"$0" -c "$1" 3 3> {word} > /dev/full')
    assert done.stderr.count("cannot write standard output: No space left on device; the work goes on without it") == 1


def test_a_log_that_can_be_written_is_written_whole(tmp_path):
    done = run(f'"$0" -c "$1" 3 3> {tmp_path / "word"}')
    assert done.stdout.splitlines()[:-1] == [f"step {step}" for step in range(10000)]
    assert done.stderr.splitlines() == [f"warning {step}" for step in range(10000)]


def test_a_name_with_odd_bytes_can_be_said_also_in_a_signals_handler(capfd):
    warn(os.fsdecode(b"asked the ranks to save and stop (r\xe9sum\xe9/stop)"))
    assert capfd.readouterr().err == "bert-horovod: asked the ranks to save and stop (r\\udce9sum\\udce9/stop)\n"
