"""A process that ends itself where it holds too much memory."""

import subprocess
import sys

import pytest

from bert_horovod.runtime.host import OUT_OF_MEMORY, resident_bytes
from tests.horovod_runs import PATIENCE_S, clean_environment

PROGRAM = """
import sys, time
from bert_horovod.runtime.host import end_above, resident_bytes
end_above(resident_bytes() + (64 << 20))
held = b"1" * int(sys.argv[1])
time.sleep(float(sys.argv[2]))
print("done")
"""


def run(held_bytes: int, seconds: float) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", PROGRAM, str(held_bytes), str(seconds)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=clean_environment()
    )


@pytest.mark.full
def test_a_process_above_its_limit_says_so_and_ends():
    done = run(256 << 20, 50)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"bert-horovod: error: {OUT_OF_MEMORY}: this process holds " in done.stderr


@pytest.mark.full
def test_a_process_below_its_limit_goes_on():
    done = run(1 << 20, 0.2)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_what_is_held_is_counted():
    before = resident_bytes()
    held = b"1" * (64 << 20)
    assert resident_bytes() - before > 48 << 20
    assert held
