"""Writes checkpoints in the background, so that a step waits only for a snapshot in memory.

runs/checkpoint.py describes and reads checkpoints.
"""

import contextlib
import copy
import json
import os
import shutil
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod import __version__
from bert_horovod.batches.source import Dataset
from bert_horovod.errors import RunError
from bert_horovod.interchange.huggingface import write_directory
from bert_horovod.interchange.safetensors_file import WEIGHTS_FILE, write_file
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import Execution
from bert_horovod.recipe_files.loading import recipe_to_table
from bert_horovod.runs.checkpoint import HASHES, NEWEST, OPTIMIZER, best_record, path_of, paths, step_of
from bert_horovod.runs.mirroring import Mirror
from bert_horovod.runs.model_card import CARD, model_card
from bert_horovod.runs.rank_parts import part_file, remove_waiting, take
from bert_horovod.runs.retention import superseded
from bert_horovod.runs.state import TrainingState
from bert_horovod.runtime.thread_priority import lower_priority
from bert_horovod.storage.reading import hash_file
from bert_horovod.storage.writing import sync
from bert_horovod.tasks.base import Means, Task

RETRY_S = 60  # seconds from a failure to the next try
MAX_UNSAVED_HOURS = 6.0  # without a new checkpoint, for example because the disk is full, after which the run ends
SUSPECT = "suspect-"  # begins the name of a checkpoint that was put aside
PARTS_PATIENCE_S = 60  # seconds in which all ranks must have written their parts of a checkpoint


@dataclass(frozen=True)
class Snapshot:
    """A copy of the state after a step."""

    step: int
    arrays: dict[str, np.ndarray]  # parameters by name, slots by slot/name
    record: dict[str, Any]  # content of state.json

    @property
    def ranks_with_parts(self) -> int:
        """Number of ranks whose parts the checkpoint needs."""
        return self.record["progress"]["ranks_with_parts"]


def buffers_for(state: TrainingState) -> dict[str, np.ndarray]:
    """Arrays for a snapshot, filled so that the system allocates their memory now: that takes longer than the copy."""
    arrays = {name: np.empty(variable.shape, np.float32) for name, variable in state.variables().items()}
    for array in arrays.values():
        array.fill(0)
    return arrays


def take_snapshot(
    state: TrainingState, buffers: dict[str, np.ndarray], recipe: Recipe, data_hash: str, position: dict[str, int]
) -> Snapshot:
    """Copy the present state to the buffers."""
    record = {
        "progress": asdict(state.progress),
        "position": position,
        "recipe": recipe_to_table(recipe),
        "store": data_hash,
        "version": __version__,
        "time": time.time(),
    }
    state.copy_to(buffers)
    return Snapshot(state.progress.step, buffers, record)


def write_checkpoint_files(
    output_dir: Path,
    snapshot: Snapshot,
    recipe: Recipe,
    task: Task,
    dataset: Dataset,
    spared: Callable[[], Collection[int]] = tuple,
) -> Path:
    """Write a checkpoint under a temporary name, sync and hash it, rename it; then remove the oldest checkpoints.

    `spared` tells the steps whose checkpoints are not to be removed yet. Raises RunError if the disk is full or has
    another error; older checkpoints are unchanged.
    """
    final = path_of(output_dir, snapshot.step)
    temporary = final.with_name(f".{final.name}.partial")
    try:
        for leftover in final.parent.glob(".step-*.partial"):  # left by a killed run
            if step_of(leftover.name[1 : -len(".partial")]) is not None:
                shutil.rmtree(leftover, ignore_errors=True)
        final.parent.mkdir(exist_ok=True)  # no parents: the output directory may have been moved
        (temporary / "training").mkdir(parents=True)
        parameters = {name: array for name, array in snapshot.arrays.items() if "/" not in name}
        slots = {name: array for name, array in snapshot.arrays.items() if "/" in name}
        phase = recipe.phase[recipe.phase_at(snapshot.step)]
        model, max_length = recipe.in_phase(phase).model, phase.sequence_length if isinstance(task, Means) else None
        tokenizer = dataset.vocabulary, dataset.tokenizer_settings, max_length
        hashes = {
            WEIGHTS_FILE: write_directory(temporary, model, task, parameters, *tokenizer),
            OPTIMIZER: write_file(temporary / OPTIMIZER, slots),
        }
        count = sum(array.size for array in parameters.values())
        card = model_card(output_dir, snapshot.step, recipe, count, task.configuration(model), dataset)
        (temporary / CARD).write_text(card, encoding="utf-8", newline="\n")
        parts = take(final.parent, snapshot.step, snapshot.ranks_with_parts, PARTS_PATIENCE_S)
        hashes |= {part_file(rank): digest for rank, (_, digest) in sorted(parts.items())}
        text = json.dumps(snapshot.record, indent=1) + "\n"
        (temporary / "training" / "state.json").write_text(text, encoding="utf-8")
        (temporary / HASHES).write_text(json.dumps(_add_hashes(hashes, temporary), indent=1) + "\n", encoding="utf-8")
        for rank, (path, _) in parts.items():  # last, because a failure after this loses the parts
            os.rename(path, temporary / part_file(rank))
        for path in [*temporary.rglob("*"), temporary]:
            sync(path)
        shutil.rmtree(final, ignore_errors=True)
        os.rename(temporary, final)
        sync(final.parent)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(
            f"cannot write the checkpoint {final}: {error.strerror or error}; earlier checkpoints are whole: make room"
        ) from error
    link_newest(output_dir, final)
    with contextlib.suppress(OSError):  # it is saved: what cannot be removed now is removed after a later save
        remove_waiting(final.parent, snapshot.step)
        prune(output_dir, final, recipe.execution, snapshot.record["progress"]["checked"], spared())
    return final


