"""Refuses, before any work, an output that a command could not write, or that would replace what it must not."""

import argparse
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_horovod.errors import UserError
from bert_horovod.interchange.safetensors_file import INDEX_FILE, TORCH_FILE, WEIGHTS_FILE
from bert_horovod.runs.directory import ANSWERS, CONTENTS, PAGE

# Suffixes of a checkpoint's files, a store's.
_KEPT = (".bin", ".json", ".md", ".model", ".npy", ".safetensors", ".txt")
_NO_INPUTS = ("words", "func", "run")  # of the arguments: the whole command line, and functions


def require_output(
    arguments: argparse.Namespace, name: str = "output", more_inputs: Iterable[Path] = (), makes_parent: bool = False
) -> None:
    """Raise UserError if the file or directory of flag `name` is an input of the command, or belongs to something else.

    Files of all flags are inputs, and so are `more_inputs`. A run's own files are those of runs.directory.CONTENTS;
    files of a checkpoint and of a token store may not be replaced either. `makes_parent`: the command makes missing
    directories.
    """
    output, flag = Path(getattr(arguments, name)), f"--{name}"
    if not makes_parent and not output.absolute().parent.is_dir():
        raise UserError(f"{flag} {output}: there is no directory {output.parent}; make it, or name another")
    others = {key: value for key, value in vars(arguments).items() if key not in (name, *_NO_INPUTS)}
    inputs = [*more_inputs, *_paths(others.values())]
    written = [output / answer for answer in ANSWERS] if output.is_dir() else [output]
    for path in written:
        if path.is_file() and (same := [file for file in inputs if file.is_file() and file.samefile(path)]):
            raise UserError(f"{flag} {output} is the input {same[0]}, which would be lost; name another file")
        real = Path(os.path.realpath(path))
        if (real.parent / "run.json").is_file() and real.name not in CONTENTS:
            raise UserError(
                f"{flag} {output} is in the run {real.parent}, which takes no files but its own and could not go on; "
                "name a file elsewhere"
            )
        if owner := _owner(real):
            raise UserError(f"{flag} {output} is a file of {owner}, which would be lost; name another file")


def require_output_file(
    arguments: argparse.Namespace, name: str = "output", more_inputs: Iterable[Path] = (), makes_parent: bool = False
) -> None:
    """The same for a command that writes one file."""
    if getattr(arguments, name).is_dir():
        raise UserError(f"--{name} {getattr(arguments, name)} is a directory; expected the name of a file")
    require_output(arguments, name, more_inputs, makes_parent)


def _paths(values: Iterable[Any]) -> Iterator[Path]:
    for value in values:
        if isinstance(value, str | Path):
            yield Path(value)
        elif isinstance(value, list | tuple):
            yield from _paths(value)


def _owner(path: Path) -> str:
    """What a file belongs to, or "" if it belongs to nothing; `path`: without links."""
    for directory in path.parents:
        if (directory / "run.json").is_file():
            first = path.relative_to(directory).parts[0]
            return f"the run {directory}" if first in CONTENTS and first != PAGE else ""
    if not path.exists() or path.suffix not in _KEPT:
        return ""
    weights = any((path.parent / name).is_file() for name in (WEIGHTS_FILE, INDEX_FILE, TORCH_FILE))
    if weights and (path.parent / "config.json").is_file():
        return f"the checkpoint {path.parent}"
    for directory in path.parents[:2]:
        if (directory / "manifest.json").is_file() and any(directory.glob("shard-*")):
            return f"the token store {directory}"
    return ""
