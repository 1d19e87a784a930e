"""Parts of a store's work: each call of `prepare --part 3/16` makes the shards of one, and the last one joins them.

    store/parts-of-16/part-3/          an unfinished store with the shards of this part
    store/parts-of-16/part-3.json      is written last: the part is complete
    store/parts-of-16.joining-7/       the whole directory after part 7 has claimed, by this name, to join

The plan alone says what belongs to a part, so that calls need not know of each other.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from bert_horovod.corpus.preparing import destination
from bert_horovod.corpus.preparing.blocks import (
    BlockFile,
    blocks_by_task,
    find_blocks,
    is_of,
    missing_blocks,
    read_files,
)
from bert_horovod.corpus.preparing.making_shards import Made
from bert_horovod.corpus.preparing.planning import Part, Plan, part_plan
from bert_horovod.corpus.reading.sources import SourceFile
from bert_horovod.corpus.shard import shard_file
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.storage.reading import read_record
from bert_horovod.storage.writing import sync, write_atomically
from bert_horovod.wording import counted, some

_SHOWN = 10  # parts in a message


class _Record(TypedDict):
    head: destination.ManifestHead
    hashes: dict[int, str]  # SHA-256 of sources by their number
    sources: dict[int, list[Any]]  # the state of sources that parts have in common, by their number


def part_head(head: dict[str, Any], part: Part, sources: list[SourceFile]) -> dict[str, Any]:
    """What must be equal in two calls for a part: the store's head, the part and the whole input."""
    names = json.dumps([[source.name, source.bytes] for source in sources])
    digest = hashlib.sha256(names.encode()).hexdigest()[:12]
    described = f"{counted(len(sources), 'file')} of {sum(source.bytes for source in sources):,} bytes ({digest})"
    return {**head, "settings": {**head["settings"], "part": str(part), "input": described}}


def part_directory(store: Path, part: Part) -> Path:
    """The directory of a part's shards."""
    return store / f"parts-of-{part.of}" / f"part-{part.number}"


def take_hashes(store: Path, part: Part, sources: list[SourceFile]) -> dict[SourceFile, str]:
    """The hashes of an earlier call's record of a part, which is removed, because the part is being made."""
    file = part_directory(store, part).with_suffix(".json")
    record = _read_record(file)
    file.unlink(missing_ok=True)
    return {} if record is None else _of_sources(record["hashes"], sources)


def write_record(
    store: Path, part: Part, head: dict[str, Any], sources: list[SourceFile], mine: Plan, made: Made
) -> None:
    """Say that a part is complete."""
    numbers = {source: number for number, source in enumerate(sources)}
    common = {*mine.to_hash, *(piece.source for task in mine.tasks for piece in task.pieces if not piece.is_whole)}
    record = {
        "head": head,
        "hashes": {numbers[source]: digest for source, digest in made.hashes.items()},
        "sources": {numbers[source]: source.state() for source in common},
    }
    write_atomically(part_directory(store, part).with_suffix(".json"), json.dumps(record) + "\n")


def unfinished(store: Path, of: int) -> list[int]:
    """The parts that have no record yet."""
    directory = store / f"parts-of-{of}"
    # One listing: on NFS, whose caches are old, this host has just changed the directory and so reads it anew.
    names = set(os.listdir(directory)) if directory.is_dir() else set()
    return [number for number in range(1, of + 1) if f"part-{number}.json" not in names]


def refuse_others(store: Path, part: Part | None) -> None:
    """Raise UserError if a directory holds parts, of another number than those of `part` (None: any)."""
    for path, of, _ in _directories(store):
        if part is None or of != part.of:
            raise UserError(
                f"--output_dir {store} holds {path.name}, made with --part; expected --part K/{of}, or --join, which "
                f"makes the store of them; or remove {path}"
            )


def refuse_unlike(store: Path, part: Part, head: dict[str, Any]) -> None:
    """Raise UserError if a part beside this part, finished or begun, is of another input or other settings.

    `head`: the part's, as part_head makes it.
    """
    for path, of, _ in _directories(store):
        heads = {other.number: (file, record["head"]) for other, (file, record) in _records([path]).items()}
        for file in path.glob("part-*/plan.json"):
            if plan := destination.read_plan(file.parent):
                heads.setdefault(int(plan["head"]["settings"]["part"].partition("/")[0]), (file, plan["head"]))
        for number, (file, other) in sorted(heads.items()):
            expected = {**head, "settings": {**head["settings"], "part": str(Part(number, of))}}
            if number != part.number and (changed := destination.head_differences(other, expected)):
                raise UserError(
                    f"--part {part} would not fit to part {number}/{of} ({'; '.join(changed[:3])}; {_lasting(file)}); "
                    f"expected the same command but for --part, or another --output_dir; or, if part {number}/{of} is "
                    f"the wrong one, remove {_lasting(path)}/part-{number} and part-{number}.json"
                )