def link_newest(output_dir: Path, checkpoint: Path) -> None:
    """Make the link output_dir/model lead to a run's checkpoint, at once, so that it always leads to a whole one.

    A file system without links has no such link; a file or directory that a user put in its place stays.
    """
    link = output_dir / NEWEST
    temporary = link.with_name(f".{NEWEST}.partial")
    target = checkpoint.relative_to(output_dir)  # relative, so that the run may be moved
    with contextlib.suppress(OSError):
        if link.is_symlink() and os.readlink(link) == str(target):
            return
        temporary.unlink(missing_ok=True)
        os.symlink(target, temporary)
        if link.is_symlink() or not link.exists():
            os.replace(temporary, link)
        temporary.unlink(missing_ok=True)


class Saver:
    """Writes one checkpoint at a time in a separate thread; tries again if one cannot be written.

    `before` may be set: it is called in the thread before a checkpoint is written; a RunError of it is as of that.
    """

    before: Callable[[], None] | None = None

    def __init__(
        self,
        state: TrainingState,
        output_dir: Path,
        recipe: Recipe,
        task: Task,
        dataset: Dataset,
        say: Callable[[str], None],
        mirror: Mirror | None = None,
    ) -> None:
        self._mirror = mirror
        self._output_dir, self._recipe, self._task, self._dataset, self._say = output_dir, recipe, task, dataset, say
        self._identity = os.stat(output_dir)
        self._thread = ThreadPoolExecutor(1, "save", lower_priority)  # Python waits for this thread before it exits
        self.make_room(state)
        self._snapshot: Snapshot | None = None  # the last snapshot, until it is written
        self._writing: Future | None = None
        self._last_good = time.monotonic()
        self._retry_at: float | None = None

    def make_room(self, state: TrainingState) -> None:
        """Begin to make buffers for snapshots of this state, which may have other tensors than the state before."""
        self._buffers = self._thread.submit(buffers_for, state)

    def save(self, state: TrainingState, position: dict[str, int]) -> None:
        """Take a snapshot and begin to write it; first waits until the snapshot before is written."""
        self._settle()
        self._saved_task = copy.copy(self._task)  # an evaluation may change the task while the snapshot is written
        self._begin(take_snapshot(state, self._buffers.result(), self._recipe, self._dataset.hash, position))

    def retry_due(self) -> bool:
        """Whether it is time to save again because the last save failed; prints a warning when a save has failed.

        Raises RunError if the last good checkpoint is older than MAX_UNSAVED_HOURS.
        """
        if self._writing is not None and self._writing.done():
            self._settle()
        return self._retry_at is not None and time.monotonic() >= self._retry_at

    def again(self) -> None:
        """Begin to write the last snapshot once more."""
        self._begin(self._snapshot)

    def finish(self, wait: Callable[[], None], must_end: Callable[[], bool] = lambda: False) -> None:
        """Wait until the last snapshot is written, with as many tries as needed; calls `wait` between tries.

        Raises RunError as retry_due does, and if one more try fails when `must_end` says that there is no time.
        """
        last_try = must_end()
        self._settle(last_try)
        while self._snapshot is not None:
            last_try = must_end()
            if not last_try and time.monotonic() < self._retry_at:
                wait()
                time.sleep(0.2)
                continue
            self._begin(self._snapshot)
            self._settle(last_try)

    def close(self) -> None:
        """Wait for the write in progress and ignore its result: the run ends for another reason."""
        self._thread.shutdown()

    def _begin(self, snapshot: Snapshot) -> None:
        self._snapshot, self._retry_at = snapshot, None
        self._writing = self._thread.submit(self._write, snapshot)

    def _write(self, snapshot: Snapshot) -> Path:
        try:
            where = "" if os.path.samestat(os.stat(self._output_dir), self._identity) else "another directory is there"
        except OSError as error:
            where = error.strerror
        if where:
            raise RunError(
                f"cannot write the checkpoint of step {snapshot.step} to {self._output_dir}: {where}. Was it moved, "
                "removed or unmounted while the run wrote to it? Move it back"
            )
        if self.before:
            self.before()
        spared = self._mirror.holds if self._mirror else tuple
        written = write_checkpoint_files(
            self._output_dir, snapshot, self._recipe, self._saved_task, self._dataset, spared
        )
        if self._mirror:
            self._mirror.offer(written)
        return written

    def _settle(self, last_try: bool = False) -> None:
        """Wait for the write in progress, if any; if it failed, plan a retry, or raise RunError where none fits."""
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        try:
            writing.result()
            self._snapshot, self._last_good = None, time.monotonic()
        except RunError as error:
            if last_try:
                raise RunError(
                    f"{error} and run the same command again. The run was asked to stop: the steps since the last "
                    "checkpoint are lost"
                ) from error
            left_s = 3600 * MAX_UNSAVED_HOURS - (time.monotonic() - self._last_good)
            if left_s <= 0:
                raise RunError(
                    f"{error} and run the same command again. There was no new checkpoint for more than "
                    f"{MAX_UNSAVED_HOURS:g} hours"
                ) from error
            again_s = min(RETRY_S, left_s)
            self._retry_at = time.monotonic() + again_s
            self._say(f"warning: {error}. The run goes on, and tries again in {again_s:.0f} s")


