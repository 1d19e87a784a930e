"""Copies a run's checkpoints to its mirror in a thread of rank 0; runs/mirror.py has the layout, and reads it."""

import contextlib
import hashlib
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from bert_horovod.errors import ReportedError, RunError, UserError
from bert_horovod.recipe.settings import Execution
from bert_horovod.runs.checkpoint import HASHES, STATE, best_record, saved_at, step_of
from bert_horovod.runs.mirror import (
    CHECKPOINTS,
    COMPLETE,
    LAG,
    OWNERS,
    PARTIAL,
    RUN,
    RUN_FILES,
    Copy,
    File,
    copies,
    mirrored_files,
    owner,
    owners,
)
from bert_horovod.runs.retention import superseded
from bert_horovod.runtime.thread_priority import lower_priority
from bert_horovod.storage import remote
from bert_horovod.storage.places import Place, parse_place
from bert_horovod.storage.reading import hash_file, read_json
from bert_horovod.storage.writing import write_atomically

RETRY_S = 60.0  # from a failure to the next try
END_PATIENCE_S = 600.0  # in which the run, when it ends, goes on trying


class Mirror:
    """Takes the newest checkpoint each time, and the best one; what comes between while it copies is left out.

    `newest`, the checkpoint that the run goes on from, is copied if the mirror lacks it. Raises UserError if another
    start takes the mirror at the same time, and the errors of `owner`.
    """

    def __init__(
        self, output_dir: Path, execution: Execution, say: Callable[[str], None], newest: Path | None = None
    ) -> None:
        self._output_dir, self._execution, self._say = output_dir, execution, say
        self._place = parse_place(execution.mirror, "execution.mirror =")
        self._writer = uuid.uuid4().hex
        run = read_json(output_dir / "run.json", inside=output_dir)
        recipe = (output_dir / "recipe.toml").read_text(encoding="utf-8")
        content = {"writer": self._writer, "host": socket.gethostname(), "time": time.time(), "run": run}
        self._object = (json.dumps(content | {"recipe": recipe}, indent=1) + "\n").encode()
        self._number = self._take(self._copied_before())
        # Copies of later steps are damaged, else the run would go on from them: they do not count, and they stay.
        self._complete = self._copies_until(step_of(newest.name)) if newest is not None else {}
        self._changed = threading.Condition()
        self._waiting: list[Path] = []
        self._copying: Path | None = None
        self._since = 0.0  # when the first of the waiting checkpoints was saved
        self._error, self._failures, self._lost = "", 0, ""
        self._at_once = self._closed = False
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._thread.start()
        if newest is not None and step_of(newest.name) not in self._complete:
            self.offer(newest)

    def offer(self, checkpoint: Path) -> None:
        """Copy a checkpoint as soon as the one before is copied; one that still waits is left out, but for the best."""
        best = best_record(self._output_dir)
        with self._changed:
            kept = [path for path in self._waiting if best and step_of(path.name) == best.step]
            self._waiting = [*(path for path in kept if path != checkpoint), checkpoint]
            self._since = self._since or time.time()
            self._changed.notify()
            self._tell()

    def holds(self) -> set[int]:
        """The steps whose checkpoints must stay on disk, because they are being copied, or wait for it."""
        with self._changed:
            return {step_of(path.name) for path in (*self._waiting, *filter(None, [self._copying]))}

    def check(self) -> None:
        """Raise UserError if another start has taken the mirror over."""
        if self._lost:
            raise UserError(self._lost)

    def finish(self, wait: Callable[[], None], must_end: Callable[[], bool]) -> None:
        """Wait until the mirror has the newest checkpoint; calls `wait` meanwhile.

        Raises RunError if copying still fails after END_PATIENCE_S, or once more when `must_end` says that there is no
        time; UserError as `check`.
        """
        end, failures = time.monotonic() + END_PATIENCE_S, self._failures
        with self._changed:
            self._at_once = True
            self._changed.notify()
        while steps := self.holds():
            self.check()
            if self._failures > failures and (must_end() or time.monotonic() > end):
                raise RunError(
                    f"execution.mirror = {self._place} lacks the checkpoint of step {max(steps)}: {self._error}. It is "
                    f"whole in {self._output_dir}: run the same command again, which copies it"
                )
            wait()
            time.sleep(0.1)
        self.check()

    def close(self) -> None:
        """Begin no other copy: the run ends."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def withdraw(self, after: int) -> None:
        """Copy no more, and let no start go on from a checkpoint of a later step than `after`, which may be wrong."""
        self.close()
        self._thread.join()
        try:
            for copy in copies(self._place)[0]:
                if copy.step > after:
                    _make_partial(copy.place)
        except ReportedError as error:
            self._say(f"warning: remove the checkpoints after step {after} from {self._place} yourself: {error}")

    def _work(self) -> None:
        lower_priority()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                self._copying = self._waiting.pop(0)
            self._tell()
            try:
                self._copy(self._copying)
                self._error = ""
            except Exception as error:  # whatever it is, training goes on
                self._fail(self._copying, str(error) or type(error).__name__)
            with self._changed:
                self._copying = None
                self._since = self._since if self._waiting else 0.0
            self._tell()

    def _fail(self, checkpoint: Path, reason: str) -> None:
        self._error, self._failures = reason, self._failures + 1
        with self._changed:
            if self._lost or not checkpoint.is_dir():
                return
            if not self._waiting:
                self._waiting.append(checkpoint)
        self._say(f"warning: {checkpoint.name} is not in execution.mirror yet: {reason}. Trying again in {RETRY_S:g} s")
        self._tell()
        with self._changed:
            newest = self._waiting[-1]
            self._changed.wait_for(lambda: self._at_once or self._closed or self._waiting[-1] != newest, RETRY_S)
            self._at_once = False

    def _copy(self, checkpoint: Path) -> None:
        step, target = step_of(checkpoint.name), self._place / CHECKPOINTS / checkpoint.name
        self._require_ours(step)
        _make_partial(target)
        self._complete.pop(step, None)
        hashes, files = read_json(checkpoint / HASHES, inside=checkpoint), {}
        for path in sorted(path for path in checkpoint.rglob("*") if path.is_file()):
            name = str(path.relative_to(checkpoint))
            files[name] = File(path.stat().st_size, hash_file(path, inside=checkpoint))
            if hashes.get(name, files[name].sha256) != files[name].sha256:
                raise RunError(f"{path} is damaged: it does not match its hash")
            remote.write(target / name, path)
        for name in RUN_FILES:
            if (path := self._output_dir / name).is_file():
                content = path.read_bytes()
                files[f"{RUN}/{name}"] = File(len(content), hashlib.sha256(content).hexdigest())
                remote.write(target / RUN / name, content)
        copy = Copy(target, step, saved_at(checkpoint), files)
        if not self._require_ours(step):
            raise RunError(f"{self._place} became another place while it was being written")
        record = {"step": step, "time": copy.time, "files": {name: file._asdict() for name, file in files.items()}}
        remote.write(target / COMPLETE, (json.dumps(record, indent=1) + "\n").encode())
        self._complete[step] = copy
        self._retain(int(read_json(checkpoint / STATE, inside=checkpoint)["progress"].get("checked", 0)))

    def _retain(self, checked: int) -> None:
        """Remove what is not kept on disk either, and what is marked as partial; anything else may be whole."""
        best = best_record(self._output_dir)
        for step in superseded(sorted(self._complete), best and best.step, checked, self._execution):
            _make_partial(self._complete.pop(step).place)
        for name, files in mirrored_files(self._place).items():
            copy = self._complete.get(step_of(name))
            if PARTIAL in files and (copy or COMPLETE not in files):
                kept = {COMPLETE, *copy.files} if copy else set()
                for file in sorted(files.keys() - kept, key=lambda file: (file == PARTIAL, file)):
                    remote.remove(self._place / CHECKPOINTS / name / file)

    def _copies_until(self, step: int) -> dict[int, Copy]:
        return {copy.step: copy for copy in copies(self._place)[0] if copy.step <= step}

    def _copied_before(self) -> int | None:
        """The newest step that this run has copied to the mirror, as far as output_dir tells."""
        try:
            lag = read_json(self._output_dir / LAG, inside=self._output_dir)
            return lag["copied"] if lag["url"] == str(self._place) else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def _take(self, copied: int | None) -> int:
        """Write this start's owner's object, and return its number; `copied`: the newest step that had a copy."""
        found = owner(self._place)
        if found is None and copied is not None:
            self._say(
                f"warning: execution.mirror = {self._place} is empty: the copies up to step {copied} are not there. "
                "Is a disk not mounted, or was the mirror removed? The run goes on, and copies what it saves next there"
            )
        number = found[0] + 1 if found else 1
        place = self._place / OWNERS / f"{number:08d}.json"
        try:
            ours = remote.write_new(place, self._object)
        except NotImplementedError:  # the next write finds out
            remote.write(place, self._object)
            ours = True
        if not ours:
            raise UserError(
                f"another start takes execution.mirror = {self._place} in this moment; wait for it, or stop it"
            )
        for old in owners(self._place):
            if old.name < place.name:
                remote.remove(old)
        return number

    def _require_ours(self, step: int) -> bool:
        """Raise UserError if another start has taken the mirror; an emptied one is taken again, until it is back.

        Tells whether the place is still the same one.
        """
        found = owner(self._place)
        if found is None:
            self._number, self._complete = self._take(max(self._complete, default=None)), {}
            return False
        if found[0] == 0:  # the owner's object alone was removed
            self._number = self._take(None)
        elif found[1].get("writer") == self._writer:
            if found[0] != self._number:  # the place is back that was emptied: a disk that was away
                self._number, self._complete = found[0], self._copies_until(step)
                return False
        else:
            self._lost = (
                f"execution.mirror = {self._place} was taken over by a run on {found[1].get('host')}: two write to it. "
                f"This one ends; its checkpoints are in {self._output_dir}. Stop one, or give it another mirror"
            )
            raise UserError(self._lost)
        return True

    def _tell(self) -> None:
        lag = {"url": str(self._place), "copied": max(self._complete, default=None)}
        lag |= {"waiting": max(self.holds(), default=None), "waiting_since": self._since, "error": self._error}
        with self._changed, contextlib.suppress(ReportedError):  # the next save tells of a full disk
            write_atomically(self._output_dir / LAG, json.dumps(lag, indent=1) + "\n")


def _make_partial(checkpoint: Place) -> None:
    """Let a checkpoint of the mirror be one that is not there, and whose files may be removed."""
    remote.write(checkpoint / PARTIAL, b"{}\n")
    remote.remove(checkpoint / COMPLETE)
