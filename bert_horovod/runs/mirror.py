"""A run's checkpoints elsewhere (execution.mirror): their layout, which of them are complete, and how they are fetched.

    MIRROR/owners/00000002.json              the run, and the process that writes here now
    MIRROR/checkpoints/step-00001000/        the files of a checkpoint
                       run/metrics.jsonl     ... and those of output_dir that a start needs beside it
                       partial.json          written first, removed last: what is here without complete.json may go
                       complete.json         written last: each file's bytes and SHA-256

runs/mirroring.py writes it. MIRROR is a URL, or a directory. A checkpoint with neither of the two is damaged, and so is
one whose complete.json is: no run removes it.
"""

import atexit
import json
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from bert_horovod.errors import DamagedData, UserError, file_error
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.checkpoint import BEST, OTHER_FILE, Best, path_of, paths, step_of, whole_checkpoints
from bert_horovod.runs.directory import RunRecord, refuse_another_run
from bert_horovod.runs.status_files import COMMAND, NOTES, SESSIONS, STATUS
from bert_horovod.runs.trackers import IDS
from bert_horovod.storage import remote
from bert_horovod.storage.places import Place, is_url, parse_place
from bert_horovod.storage.reading import Seconds, check_type, hash_file, parse_json, read_json, read_record, shown
from bert_horovod.storage.writing import sync
from bert_horovod.wording import megabytes

COMPLETE, PARTIAL, OWNERS, CHECKPOINTS, RUN = "complete.json", "partial.json", "owners", "checkpoints", "run"
LAG = "mirror.json"  # in output_dir: what the mirror has and lacks
_NEEDED = ("run.json", "metrics.jsonl", "autotuning.json", BEST, IDS, SESSIONS)  # by a start from the checkpoint
RUN_FILES = (*_NEEDED, "recipe.toml", STATUS, COMMAND, NOTES)
_OWNER = re.compile(r"\d{8,18}\.json")


class _FileRecord(TypedDict):
    bytes: int
    sha256: str


class _Record(TypedDict):  # complete.json
    step: int
    time: Seconds
    files: dict[str, _FileRecord]


class _Owner(TypedDict):
    writer: str
    host: str
    time: Seconds
    run: RunRecord
    recipe: str


class _Lag(TypedDict):
    url: str
    copied: int | None
    waiting: int | None
    waiting_since: Seconds
    error: str


class File(NamedTuple):
    """A file of a copy."""

    bytes: int
    sha256: str


class Copy(NamedTuple):
    """A complete checkpoint of a mirror."""

    place: Place
    step: int
    time: float  # at which it was saved, in seconds since the epoch
    files: dict[str, File]


def is_mirror(path: Path) -> bool:
    """Whether a path is a URL, or a directory that a run mirrors its checkpoints to."""
    return is_url(path) or (path / OWNERS).is_dir()


def mirrored_files(mirror: Place) -> dict[str, dict[str, int]]:
    """The files of a mirror's checkpoints, complete or not: by the checkpoint's name, each path's bytes."""
    found: dict[str, dict[str, int]] = {}
    for entry in remote.find(mirror / CHECKPOINTS)[0]:
        checkpoint, _, name = str(entry.place).rpartition(f"/{CHECKPOINTS}/")[2].partition("/")
        if step_of(checkpoint) is not None:
            found.setdefault(checkpoint, {})[name] = entry.bytes
    return found


def copies(mirror: Place) -> tuple[list[Copy], list[str]]:
    """The complete checkpoints of a mirror, oldest first, and the names of the damaged ones, which it tells on stderr.

    Of the complete ones only the records are read, so that their files have the right sizes, and perhaps other bytes.
    """
    complete: list[Copy] = []
    damaged: list[str] = []
    for name, files in mirrored_files(mirror).items():
        place = mirror / CHECKPOINTS / name
        try:
            if COMPLETE in files:
                copy = _read_copy(place)
                if bad := next((file for file in copy.files if files.get(file) != copy.files[file].bytes), None):
                    raise DamagedData(f"{place / bad} is missing, or is not as long as {COMPLETE} says")
                complete.append(copy)
            elif PARTIAL not in files:
                raise DamagedData(f"{place / COMPLETE} is missing")
        except remote.Missing:  # its run has removed it in this moment
            continue
        except DamagedData as error:
            damaged.append(name)
            _say(f"{error}; leaving this checkpoint out")
    return sorted(complete, key=lambda copy: copy.step), damaged


def _read_copy(place: Place) -> Copy:
    try:
        record = parse_json(remote.read(place / COMPLETE))
        check_type(record, _Record, "it")
        files = {name: File(**file) for name, file in record["files"].items()}
        if bad := next((name for name in files if not OTHER_FILE.fullmatch(name)), None):
            raise ValueError(f"no file of a checkpoint has the name {shown(bad)}")
        if step_of(place.name) != record["step"]:
            raise ValueError(f"it is of step {shown(record['step'])}")
        return Copy(place, record["step"], record["time"], files)
    except ValueError as error:
        raise DamagedData(f"{place / COMPLETE} is damaged: {shown(str(error))}") from error


