"""Flags that name a checkpoint or a run, which may be elsewhere: opened once, before their command begins."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bert_horovod.commands.shared.flags import CHECKPOINT, add_path
from bert_horovod.commands.shared.parser import opens, takes_urls
from bert_horovod.commands.shared.ranks import one_message
from bert_horovod.storage.places import is_url, parse_place

if TYPE_CHECKING:
    from bert_horovod.runs.opening import OpenCheckpoint


class OpenRun(NamedTuple):
    """A run that the user names."""

    given: Path
    directory: Path  # of the run, on this machine
    url: str  # of its mirror, if that is what he names, else ""

    def named(self, path: Path | str) -> str:
        """A path in the run's directory, in messages."""
        return self.url + str(path).removeprefix(str(self.directory)) if self.url else str(path)


def add_checkpoint_path(parser: argparse.ArgumentParser) -> None:
    """Declare --checkpoint, which is required, and may be named without its flag; its value is an OpenCheckpoint."""
    add_path(parser, "RUN", "--checkpoint", "PATH", CHECKPOINT)
    for action in parser._actions:
        if action.dest == "checkpoint":
            opens_checkpoint(action)


def add_checkpoint(parser: argparse.ArgumentParser, what: str = "") -> None:
    """Declare --checkpoint, which is required; `what` begins its help text. Its value is an OpenCheckpoint."""
    flag = parser.add_argument("--checkpoint", required=True, type=Path, metavar="PATH", help=what + CHECKPOINT)
    opens_checkpoint(flag)


def opens_checkpoint(action: argparse.Action, flag: str = "--checkpoint") -> None:
    """Declare that a flag names a checkpoint, or the URL of one; its value is an OpenCheckpoint."""
    takes_urls(action)
    opens(action, lambda _, path: open_named(path, flag))


def open_named(path: Path, flag: str) -> "OpenCheckpoint":
    """Open the checkpoint that a flag's path or URL names; raises ReportedError. What all ranks meet is told once."""
    from bert_horovod.runs.mirror import fetched
    from bert_horovod.runs.opening import open_checkpoint

    with one_message():
        if not is_url(path):
            return open_checkpoint(path, flag)
        place = parse_place(path, flag)
        return open_checkpoint(fetched(place, flag), flag, str(place))


def opens_run(action: argparse.Action) -> None:
    """Declare that an argument names a run, or its mirror; its value is an OpenRun."""
    takes_urls(action)
    opens(action, lambda _, path: open_run(path))


def open_run(path: Path) -> OpenRun:
    """Find the run that a path or URL names; raises ReportedError if its mirror cannot be read."""
    from bert_horovod.runs.mirror import fetched, is_mirror

    if not is_mirror(path):
        return OpenRun(path, path, "")
    place = parse_place(path, "RUN")
    return OpenRun(path, fetched(place, "RUN", run_alone=True), str(place))
