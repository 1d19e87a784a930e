"""Find the directories of runs, and give each a short name."""

import os
from collections.abc import Sequence
from pathlib import Path

from bert_horovod.errors import UserError

_RECORD = "run.json"  # the file that every run's directory has


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The runs that paths mean: a run's directory itself, or all runs below a directory, in the order of their names.

    Raises:
        UserError: a path is neither.
    """
    found: dict[Path, Path] = {}  # by the real path, so that no run comes twice
    for path in paths:
        runs = [path] if (path / _RECORD).is_file() else _below(path)
        if not runs:
            raise UserError(
                f"{path} is not a run's directory, and there is none below it: found no {_RECORD}; expected what was "
                "given as --output_dir, or a directory of such directories"
            )
        for run in runs:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def names_of(directories: Sequence[Path]) -> list[str]:
    """A name for each run: the last parts of its path, as few as make all names different."""
    parts = [directory.resolve().parts for directory in directories]
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(parts_of_one[-count:]) for parts_of_one in parts]
        if len(set(names)) == len(names):
            return names
    return [str(directory) for directory in directories]


def _below(directory: Path) -> list[Path]:
    """All runs below a directory; links are not followed, and nothing is looked for inside a run."""
    runs = []
    for place, below, files in os.walk(directory):
        if _RECORD in files:
            runs.append(Path(place))
            below.clear()
        below.sort()
    return runs
