"""The output directory: its lock, the record of the run that it belongs to, and the request to stop."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_horovod.errors import ReportedError, RunError, UserError, damaged, file_error, unreadable
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe_files.loading import differences, load_recipe, recipe_to_toml
from bert_horovod.runs.checkpoint import BEST, NEWEST, paths
from bert_horovod.runs.rank_parts import remove_waiting
from bert_horovod.runs.resuming import recorded_recipe
from bert_horovod.runs.status_files import COMMAND, NOTES, SESSIONS, STATUS
from bert_horovod.runs.trackers import IDS
from bert_horovod.storage.places import is_url, parse_place
from bert_horovod.storage.reading import read_record, read_text
from bert_horovod.storage.writing import lock, share_lock, write_atomically

if TYPE_CHECKING:
    from bert_horovod.collectives.world import World

FORMAT = 1
LOCK_PATIENCE_S = 10  # seconds that ranks of a killed run may need to end
_DIRECTORIES = ("checkpoints", "tensorboard", "timeline", "predictions", "wandb", "probe")  # or links to another disk
ANSWERS = ("predictions.json", "nbest_predictions.json", "null_odds.json")  # answers to a dev set's questions
# What a command leaves beside an output for a while, and what NFS leaves of a replaced file while another has it open.
_FOR_A_WHILE = re.compile(r"\..+\.(partial|lock)|\.nfs[0-9a-f]+")
PAGE = "report.html"  # of `report`, put beside what it is about
CONTENTS = (
    *("recipe.toml", "metrics.jsonl", "run.json", "autotuning.json", "mirror.json", "stop", ".lock"),
    *(BEST, IDS, STATUS, SESSIONS, COMMAND, NOTES, PAGE, NEWEST),
    *(*ANSWERS, *_DIRECTORIES),
)


@dataclass(frozen=True)
class Start:
    """What a run is started from; without values, fresh parameters."""

    flag: str = ""  # that named the checkpoint
    checkpoint: str = ""  # its absolute path, or its URL
    weights: str = ""  # SHA-256; see runs.opening

    def __str__(self) -> str:
        return f"{self.flag} {self.checkpoint} (weights {self.weights[:12]})" if self.weights else "fresh parameters"


@dataclass(frozen=True)
class RunRecord:
    """The content of run.json: the run that the directory belongs to."""

    store: str  # SHA-256 of the data (of a token store: of its manifest)
    start: Start | None = None  # None: the program that made the run did not record it
    format: int = FORMAT
    text_key: str = ""  # of reference_curves.text_key_of


def claim(
    output_dir: Path,
    recipe: Recipe,
    store_hash: str,
    patience_s: float = LOCK_PATIENCE_S,
    start: Start = Start(),
    text_key: str = "",
) -> int:
    """Lock the directory for this run, new or resumed; rank 0 only. Returns the lock's descriptor, to be kept open.

    Waits `patience_s` seconds for ranks of an earlier run to end.

    Raises UserError if another process writes to the directory, if it holds other things, or if it belongs to another
    recipe, store or start; DamagedData if run.json is damaged; the error of file_error if the disk cannot be written.
    """
    if output_dir.exists() and not output_dir.is_dir():
        raise UserError(f"--output_dir {output_dir} is a file; give a directory")
    refuse_other_things(output_dir)  # before the lock, which is a file, comes into a directory of others
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        held = lock(
            output_dir / ".lock",
            f"another run writes to --output_dir {output_dir}, or ranks of it still live; wait for it, stop it by "
            f"making the file {output_dir / 'stop'}, or give another directory",
            patience_s,
        )
    except OSError as error:
        raise _cannot_write(output_dir, error) from error
    try:
        _take(output_dir, recipe, RunRecord(store_hash, start, text_key=text_key))
    except BaseException as error:
        os.close(held)
        if isinstance(error, OSError):
            raise _cannot_write(output_dir, error) from error
        raise
    return held


def start_of(output_dir: Path) -> Start:
    """What a run was started from; without values also if run.json does not tell."""
    try:
        return Start(**(read_record(output_dir / "run.json", RunRecord, inside=output_dir).start or {}))
    except (OSError, ValueError):
        return Start()


def began_with(output_dir: Path, flag: str, given: Path) -> bool:
    """Whether a run has checkpoints, and was started from what `given` names after this flag: it needs that no longer.

    That may be gone by now, or be of a run that has gone on.
    """
    start, name = start_of(output_dir), str(parse_place(given, flag)) if is_url(given) else os.path.abspath(given)
    same = start.flag == flag and name in (start.checkpoint, start.checkpoint.rpartition("/checkpoints/")[0])
    return same and bool(paths(output_dir))


def started_model(output_dir: Path) -> Model | None:
    """The model of a run that was started from a checkpoint, which its recipe may leave out; None: there is none."""
    recipe = _recipe_of_run(output_dir) if start_of(output_dir).weights else None
    return recipe.model if recipe else None


def _take(output_dir: Path, recipe: Recipe, run: RunRecord) -> None:
    """Make the locked directory that of `run`; raises UserError and DamagedData as `claim`, and OSError."""
    refuse_other_things(output_dir)  # once more: the process that held the lock before may have made them
    ours = (output_dir / "run.json").is_file()
    if ours:
        refuse_another_run(output_dir, recipe, run)
        (output_dir / "stop").unlink(missing_ok=True)
        remove_waiting(output_dir / "checkpoints")
    write_atomically(output_dir / "recipe.toml", recipe_to_toml(recipe))
    if not ours:
        record = {name: value for name, value in asdict(run).items() if value != ""}
        write_atomically(output_dir / "run.json", json.dumps(record, indent=1) + "\n")


def _is_a_runs(recipe: Path) -> bool:
    """Whether there is no such file, or one as a run writes it, also if it was killed before it wrote run.json."""
    try:
        text = read_text(recipe, inside=recipe.parent)
        return not text.strip("\0 \r\n\t") or text == recipe_to_toml(load_recipe(recipe))
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError, ReportedError):
        return False


def give_up(output_dir: Path) -> None:
    """Remove the files of `claim` if the run cannot begin and no run has begun in the directory before."""
    if not (output_dir / "metrics.jsonl").exists() and not (output_dir / "checkpoints").exists():
        for name in ("recipe.toml", "run.json", COMMAND, SESSIONS):
            (output_dir / name).unlink(missing_ok=True)


def share(output_dir: Path, claimed: int | None, world: World) -> int | None:
    """Let all ranks that see the directory share its lock, so that the lock is released when the last of them ends.

    `claimed` is the descriptor that `claim` returned to rank 0. Returns the descriptor to be kept open, if any.
    """
    path = output_dir / ".lock"
    held = share_lock(path, claimed) if world.rank == 0 else None
    if world.rank == 0 and held is None:
        raise UserError(f"another run took --output_dir {output_dir} in this moment; wait for it, or stop it")
    world.barrier()
    return held if world.rank == 0 else share_lock(path, None)


def _recipe_of_run(output_dir: Path) -> Recipe | None:
    """The recipe of the run in the directory: recipe.toml, or the newest checkpoint's if a crash left the file empty.

    Returns None if recipe.toml is empty and no checkpoint has a recipe. Raises ReportedError.
    """
    path = output_dir / "recipe.toml"
    try:
        if read_text(path, inside=output_dir).strip("\0 \r\n\t"):
            return load_recipe(path)
    except (OSError, ValueError) as error:
        if reported := unreadable(error, path):
            raise reported from error
    for checkpoint in reversed(paths(output_dir)):
        if recipe := recorded_recipe(checkpoint):
            print(
                f"bert-horovod: warning: {path} is missing or empty, as a crash may leave it; it is written anew, from "
                f"what {checkpoint} was trained by",
                file=sys.stderr,
            )
            return recipe
    return None if path.exists() else load_recipe(path)  # raises the error for a missing file


def stop_requested(output_dir: Path) -> bool:
    """Whether the file `stop` exists, which a user makes to stop the run; an error of the disk is no request."""
    return os.path.exists(output_dir / "stop")


def refuse_other_things(output_dir: Path) -> None:
    """Raise UserError if the directory holds what no run makes, or a recipe that no run wrote."""
    entries = sorted(output_dir.iterdir()) if output_dir.is_dir() else []
    # Looked for after the listing: a run that begins in this moment writes run.json before all but these two.
    ours = (output_dir / "run.json").is_file()
    known = CONTENTS if ours else (".lock", "recipe.toml")
    foreign = [
        path.name
        for path in entries
        if not (path.name in known and _is_as_we_make_it(path)) and not _FOR_A_WHILE.fullmatch(path.name)
    ]
    if foreign:
        raise UserError(
            f"--output_dir {output_dir} holds other things ({', '.join(foreign)[:200]}); "
            "give a new directory, or one of an earlier run"
        )
    if not ours and not _is_a_runs(output_dir / "recipe.toml"):
        raise UserError(
            f"--output_dir {output_dir} holds a recipe.toml that no run wrote and that the run's would replace; give a "
            "new directory"
        )


def _cannot_write(output_dir: Path, error: OSError) -> UserError | RunError:
    return file_error(
        error, f"cannot write to --output_dir {output_dir}: {error.filename or output_dir}: {error.strerror}"
    )


def _is_as_we_make_it(path: Path) -> bool:
    """Whether an entry with a name in CONTENTS is of the kind, file or directory, that a run makes."""
    if path.name in _DIRECTORIES:
        return path.is_dir()
    if path.name == NEWEST:
        return path.is_symlink()
    return path.name == "stop" or (path.is_file() and not path.is_symlink())


def refuse_another_run(
    output_dir: Path, recipe: Recipe, now: RunRecord, name: str | None = None, resumes: bool | None = None
) -> None:
    """Raise UserError if run.json and recipe.toml of a directory are of another run; DamagedData if they are damaged.

    `name`: of the directory, for people; None: --output_dir. `resumes`: whether the run goes on from a checkpoint;
    None: if the directory has one.
    """
    name = name or f"--output_dir {output_dir}"
    try:
        run = read_record(output_dir / "run.json", RunRecord, inside=output_dir)
        start = Start(**run.start) if run.start else None
    except (OSError, ValueError) as error:
        raise damaged(error, output_dir / "run.json", "restore it, or give a new directory") from error
    if run.format != FORMAT:
        raise UserError(
            f"{output_dir} is a run of format {run.format}, this program writes format {FORMAT}; give a new directory"
        )
    if run.store != now.store:
        raise UserError(
            f"{name} belongs to a run on other data (hash {run.store[:12]}, "
            f"this one is {now.store[:12]}); resume with the data that it began with, or give a new directory"
        )
    recipe_before = _recipe_of_run(output_dir)
    changed = differences(recipe_before, recipe) if recipe_before else []
    if changed:
        raise UserError(
            f"{name} belongs to a run with another recipe: {'; '.join(changed)}. "
            "Only [execution] and [card] may change on resume; change it back, or give a new directory"
        )
    if start is not None:
        has_checkpoints = bool(paths(output_dir)) if resumes is None else resumes
        _refuse_another_start(output_dir, start, now.start, name, has_checkpoints)


def _refuse_another_start(output_dir: Path, start: Start, now: Start, name: str, resumes: bool) -> None:
    """Refuse another checkpoint than that which the run was started from.

    A run that has checkpoints goes on from its own: it needs the other one no longer, and one of its own names itself.
    One that has none begins anew, and takes from the other one what the flag says.
    """
    same = start.weights == now.weights and (resumes or start.flag == now.flag)
    own = now.checkpoint.startswith("/") and Path(now.checkpoint).resolve().is_relative_to(output_dir.resolve())
    if same or own or (not now.weights and resumes):
        return
    again = f"give {start.flag} {start.checkpoint} again" if start.weights else f"leave {now.flag} out"
    raise UserError(
        f"{name} belongs to a run that was started from {start}, not from {now}; {again}, or give a new directory"
    )