def _add_hashes(known: dict[str, str], directory: Path) -> dict[str, str]:
    """The SHA-256 of every file of a checkpoint but the card; files with known hashes are not read again."""
    without = (directory / HASHES, directory / CARD)
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path not in without]
    names = [str(path.relative_to(directory)) for path in files]
    return known | {name: known.get(name) or hash_file(path) for name, path in zip(names, files, strict=True)}


def put_aside(output_dir: Path, after: int) -> tuple[list[Path], Path | None]:
    """Rename later checkpoints, so that a run does not resume from them; returns them, and the newest that is left."""
    renamed = []
    for path in [path for path in paths(output_dir) if step_of(path.name) > after]:
        renamed.append(path.with_name(f"{SUSPECT}{path.name}"))
        shutil.rmtree(renamed[-1], ignore_errors=True)
        os.rename(path, renamed[-1])
    left = paths(output_dir)
    if left:
        link_newest(output_dir, left[-1])
    elif (output_dir / NEWEST).is_symlink():
        (output_dir / NEWEST).unlink()
    return renamed, left[-1] if left else None


def prune(output_dir: Path, newest: Path, execution: Execution, checked: int, spared: Collection[int] = ()) -> None:
    """Remove checkpoints, except `spared` steps and those that retention.superseded keeps.

    `checked`: the step of the last good check of gradients; 0: there was none.
    """
    # Checkpoints newer than `newest` are damaged (the run would have resumed from them) and do not count.
    steps = [step for path in paths(output_dir) if (step := step_of(path.name)) <= step_of(newest.name)]
    best = best_record(output_dir)
    for step in superseded(steps, best and best.step, checked, execution):
        if step not in spared:
            _remove(path_of(output_dir, step))


def _remove(path: Path) -> None:
    """Rename a checkpoint, then delete it, so that no part of it looks whole; the next save deletes any rest."""
    temporary = path.with_name(f".{path.name}.partial")
    os.rename(path, temporary)
    shutil.rmtree(temporary, ignore_errors=True)