def _lasting(path: Path) -> Path:
    """The name that a path in a directory of parts has after a failed join."""
    return Path(re.sub(r"(/parts-of-\d+)\.joining-\d+", r"\1", str(path)))


def claimant(store: Path) -> Part | None:
    """The part that joins, or was joining when it was killed; number 0: a call with --join."""
    return next((Part(by, of) for _, of, by in _directories(store) if by is not None), None)


def claim_joining(store: Path, part: Part) -> bool:
    """Try to become the one that joins."""
    try:
        os.rename(store / f"parts-of-{part.of}", store / f"parts-of-{part.of}.joining-{part.number}")
    except FileNotFoundError:
        return False
    return True


def remove_parts(store: Path) -> None:
    """Remove the directories of parts, because the store is finished."""
    for path, _, _ in _directories(store):
        shutil.rmtree(path)


@dataclass
class Gathered:
    """Undamaged files of parts: (where it lies, the file); and the hashes of their records."""

    files: list[tuple[Path, BlockFile]] = field(default_factory=list)
    hashes: dict[SourceFile, str] = field(default_factory=dict)


@contextmanager
def claimed(store: Path, told: list[Path]) -> Iterator[list[Path]]:
    """Yield the directories of parts: the store's, which are claimed until an error comes, and those told.

    Raises UserError if there is none, or one that was told has no record of a part.
    """
    for _, of, by in _directories(store):
        if by is None:
            claim_joining(store, Part(0, of))
    own = _directories(store)
    directories = [path for path, _, _ in own]
    for directory in told:
        inside = [*directory.glob("parts-of-*"), directory]
        if not (found := [path for path in inside if any(path.glob("part-*.json"))]):
            raise UserError(
                f"--join {directory} holds no finished part; expected an --output_dir of prepare --part K/N, or its "
                "parts-of-N with part-K and part-K.json"
            )
        directories += found
    if not directories:
        raise UserError(
            f"--output_dir {store} holds no parts to join; expected calls with --part 1/N to N/N first, or the "
            "directories that hold parts: --join DIR DIR"
        )
    try:
        yield directories
    except BaseException:
        for path, of, _ in own:
            with suppress(OSError):
                os.rename(path, store / f"parts-of-{of}")
        raise


def join_parts(
    store: Path,
    directories: list[Path],
    plan: Plan,
    head: dict[str, Any],
    sources: list[SourceFile],
    command: str,
) -> Gathered:
    """Find and check the parts of a plan in these directories and in the store itself, where a join was interrupted.

    Raises UserError if parts were made otherwise, DamagedData that names the ones that are missing or damaged, with
    the command that makes them: `command` and --part.
    """
    records = _records(directories)
    of = {part.of for part in records}
    if len(of) != 1:
        numbers = f"parts of {' and of '.join(map(str, sorted(of)))}" if of else "damaged records"
        raise UserError(
            f"{numbers} in {', '.join(str(_lasting(path)) for path in directories)}; expected parts of one number"
        )
    parts = [Part(number + 1, of) for of in of for number in range(of)]
    expected = part_head(head, parts[0], sources)
    for part, (file, record) in records.items():
        expected["settings"]["part"] = str(part)
        if changed := destination.head_differences(record["head"], expected):
            raise UserError(
                f"{_lasting(file)}: part {part} was made otherwise ({'; '.join(changed[:3])}); expected the same "
                "command but for --part and --join"
            )
    _warn_of_changes(records, sources)
    gathered = Gathered()
    top = find_blocks(store, plan.tasks)
    gathered.files = [(shard_file(store, found.name), found) for found in top]
    folders = {part: file.with_suffix("") for part, (file, _) in records.items()}
    paths = {part: sorted(folder.glob("shard-*")) for part, folder in folders.items()}
    found_at = read_files([path for of_part in paths.values() for path in of_part])
    lacking = {}
    for part, mine in zip(parts, part_plan(plan, len(parts)), strict=True):
        of_key = {task.key: task for task in mine.tasks}
        files = [(path, found) for path in paths.get(part, []) if (found := found_at[path]) is not None]
        files = [
            (path, found)
            for path, found in files
            if all(is_of(block, of_key.get(block.task)) for block in found.blocks)
        ]
        blocks = blocks_by_task([*(found for _, found in files), *top])
        hashes = _of_sources(records[part][1]["hashes"], sources) if part in records else {}
        if part not in records:
            lacking[part] = "is not there"
        elif any(missing_blocks(blocks.get(key, [])) for key in of_key) or not hashes.keys() >= set(mine.to_hash):
            lacking[part] = f"in {_lasting(folders[part])} is damaged"
        gathered.files += files
        gathered.hashes |= hashes
    for part in lacking:
        for directory in directories:
            if directory.is_relative_to(store):  # so that its --part makes it again
                (directory / f"part-{part.number}.json").unlink(missing_ok=True)
    if lacking:
        raise DamagedData(
            f"{store}: {len(lacking)} of {counted(len(parts), 'part')} cannot be joined: "
            + some([f"{part} {reason}" for part, reason in lacking.items()], _SHOWN)
            + "; make them with:\n"
            + "".join(f"    {command} --part {part}\n" for part in list(lacking)[:_SHOWN])
            + "and then run this command again"
        )
    return gathered


