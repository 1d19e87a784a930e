"""Reads the files of a row index and checks them; index.py describes the arrays.

Small files are compared with their SHA-256 at each start. Tables, and files with an element for each window, grow with
the text; they are compared with their SHA-256 or CRC-32s where size, inode or time of change is not what
`verified.jsonl` remembers: after a copy to another disk, or if somebody wrote to them.
"""

import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.corpus.preparing.progress import ReadingProgress
from bert_horovod.errors import ReportedError, damaged
from bert_horovod.storage.reading import Verified, check_type, hash_file, identity, load_array, read_json

TABLES = ("windows_by_class", "windows_by_shard", "cell_start", "cell_place", "cell_shard")  # for each class and shard
LARGE = {"start": np.uint32, "first": np.uint16, "by_length": np.uint32}  # an element for each window
RECORD = "verified.jsonl"


def read_description(path: Path) -> dict[str, Any]:
    """Read index.json: `refusals` (why a split has no rows) and `sha256` of small files; raises ReportedError."""
    file = path / "index.json"
    try:
        check_type(description := read_json(file, inside=path), dict[str, dict[str, str]], "it")
        if description.keys() != {"refusals", "sha256"}:
            raise ValueError("expected refusals and sha256")
    except (OSError, ValueError) as error:
        raise _damage(error, file, path) from error
    return description


def read_split(
    path: Path, split: str, sequence_length: int, shards: int, check: dict[str, str] | None
) -> dict[str, Any]:
    """Map the arrays of a split by name.

    Args:
        path: the index.
        split: "train" or "held_out".
        sequence_length: positions per row, L.
        shards: of the store.
        check: SHA-256 of small files; None: another process of this host checks.

    Raises ReportedError.
    """
    cells = shards * (sequence_length + 1) + 1
    arrays: dict[str, np.ndarray] = {}
    file = path / split
    record = Verified(path / RECORD)
    known = record.names() if check is not None else {}
    try:
        for name, dtype, shape in (
            *((name, dtype, (None,)) for name, dtype in LARGE.items()),
            ("classes", np.int64, (5, sequence_length + 1)),
            ("template_rows", np.int64, (None,)),
            ("template_lengths", np.uint16, (None, None)),
            ("windows_by_class", np.int64, (cells,)),
            ("windows_by_shard", np.int64, (cells,)),
            ("cell_start", np.int64, (None,)),
            ("cell_place", np.int64, (None,)),
            ("cell_shard", np.uint32, (None,)),
            ("crcs", np.uint32, (shards, len(LARGE))),
        ):
            file = path / split / f"{name}.npy"
            arrays[name] = load_array(file, dtype, shape, inside=path)
            seen, named = identity([file]), f"{split}/{name}.npy"
            if check is None or name in LARGE or (name in TABLES and known.get(named) == seen):
                continue
            if check.get(named) != hash_file(file):
                raise ValueError("its SHA-256 is another")
            if name in TABLES:
                record.remember(named, seen)
        for name in LARGE:
            file = path / split / f"{name}.npy"
            if len(arrays[name]) != arrays["windows_by_shard"][-1]:
                raise ValueError(f"it has {len(arrays[name]):,} values, expected {arrays['windows_by_shard'][-1]:,}")
        if check is not None:
            _check_large(path, split, arrays, sequence_length + 1, record, known)
    except (OSError, ValueError) as error:
        raise _damage(error, file, path) from error
    return arrays


def _check_large(
    path: Path, split: str, arrays: dict[str, np.ndarray], classes: int, record: Verified, known: dict[str, list[int]]
) -> None:
    files = {f"{split}/{name}.npy": path / split / f"{name}.npy" for name in LARGE}
    seen = {name: identity([file]) for name, file in files.items()}
    if all(known.get(name) == seen[name] for name in files):
        return
    crcs, bounds = arrays["crcs"], np.asarray(arrays["windows_by_shard"][::classes])
    jobs = [(i, name, shard) for i, name in enumerate(LARGE) for shard in range(len(crcs))]

    def check(job: tuple[int, str, int]) -> None:
        i, name, shard = job
        values = arrays[name][bounds[shard] : bounds[shard + 1]]
        if zlib.crc32(values.data) != crcs[shard, i]:
            raise _damage(ValueError("its CRC is another"), files[f"{split}/{name}.npy"], path)
        progress.add(values.nbytes)

    total = sum(arrays[name].nbytes for name in LARGE)
    # The CRC releases the GIL.
    with ReadingProgress("checking the row index", total) as progress, ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(check, jobs))
    for name, numbers in seen.items():
        record.remember(name, numbers)


def _damage(error: Exception, file: Path, path: Path) -> ReportedError:
    return damaged(error, file, f"remove {path} and run again: it is made anew")