def fetch_checkpoint(copy: Copy, directory: Path, *, run_alone: bool = False) -> None:
    """Fetch a checkpoint (with `run_alone`: its run's files) into a new directory, and check sizes and hashes.

    Raises DamagedData if a file is missing, or has another content than the record says: the directory is removed then;
    UserError or RunError if the server or the disk fails.
    """
    shutil.rmtree(directory, ignore_errors=True)  # what a killed start has left
    try:
        for name, file in copy.files.items():
            if run_alone and not name.startswith(f"{RUN}/"):
                continue
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                remote.fetch(copy.place / name, path)
            except remote.Missing as error:
                raise DamagedData(f"{copy.place / name} is missing; its checkpoint is damaged") from error
            if (path.stat().st_size, hash_file(path)) != file:
                raise DamagedData(f"{copy.place / name} is damaged: its content is not what {COMPLETE} says")
            sync(path)
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(error, OSError):
            raise file_error(error, f"cannot write to {directory}: {error.strerror or error}") from error
        raise


def owner(mirror: Place) -> tuple[int, dict[str, Any]] | None:
    """The number and the content of the newest owner's object; None: nobody has written to the mirror.

    If there is none beside checkpoints, the number is 0, and the newest complete checkpoint tells the run. Raises
    UserError if other things are there, DamagedData if the object is damaged.
    """
    found = owners(mirror)
    if not found:
        return _of_copies(mirror)
    place = found[-1]
    try:
        content = parse_json(remote.read(place))
        check_type(content, _Owner, "it")
        return int(place.name.removesuffix(".json")), content
    except remote.Missing:  # a later start has taken the mirror in this moment
        return owner(mirror)
    except ValueError as error:
        raise DamagedData(
            f"{place} is damaged: {shown(str(error))}; expected the run that writes here. If none does now, remove "
            "this file and run the same command again: the checkpoints there tell whose they are"
        ) from error


def owners(mirror: Place) -> list[Place]:
    """The owners' objects of a mirror, oldest first."""
    return [entry.place for entry in remote.find(mirror / OWNERS)[0] if _OWNER.fullmatch(entry.place.name)]


def _of_copies(mirror: Place) -> tuple[int, dict[str, Any]] | None:
    others = [name for name in remote.names(mirror) if name != OWNERS]
    complete = copies(mirror)[0] if others == [CHECKPOINTS] else []
    if others and not complete:
        raise UserError(
            f"execution.mirror = {mirror} holds other things ({', '.join(others)[:200]}); expected an empty place, "
            "or the mirror of this run"
        )
    if not complete:
        return None
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / RUN
        fetch_checkpoint(complete[-1], directory, run_alone=True)
        try:
            recipe = (directory / RUN / "recipe.toml").read_text(encoding="utf-8")
            run = read_json(directory / RUN / "run.json")
            check_type(run, RunRecord, "it")
            return 0, {"run": run, "recipe": recipe}
        except (OSError, ValueError) as error:
            raise DamagedData(f"{complete[-1].place} does not tell its run: {shown(str(error))}") from error


def bring_newest(output_dir: Path, url: str, recipe: Recipe, run: RunRecord) -> Path | None:
    """Fetch the newest complete checkpoint of a run's mirror, and what belongs to it, if output_dir has no newer one.

    The caller holds the lock of output_dir. Returns the checkpoint, or None. Damaged ones are named on stderr.
    Raises UserError if the mirror is that of another run, is no mirror, or lies in output_dir, DamagedData if all its
    checkpoints are damaged, and output_dir has none, RunError if the server or the disk fails.
    """
    mirror = parse_place(url, "execution.mirror =")
    if mirror.scheme == "file" and Path(mirror.key).resolve().is_relative_to(output_dir.resolve()):
        raise UserError(
            f"execution.mirror = {url} lies in --output_dir {output_dir}; expected another disk or a bucket"
        )
    found = owner(mirror)
    if found is None:
        return None
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "run.json").write_text(json.dumps(found[1]["run"]), encoding="utf-8")
        (directory / "recipe.toml").write_text(found[1]["recipe"], encoding="utf-8")
        complete, damaged = copies(mirror)
        resumes = bool(complete or damaged or paths(output_dir))
        refuse_another_run(directory, recipe, run, f"execution.mirror = {url}", resumes)
    local = next(whole_checkpoints(output_dir), None)
    newer = [copy for copy in complete if local is None or copy.step > step_of(local.name)]
    for copy in reversed(newer):
        try:
            return _bring(copy, complete, output_dir)
        except DamagedData as error:
            _say(f"{error}; taking the checkpoint before")
    if local is None and (newer or damaged):
        raise DamagedData(
            f"all checkpoints of execution.mirror = {mirror} are damaged; to start from the beginning, move its "
            f"{CHECKPOINTS}/ to another place"
        )
    return None


