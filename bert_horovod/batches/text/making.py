"""Makes a row index, side by side: processes and hosts cut shards into pieces, then put the pieces into their places.

Who takes part is a Crew (see crews.py). Its first member chooses the share of short windows, sums up the counts of all
pieces, and renames the finished directory into place; in between all members wait for each other. A piece is a shard's
windows of both splits; it is written once, and copied once to where it belongs, both from the beginning to the end.
"""

import contextlib
import functools
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bert_horovod.batches.packing import pack, single
from bert_horovod.batches.text.crews import Crew
from bert_horovod.batches.text.cutting import SPLITS, Classes, cut_shard, merged, short_shares
from bert_horovod.batches.text.index_check import CRC_BYTES, LARGE, RECORD, TABLES, refusal
from bert_horovod.corpus.shard import page_crcs
from bert_horovod.corpus.store import Store, open_store, write_array
from bert_horovod.errors import ReportedError, RunError, UserError, file_error
from bert_horovod.runtime.reading_progress import ReadingProgress
from bert_horovod.storage.reading import Verified, hash_file, identity, load_array, read_json
from bert_horovod.storage.writing import lock, sync, write_atomically

_CELLS_AT_ONCE = 1 << 22
_BLOCK = 1 << 22
_PATIENCE_S = 60


@dataclass(frozen=True)
class RowPlan:
    """What is made, and where; the same for all members."""

    store: Path
    store_hash: str
    path: Path  # of the index
    directory: Path  # the same, while it is being made
    sequence_length: int
    pair: str
    packing: bool
    shares: tuple[float, float]  # of windows drawn short, by split


def make_index(
    store: Store, path: Path, sequence_length: int, pair: str, packing: bool, crew: Crew, missing: bool
) -> None:
    """Make the index of both splits at `path`; all members call this together.

    `missing`: whether it is to be made; else this member's crew only waits with the others. Raises RunError if it
    cannot be written (UserError if the path is at fault), or another member could not do its work.
    """
    first = crew.number == 0
    plan: RowPlan | None = None
    directory = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")

    def begin() -> Any:
        if not first or not missing:
            return None
        directory.mkdir(parents=True)
        locks.callback(os.close, lock(directory / ".lock", f"{directory} is another's"))
        _remove_dead(path)
        shares = short_shares(store, sequence_length, pair, crew.threads) if packing else (0.0, 0.0)
        return [directory.name, *shares]

    with contextlib.ExitStack() as locks:
        try:
            begun = _together(crew, path, begin)[0]
            if begun:
                name, *shares = begun
                work = path.with_name(name)
                plan = RowPlan(store.path, store.hash, path, work, sequence_length, pair, packing, tuple(shares))
            for stage in (_cut, _sum_up, _copy, _check_sums, _finish):
                _together(crew, path, functools.partial(stage, plan, crew) if plan else lambda: None)
            _wait_for(path)
        finally:
            if first:
                shutil.rmtree(directory, ignore_errors=True)


def _together(crew: Crew, path: Path, do: Callable[[], Any]) -> list[Any]:
    """Do this member's part and wait for the others; raises if one of them failed."""
    error: Exception | None = None
    value = None
    try:
        value = do()
    except OSError as failure:
        error = file_error(
            failure,
            f"cannot write the row index to {path.parent}: {failure.strerror or failure}; "
            "name a directory that can be written, local to each host, with --index_dir (after prepare: of pretrain)",
        )
    except ReportedError as failure:
        error = failure
    answers = crew.exchange([value, None if error is None else str(error)])
    if error is not None:
        raise error
    failures = [failure for _, failure in answers if failure is not None]
    if failures:
        raise RunError(f"the row index could not be made, because of another rank: {failures[0]}")
    return [value for value, _ in answers]


def _remove_dead(path: Path) -> None:
    """Remove what makers that were killed have left."""
    for left in path.parent.glob(f".{path.name}.*.partial"):
        with contextlib.suppress(OSError, UserError):
            os.close(lock(left / ".lock", "alive"))
            shutil.rmtree(left, ignore_errors=True)


def _mine(plan: RowPlan, crew: Crew) -> range:
    return range(crew.number, len(_opened(plan.store, plan.store_hash).manifest["shards"]), crew.size)


def _cut(plan: RowPlan, crew: Crew) -> None:
    entries = _opened(plan.store, plan.store_hash).manifest["shards"]
    mine = _mine(plan, crew)
    total = sum(entries[number]["bytes"] for number in mine) * crew.size
    with ReadingProgress("row index", total) as progress:

        def done(number: int) -> None:
            if crew.number == 0:  # it speaks for all, who work as fast
                progress.add(entries[number]["bytes"] * crew.size)

        crew.each(functools.partial(cut_piece, plan), mine, done)


