"""The output directory of prepare: which files it may hold, its lock, and the files of earlier runs."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from bert_horovod.corpus.manifest import SourceEntry, read_manifest, refuse_format
from bert_horovod.corpus.preparing.blocks import PATTERN
from bert_horovod.corpus.preparing.workers import disk_errors, hash_source
from bert_horovod.corpus.reading.finding import STANDARD_INPUT_NAME, writable
from bert_horovod.corpus.reading.sources import SourceFile
from bert_horovod.corpus.reading.vocabulary import vocabulary_text
from bert_horovod.corpus.shard import shard_file
from bert_horovod.corpus.store import DamagedShards, Store, read_sources, verify
from bert_horovod.errors import ReportedError, RunError, UserError
from bert_horovod.storage.places import Place
from bert_horovod.storage.reading import read_json, read_record
from bert_horovod.storage.writing import lock, write_atomically
from bert_horovod.wording import counted, some

_ORIGINS_FILE = "origins.json"  # of a finished store: the state of its files elsewhere, by URL
PARTS = r"parts-of-(\d+)(?:\.joining-(\d+))?"  # directories of --part, see parts.py
_OWN_NAMES = re.compile(
    rf"vocab\.txt|tokenizer\.json|index|manifest\.json|sources\.jsonl|origins\.json|duplicates\.npy|plan\.json|{PATTERN}|\.lock|\.worker-\d+"
    rf"|{PARTS}|{STANDARD_INPUT_NAME}\.(txt|jsonl|xml)|\.(vocab\.txt|tokenizer\.json|manifest\.json|sources\.jsonl|origins\.json|plan\.json|{PATTERN})\.partial"
)


class ManifestHead(TypedDict):
    """What decides a store's content beside its sources, as plan.json and records of parts have it."""

    format: int
    settings: dict[str, Any]
    vocabulary: dict[str, Any]


class _StorePlan(TypedDict):
    head: ManifestHead
    sources: dict[str, Any]  # real path: [bytes, ns of the last change]; only compared


@contextmanager
def own(path: Path) -> Iterator[None]:
    """Make the directory if needed and lock it; if an error comes before any shard is finished, remove our files."""
    was_there = path.is_dir()
    refusal = (
        f"another prepare command writes to --output_dir {path}; wait for it, or end it, or share the work: --part"
    )
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        held = lock(path / ".lock", refusal)
    try:
        yield
    except BaseException:
        finished = sum(1 for _ in path.glob("shard-*"))
        if finished and (path / "plan.json").exists():
            print(
                f"{path}: kept {counted(finished, 'finished shard')}; the same command goes on from there",
                file=sys.stderr,
            )
        elif not finished and not any(path.glob("parts-of-*")):
            clear(path)
            if not was_there:
                path.rmdir()
        raise
    finally:
        os.close(held)


def refuse_foreign(path: Path, vocabulary: list[str], vocabulary_path: str | Path) -> None:
    """Raise UserError if the directory holds files that prepare did not make, or the file of --vocab."""
    if not path.exists():
        return
    if not path.is_dir():
        raise UserError(f"--output_dir {path} is a file; expected a new or empty directory")
    if path.resolve() in Path(vocabulary_path).resolve().parents:
        raise UserError(
            f"the tokenizer {vocabulary_path} lies in --output_dir {path}, which is cleared if it must be made "
            "again; expected it to lie elsewhere"
        )
    names = sorted(path_in_it.name for path_in_it in path.iterdir())
    foreign = [name for name in names if not _OWN_NAMES.fullmatch(name)]
    same = names == ["vocab.txt"] and (path / "vocab.txt").read_bytes() == vocabulary_text(vocabulary).encode()
    if not same and {"vocab.txt", "tokenizer.json"}.issuperset(names):
        foreign = names  # another tokenizer, and perhaps the user's only copy
    if foreign:
        raise UserError(
            f"--output_dir {path} holds other things ({some(foreign)}); expected a new or empty directory, or an "
            "unfinished store"
        )


def begin(path: Path, head: dict[str, Any], sources: list[SourceFile], known: bool) -> set[SourceFile]:
    """Write plan.json, which describes the store to make, and remove the manifest: the store is now unfinished.

    `known`: whether the shards in the directory are known to be made from exactly these sources. Returns the sources
    whose finished parts must be made again, because the sources may have changed. Raises UserError if the directory
    holds an unfinished store with other settings or another vocabulary.
    """
    states = {source: source.state() for source in sources}
    plan = read_plan(path)
    if plan is not None:
        changed = head_differences(plan["head"], head)
        if changed:
            raise UserError(
                f"--output_dir {path} holds an unfinished store that was made otherwise ({'; '.join(changed[:3])}); "
                "expected the same command, which goes on where it stopped; or remove the directory"
            )
        untrusted = {
            source
            for source, value in states.items()
            if plan["sources"].get(_place(source)) != value or value[1] == ""  # a server that tells no more than sizes
        }
    else:
        untrusted = set() if known else set(sources)
    for leftover in (*path.glob(".worker-*"), *path.glob(".*.partial")):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    described = {_place(source): value for source, value in states.items()}
    write_atomically(path / "plan.json", json.dumps({"head": head, "sources": described}) + "\n")
    (path / "manifest.json").unlink(missing_ok=True)
    return untrusted