def take_files(store: Path, gathered: Gathered) -> list[BlockFile]:
    """Bring the files that have text into the store: renamed from within it, linked or copied from elsewhere."""
    for path, found in gathered.files:
        target = shard_file(store, found.name)
        if not found.entry["tokens"] or path == target or target.exists():
            continue
        if path.is_relative_to(store):
            os.rename(path, target)
            continue
        temporary = target.with_name(f".{target.name}.partial")
        temporary.unlink(missing_ok=True)
        try:
            os.link(path, temporary)
        except OSError:  # on another file system, or on one without hard links
            shutil.copyfile(path, temporary)
            sync(temporary)
        os.rename(temporary, target)
    sync(store)
    return list({found.name: found for _, found in gathered.files}.values())


def _directories(store: Path) -> list[tuple[Path, int, int | None]]:
    """Directories of parts in a store: the path, of how many, and the number of the part that joins them, if any."""
    matches = [(path, re.fullmatch(destination.PARTS, path.name)) for path in sorted(store.glob("parts-of-*"))]
    return [(path, int(match[1]), int(match[2]) if match[2] else None) for path, match in matches if match]


def _records(directories: Iterable[Path]) -> dict[Part, tuple[Path, dict[str, Any]]]:
    """The undamaged records in these directories; of a part in several, the first."""
    records: dict[Part, tuple[Path, dict[str, Any]]] = {}
    for file in (file for directory in directories for file in sorted(directory.glob("part-*.json"))):
        if record := _read_record(file):
            number, of = map(int, record["head"]["settings"]["part"].split("/"))
            records.setdefault(Part(number, of), (file, record))
    return records


def _of_sources(by_number: dict[Any, Any], sources: list[SourceFile]) -> dict[SourceFile, Any]:
    return {source: by_number[str(i)] for i, source in enumerate(sources) if str(i) in by_number}


def _warn_of_changes(records: dict[Part, tuple[Path, dict[str, Any]]], sources: list[SourceFile]) -> None:
    """Say which file may have been another one for one part than for another: a copy has another time of change."""
    first: dict[SourceFile, tuple[Part, list[Any]]] = {}
    for part, (_, record) in records.items():
        for source, state in _of_sources(record["sources"], sources).items():
            other, before = first.setdefault(source, (part, state))
            if before != state:
                print(
                    f"warning: {source.name} had another time of change when part {part} read it than "
                    f"for part {other}: if that was no copy of the same file, make the parts anew",
                    file=sys.stderr,
                )
                return


def _read_record(file: Path) -> dict[str, Any] | None:
    """None if it is missing or damaged."""
    try:
        record: dict[str, Any] = read_record(file, _Record)
        number = file.stem.removeprefix("part-")
        if not re.fullmatch(rf"{number}/[1-9]\d{{0,8}}", str(record["head"]["settings"].get("part"))):
            raise ValueError("it is of another part")
        return record
    except (OSError, ValueError):
        return None