def cut_piece(plan: RowPlan, number: int) -> None:
    """Cut a shard and write what comes of it."""
    store = _opened(plan.store, plan.store_hash)
    splits = cut_shard(store, number, plan.sequence_length, plan.pair, plan.shares)
    with open(_piece(plan, number, "arrays"), "wb") as file:
        file.write(np.array([len(split.start) for split in splits]).data)
        for split in splits:
            for name in LARGE:
                file.write(getattr(split, name).data)
    train, held_out = splits
    np.savez(
        _piece(plan, number, "counts.npz"),
        classes=np.stack([np.stack(split.classes) for split in splits]),
        documents=np.array([split.documents for split in splits]),
        train=train.cells,
        held_out=held_out.cells,
    )


def _piece(plan: RowPlan, number: int, kind: str) -> Path:
    return plan.directory / f"{number:05d}.{kind}"


@functools.lru_cache(1)
def _opened(path: Path, store_hash: str) -> Store:
    store = open_store(path)
    if store.hash != store_hash:
        raise RunError(f"{path} has changed while its row index was made; run again")
    return store


def _sum_up(plan: RowPlan, crew: Crew) -> None:
    """Write the tables of both splits, and make their large files, which are empty yet."""
    if crew.number:
        return
    store = _opened(plan.store, plan.store_hash)
    shards = len(store.manifest["shards"])
    counts = [dict(np.load(_piece(plan, number, "counts.npz"))) for number in range(shards)]
    refusals = {}
    for i, split in enumerate(SPLITS):
        documents = sum(int(of_shard["documents"][i]) for of_shard in counts)
        classes = merged((Classes(*of_shard["classes"][i]) for of_shard in counts), plan.sequence_length)
        reason = refusal(store, plan.pair, plan.sequence_length, split, classes, documents)
        if reason:
            refusals[split] = reason
            continue
        directory = plan.directory / split
        directory.mkdir()
        windows = np.stack([of_shard["classes"][i][0] for of_shard in counts])  # by shard and class
        by_class, by_shard = (np.concatenate(([0], np.cumsum(cells))) for cells in (windows.T.ravel(), windows.ravel()))
        templates = pack(classes.sequences, plan.sequence_length) if plan.packing else single(classes.sequences)
        arrays = {
            "classes": np.stack(classes),
            "template_rows": templates.rows,
            "template_lengths": templates.lengths,
            "windows_by_class": by_class,
            "windows_by_shard": by_shard,
        }
        for name, array in arrays.items():
            write_array(directory / f"{name}.npy", array)
        _write_cells(directory, [of_shard[split] for of_shard in counts], by_shard[:: plan.sequence_length + 1])
        for name, dtype in LARGE.items():
            with open(directory / f"{name}.npy", "wb") as file:
                header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (int(classes.windows.sum()),)}
                np.lib.format.write_array_header_1_0(file, header)
                file.truncate(file.tell() + np.dtype(dtype).itemsize * header["shape"][0])
    if len(refusals) == len(SPLITS):
        raise UserError(f"{store.path} {refusals[SPLITS[0]]}")
    write_atomically(plan.directory / "refusals.json", json.dumps(refusals) + "\n")


