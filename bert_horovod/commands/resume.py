"""Run the recorded command of a run again: the run goes on from its last checkpoint.

bert-horovod resume RUN
"""

import argparse
import os
import shlex
import sys
from pathlib import Path

from bert_horovod.errors import UserError, printable_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("RUN", type=Path, help="a run's --output_dir")


def run(arguments: argparse.Namespace) -> None:
    """Replace this process by the recorded command, in the command's working directory."""
    from bert_horovod.runs.status_files import read_command, read_sign
    from bert_horovod.runtime.children import python_settings

    place, command = arguments.RUN.absolute(), read_command(arguments.RUN)
    shown = shlex.join(["bert-horovod", *command.words])
    if command.launcher:
        raise UserError(
            f"{arguments.RUN} was started by {command.launcher} with {command.ranks} ranks, whose own flags nobody has "
            f"recorded; run it again as then, in {command.directory}: {command.launcher} ... {shown}"
        )
    sign = read_sign(arguments.RUN)
    if sign and not sign.ended and not sign.is_gone() and sign.is_young():
        raise UserError(f"{arguments.RUN} is running on {sign.host}: see bert-horovod status {arguments.RUN}")
    if str(place) != command.output_dir and os.path.realpath(place) != os.path.realpath(command.output_dir):
        raise UserError(
            f"{arguments.RUN} was made as {command.output_dir} and was moved since; run the command again with its new "
            f"place, in {command.directory}: {shown} --output_dir {shlex.quote(str(place))}"
        )
    try:
        os.chdir(command.directory)
    except OSError as error:
        raise UserError(
            f"{arguments.RUN} was started in {command.directory}, which cannot be entered ({error.strerror}); run its "
            f"command where its files are: {shown}"
        ) from error
    print(printable_line(f"in {command.directory}: {shown}"), file=sys.stderr, flush=True)
    # The recorded directory may hold modules of others, and `-m` alone would let Python import these first.
    program = "import sys; sys.path[:] = filter(None, sys.path); from bert_horovod.__main__ import main; main()"
    words = [sys.executable, "-c", program, *command.words]
    os.execve(sys.executable, words, dict(os.environ) | python_settings())