def _bring(copy: Copy, complete: list[Copy], output_dir: Path) -> Path:
    begun, final = time.monotonic(), path_of(output_dir, copy.step)
    temporary = final.with_name(f".{final.name}.partial")
    fetch_checkpoint(copy, temporary)
    for name in _NEEDED:
        if (temporary / RUN / name).is_file():
            os.replace(temporary / RUN / name, output_dir / name)
    _put(temporary, final)
    _say(
        f"fetched {copy.place}, which is newer than what {output_dir} has: {len(copy.files)} files, "
        f"{megabytes(sum(file.bytes for file in copy.files.values()))} in {time.monotonic() - begun:.1f} s, all as "
        "their hashes say"
    )
    try:
        best = read_record(output_dir / BEST, Best).step
    except (OSError, ValueError):
        best = None
    for other in complete:
        if other.step == best and not (of_best := path_of(output_dir, best)).exists():
            try:
                fetch_checkpoint(other, of_best.with_name(f".{of_best.name}.partial"))
            except DamagedData as error:
                _say(f"warning: {error}; the run goes on without its best checkpoint until a better one")
                break
            _put(of_best.with_name(f".{of_best.name}.partial"), of_best)
    return final


def _put(temporary: Path, final: Path) -> None:
    """Give a fetched checkpoint its name; a damaged one of that name goes."""
    shutil.rmtree(temporary / RUN, ignore_errors=True)
    shutil.rmtree(final, ignore_errors=True)
    os.rename(temporary, final)
    sync(final.parent)


def fetched(place: Place, flag: str, *, run_alone: bool = False) -> Path:
    """A run's directory on this machine, for a while, with the newest complete checkpoint of a mirror.

    If the place is one of a mirror's checkpoints, this checkpoint's directory is returned. With `run_alone` the run's
    files are fetched without the checkpoint. A damaged one is named on stderr, and the one before is taken. Raises
    UserError if there is no complete checkpoint, DamagedData if it, or all are damaged, RunError if the server or the
    disk fails.
    """
    of_one = step_of(place.name) is not None
    while True:
        if of_one:
            complete, damaged = [_read_copy(place)] if remote.find(place / COMPLETE)[0] else [], []
        else:
            complete, damaged = copies(place)
        if damaged and not complete:
            raise DamagedData(f"{flag} {place}: all checkpoints are damaged ({', '.join(damaged)[:200]})")
        if not complete:
            begun = (
                [place.name] if of_one and remote.find(place)[0] else [] if of_one else sorted(mirrored_files(place))
            )
            half = f"; half-written: {', '.join(begun)[:200]}" if begun else ""
            raise UserError(
                f"{flag} {place}: there is no complete checkpoint{half}; expected the execution.mirror of a run"
            )
        root = Path(tempfile.mkdtemp(prefix="bert_horovod_mirror_"))
        atexit.register(shutil.rmtree, root, ignore_errors=True)
        run = root / (place.name or "mirror")
        copy = _fetch_newest(complete, run, run_alone)
        if copy is None:
            continue
        final = path_of(run, copy.step)
        final.mkdir(parents=True, exist_ok=True)
        for file in (final / RUN).iterdir():
            os.replace(file, run / file.name)
        (final / RUN).rmdir()
        os.utime(final, (copy.time, copy.time))
        if not run_alone:
            _say(f"fetched {copy.place}, {megabytes(sum(file.bytes for file in copy.files.values()))}")
        return final if of_one else run


def _fetch_newest(complete: list[Copy], run: Path, run_alone: bool) -> Copy | None:
    """Fetch the newest whole one of some checkpoints; None: its run has removed it meanwhile."""
    for copy in reversed(complete):
        try:
            fetch_checkpoint(copy, path_of(run, copy.step), run_alone=run_alone)
        except DamagedData as error:
            if not remote.find(copy.place / COMPLETE)[0]:
                return None
            if copy is complete[0]:
                raise
            _say(f"{error}; taking the checkpoint before")
        else:
            return copy
    return None


def lag_of(output_dir: Path) -> str | None:
    """How far a run's mirror is behind, for people; None: the run has none."""
    try:
        lag = read_record(output_dir / LAG, _Lag, inside=output_dir)
        has = "nothing yet" if lag["copied"] is None else f"step {lag['copied']}"
        if lag["waiting"] is None:
            return f"{lag['url']} has {has}, the newest"
        since_s = max(0.0, time.time() - lag["waiting_since"])
        behind = f"{lag['waiting'] - (lag['copied'] or 0)} steps behind, for {since_s / 60:.1f} min"
        return f"{lag['url']} has {has}; {behind}" + (f": {lag['error']}" if lag["error"] else "")
    except (OSError, ValueError):
        return None


def _say(text: str) -> None:
    print(f"bert-horovod: {text}", file=sys.stderr)
