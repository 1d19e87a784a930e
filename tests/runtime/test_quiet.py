"""Ctrl-C in the first seconds of a command, which imports TensorFlow."""

import os
import signal
import threading

import pytest

from bert_horovod.runtime.quiet import interrupt_ends_at_once
from tests.horovod_runs import run_python
from tests.toy_glue import write_checkpoint

IMPORTING = """
import os, signal, sys, types
from importlib.abc import MetaPathFinder

class Interrupting(MetaPathFinder):  # Ctrl-C when {module} is imported, after a word of a native library
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.write(2, b"noise of a native library\\n")
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["bert-horovod", "fill-mask", "--checkpoint", {checkpoint!r}, "a"]
from bert_horovod.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["absl", "bert_horovod.commands.plan", "tensorflow"])
def test_it_is_one_line_without_a_traceback_or_noise(module, tmp_path):
    write_checkpoint(tmp_path)
    done = run_python("-c", IMPORTING.format(module=module, checkpoint=str(tmp_path)))
    assert done.returncode == 130
    noise = "" if module == "tensorflow" else "noise of a native library\n"
    assert done.stderr == f"{noise}bert-horovod: interrupted\n"
    assert done.stdout == ""


def test_afterwards_and_elsewhere_ctrl_c_is_what_it_was():
    with interrupt_ends_at_once():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt_ends_at_once():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    thread = threading.Thread(target=lambda: interrupt_ends_at_once().__enter__())
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before