def end(path: Path, sources: list[SourceFile]) -> None:
    """Remove plan.json beside a manifest: the store is now finished."""
    origins = {str(source.path): source.state() for source in sources if isinstance(source.path, Place)}
    if origins:
        write_atomically(path / _ORIGINS_FILE, json.dumps(origins, indent=1) + "\n")
    else:
        (path / _ORIGINS_FILE).unlink(missing_ok=True)
    (path / "plan.json").unlink()


def clear(path: Path) -> None:
    """Remove everything in a store's directory that prepare made."""
    # The manifest first: if the removal is interrupted, the rest is an unfinished store.
    for entry in sorted(path.iterdir(), key=lambda entry: entry.name != "manifest.json"):
        if _OWN_NAMES.fullmatch(entry.name):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def _place(source: SourceFile) -> str:
    if isinstance(source.path, Place):
        return str(source.path)
    return writable(os.path.realpath(source.path))  # not the name: two directories may hold files of one name


def read_plan(path: Path) -> dict[str, Any] | None:
    """The plan.json of an unfinished store; None if it is missing or damaged."""
    try:
        return read_record(path / "plan.json", _StorePlan, inside=path)
    except (OSError, ValueError):
        return None


def head_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What settings and vocabularies of two heads do not have in common, in words."""
    before, after = ({**head.get("settings", {}), **head.get("vocabulary", {})} for head in (old, new))
    keys = {**after, **before}
    return [f"{key}: {before.get(key)} -> {after.get(key)}" for key in keys if before.get(key) != after.get(key)]


def finished_store(path: Path, head: dict[str, Any], sources: list[SourceFile]) -> tuple[Store | None, bool]:
    """Open the finished store at `path`; raises UserError if it was made with other settings or from other sources.

    Returns the store, None if it is unfinished or damaged, and whether a finished one was made from just these sources.
    """
    if not (path / "manifest.json").exists():
        return None, False
    try:
        manifest = read_json(path / "manifest.json")
    except (OSError, ValueError):
        return None, False
    refuse_format(path, manifest)
    try:
        changed = head_differences(manifest, head) or _changed_sources(
            read_sources(path, manifest), sources, _origins(path)
        )
    except RunError:  # a source elsewhere cannot be reached: this store may be whole
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ReportedError):
        return None, False
    _refuse_changed(path, changed)
    try:
        return verify(path), True
    except ReportedError as error:
        print(f"{error}. Making anew what is damaged", file=sys.stderr)
        if isinstance(error, DamagedShards):  # the manifest alone tells of damage in a shard's own record
            for name in error.names:
                shard_file(path, name).unlink(missing_ok=True)
        return None, True


def require_same(path: Path, head: dict[str, Any]) -> None:
    """Raise UserError if the finished store at `path` was made with other settings; its sources are not compared."""
    _refuse_changed(path, head_differences(read_manifest(path), head))


def _refuse_changed(path: Path, changed: list[str]) -> None:
    if changed:
        raise UserError(
            f"--output_dir {path} holds a finished store that was made otherwise "
            f"({'; '.join(changed[:3])}); expected the same command, or another --output_dir"
        )


def _origins(path: Path) -> dict[str, Any]:
    try:
        return read_record(path / _ORIGINS_FILE, dict[str, list[Any]])
    except (OSError, ValueError):
        return {}


def _changed_sources(old: list[SourceEntry], sources: list[SourceFile], origins: dict[str, Any]) -> list[str]:
    """What differs. Files are read, but for those elsewhere whose server says that they are as in `origins`."""
    if [before["name"] for before in old] != [source.name for source in sources]:
        return [f"sources: {counted(len(old), 'file')} -> {counted(len(sources), 'file')}, or other names or order"]
    changed = [source.name for before, source in zip(old, sources, strict=True) if before["bytes"] != source.bytes]
    for before, source in zip(old, sources, strict=True):
        if changed:
            break
        if source.tag and origins.get(str(source.path)) == source.state():
            continue
        if hash_source(source) != before["sha256"]:
            changed.append(source.name)
    return [f"source {name} has changed" for name in changed]
