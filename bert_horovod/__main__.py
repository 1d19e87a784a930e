"""The command line: `bert-horovod COMMAND ...`, one small module of `bert_horovod.commands` per command."""

# ruff: noqa: E402 (Ctrl-C is handled before anything else is imported)

from contextlib import ExitStack

from bert_horovod.runtime.quiet import interrupt_ends_at_once

_importing = ExitStack()
_importing.enter_context(interrupt_ends_at_once())

import argparse
import errno
import os
import signal
import sys
from functools import partial

from absl import app

from bert_horovod.cluster.launching.rank import end_with_launcher
from bert_horovod.commands.shared.parser import open_values, parse, refuse_unread
from bert_horovod.errors import NO_ROOM, ReportedError, RunError, UserError, printable, unreadable
from bert_horovod.runtime.host import keep_freed_memory

_importing.close()


def dispatch(arguments: argparse.Namespace) -> int:
    """Run a parsed command; what is reported is one message and its exit code, and so is a disk without room."""
    try:
        refuse_unread(arguments)
        open_values(arguments)
        return arguments.run(arguments) or 0
    except ReportedError as error:
        print(f"bert-horovod: error: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # as in `bert-horovod inspect | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in NO_ROOM:
            reported = unreadable(error, error.filename or "a file")
            if error.errno == errno.ENAMETOOLONG:  # of a text in place of a path
                reported = UserError(f"no such file: the name {str(error.filename)[:60]!r}... is too long for one")
            if reported is None:
                raise
            print(f"bert-horovod: error: {printable(str(reported))}", file=sys.stderr)
            return reported.exit_code
        print(
            f"bert-horovod: error: no room on the disk for {error.filename or 'the output'}: {error.strerror}; "
            "make room and run the same command again",
            file=sys.stderr,
        )
        return RunError.exit_code
    except KeyboardInterrupt:
        print("bert-horovod: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _run(starting: ExitStack, arguments: argparse.Namespace) -> int:
    starting.close()
    return dispatch(arguments)


def _open_closed_streams() -> None:
    """Open /dev/null in place of a standard stream that is closed, as in `bert-horovod inspect >&-`.

    Otherwise the next file that is opened would get its number, and the text for it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            if os.open(os.devnull, os.O_RDWR) != number:
                raise
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def main() -> None:
    """The `bert-horovod` command."""
    starting = ExitStack()
    starting.enter_context(interrupt_ends_at_once())  # until the command line is parsed, which imports a command
    keep_freed_memory()  # before end_with_launcher starts a thread
    end_with_launcher()
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # names may have bytes and characters that it cannot write
    app.run(partial(_run, starting), flags_parser=parse)


if __name__ == "__main__":
    main()