def _write_cells(directory: Path, of_shards: list[np.ndarray], first: np.ndarray) -> None:
    """Write where the sequences of each class and shard lie in by_length, a range of classes after the other.

    `first`: the place of each shard's first window.
    """
    cells = sum(map(len, of_shards))
    names = {"cell_start": np.int64, "cell_place": np.int64, "cell_shard": np.uint32}
    files = {
        name: np.lib.format.open_memmap(directory / f"{name}.npy", "w+", dtype, (cells,))
        for name, dtype in names.items()
    }
    places = [np.cumsum(of[:, 1]) - of[:, 1] + first[number] for number, of in enumerate(of_shards)]
    bounds = np.unique(np.concatenate([of[:: max(1, _CELLS_AT_ONCE // len(of_shards)), 0] for of in of_shards]))
    done = elements = 0
    for low, high in zip(bounds, [*bounds[1:], np.iinfo(np.int64).max], strict=True):
        ranges = [np.searchsorted(of[:, 0], (low, high)) for of in of_shards]
        keys, counts = (
            np.concatenate([of[a:b, column] for of, (a, b) in zip(of_shards, ranges, strict=True)]) for column in (0, 1)
        )
        place = np.concatenate([of[a:b] for of, (a, b) in zip(places, ranges, strict=True)])
        shard = np.repeat(np.arange(len(of_shards)), [b - a for a, b in ranges])
        order = np.argsort(keys, kind="stable")
        part = slice(done, done + len(keys))
        files["cell_start"][part] = np.cumsum(counts[order]) - counts[order] + elements
        files["cell_place"][part] = place[order]
        files["cell_shard"][part] = shard[order]
        done, elements = part.stop, elements + int(counts.sum())
    for name, array in files.items():
        array.flush()
        sync(directory / f"{name}.npy")


def _copy(plan: RowPlan, crew: Crew) -> None:
    crew.each(functools.partial(copy_piece, plan), _mine(plan, crew), lambda _: None)
    for file in _checked_files(plan):
        sync(file)


def _check_sums(plan: RowPlan, crew: Crew) -> None:
    numbers = range(crew.number, len(_checked_files(plan)), crew.size)
    crew.each(functools.partial(sum_pages, plan), numbers, lambda _: None)


def sum_pages(plan: RowPlan, number: int) -> None:
    """Write the CRCs of a file's pages."""
    file = _checked_files(plan)[number]
    values = load_array(file, (LARGE | TABLES)[file.stem], (None,))
    crcs = np.fromiter(page_crcs(values.view(np.uint8).data, CRC_BYTES), np.uint32)
    write_array(file.with_name(f"{file.stem}.crcs.npy"), crcs)


def _checked_files(plan: RowPlan) -> list[Path]:
    splits = [plan.directory / split for split in SPLITS]
    return [split / f"{name}.npy" for split in splits if split.is_dir() for name in LARGE | TABLES]


def copy_piece(plan: RowPlan, number: int) -> None:
    """Copy a shard's windows to their place in the index."""
    cells = plan.sequence_length + 1
    with open(_piece(plan, number, "arrays"), "rb") as piece:
        counts = np.fromfile(piece, np.int64, len(SPLITS)).tolist()
        for split, count in zip(SPLITS, counts, strict=True):
            directory = plan.directory / split
            is_made = directory.is_dir()  # else it is refused
            if is_made:
                first = int(load_array(directory / "windows_by_shard.npy", np.int64, (None,))[number * cells])
            for name, dtype in LARGE.items():
                size = count * np.dtype(dtype).itemsize
                if is_made:
                    array = load_array(directory / f"{name}.npy", dtype, (None,))
                    _write_at(directory / f"{name}.npy", first * array.itemsize - array.nbytes, piece, size)
                else:
                    piece.seek(size, os.SEEK_CUR)


def _write_at(path: Path, before_end: int, source: BinaryIO, size: int) -> None:
    with open(path, "r+b") as file:
        file.seek(before_end, os.SEEK_END)
        while size:
            block = source.read(min(size, _BLOCK))
            file.write(block)
            size -= len(block)


def _finish(plan: RowPlan, crew: Crew) -> None:
    """Write the hashes, and rename the directory into place."""
    if crew.number == 0:
        for piece in (*plan.directory.glob("*.arrays"), *plan.directory.glob("*.npz")):
            piece.unlink()
        record, checked = Verified(plan.directory / RECORD), _checked_files(plan)
        for file in checked:
            record.remember(str(file.relative_to(plan.directory)), identity([file]))
        small = {*plan.directory.glob("*/*.npy")} - {*plan.directory.glob("*/*.crcs.npy"), *checked}
        hashes = {str(file.relative_to(plan.directory)): hash_file(file) for file in sorted(small)}
        refusals = read_json(plan.directory / "refusals.json")
        (plan.directory / "refusals.json").unlink()
        write_atomically(plan.directory / "index.json", json.dumps({"refusals": refusals, "sha256": hashes}) + "\n")
        for directory in (*plan.directory.glob("*/"), plan.directory):
            sync(directory)
        (plan.directory / ".lock").unlink()
        try:
            os.rename(plan.directory, plan.path)
        except OSError:
            if not plan.path.is_dir():  # else another maker was faster, and its index is the same
                raise
        sync(plan.path.parent)


def _wait_for(path: Path) -> None:
    """Wait until a directory that another host has made is seen here; network file systems may take seconds."""
    end = time.monotonic() + _PATIENCE_S
    while not path.is_dir() and time.monotonic() < end:
        time.sleep(0.2)
