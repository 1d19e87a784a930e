"""Sends a run's settings and metrics to TensorBoard's files, Weights & Biases and MLflow, each in a thread of its own.

A tracker never ends a run and never makes it wait: lines go through a bounded queue, from which none is taken back, and
at the run's end all trackers together get a limited time. A tracker's error is one warning.
A resumed run goes on with the same run of the tracker: trackers.json has its id.
Trackers are configured by their own environment variables (WANDB_MODE, MLFLOW_TRACKING_URI, ...), and find the
user's keys themselves; this program never reads them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bert_horovod.errors import ReportedError, UserError
from bert_horovod.recipe.fields import flat_table
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.storage.reading import read_record
from bert_horovod.storage.writing import write_atomically

IDS = "trackers.json"  # in output_dir: the run's id in each tracker
PROJECT = "bert_horovod"  # the project or experiment, unless the tracker's own variables name another one
WAITING = 1000  # lines that may wait for a tracker; further ones are lost
CLOSE_S = 30.0  # seconds that all trackers together get at the run's end
_PAUSE_S = 0.2  # seconds that a thread waits for a line before it looks whether the run has ended
_SECRET = re.compile("KEY|TOKEN|PASSWORD|SECRET|CREDENTIAL", re.IGNORECASE)  # in names of variables


class About(NamedTuple):
    """What a tracker learns of a run when it begins."""

    name: str  # of the output directory
    directory: Path  # the output directory
    settings: dict[str, Any]  # by their names, as "model.hidden_size"
    known_id: str | None  # the tracker's id of this run, if it was begun before
    keep_id: Callable[[str], None]  # records that id


class Tracker(Protocol):
    """A tracker's run. It is made by calling its class with an About."""

    def log(self, step: int, metrics: dict[str, float], when: float) -> None:
        """Record metrics of a step; `when`: seconds since the epoch."""

    def finish(self, failed: bool) -> None:
        """End the run, in success or failure."""


class WandbRun:
    """A run of Weights & Biases."""

    def __init__(self, about: About) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        known_id = about.known_id or secrets.token_hex(4)
        about.keep_id(known_id)
        # Silent, because it would ask for a key on a terminal, in the middle of the run's lines. It records neither
        # the run's lines nor command, code or environment, and its stop button does not interrupt the process.
        quiet = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            disable_job_creation=True,
            finish_timeout=CLOSE_S / 2,
            stop_fn=lambda: None,
            x_disable_meta=True,
            x_save_requirements=False,
        )
        wandb.setup(wandb.Settings(silent=True))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=os.environ.get("WANDB_DIR", str(about.directory)),
            name=about.name,
            id=known_id,
            resume="allow",
            reinit="create_new",
            config=about.settings,
            settings=quiet,
        )
        # The x-axis; its own counter of steps cannot go back, as a resumed run does.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: dict[str, float], when: float) -> None:
        self._run.log({"step": step, **metrics})

    def finish(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class MlflowRun:
    """A run of MLflow."""

    def __init__(self, about: About) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException

        self._client, self._metric = MlflowClient(), Metric
        if about.known_id is not None:
            with contextlib.suppress(MlflowException):  # it may have been deleted there
                self._client.update_run(about.known_id, status="RUNNING")
                self._id = about.known_id
                return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        self._id = self._client.create_run(number, run_name=about.name).info.run_id
        about.keep_id(self._id)
        params = [Param(key, str(value)) for key, value in about.settings.items()]
        for first in range(0, len(params), 100):  # the most of one call
            self._client.log_batch(self._id, params=params[first : first + 100])

    def log(self, step: int, metrics: dict[str, float], when: float) -> None:
        entries = [self._metric(name, float(value), round(1000 * when), step) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=entries)

    def finish(self, failed: bool) -> None:
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


class TensorBoardFiles:
    """Files that TensorBoard reads, in output_dir/tensorboard."""

    def __init__(self, about: About) -> None:
        self._files = tf.summary.create_file_writer(str(about.directory / "tensorboard"))

    def log(self, step: int, metrics: dict[str, float], when: float) -> None:
        with tf.device("/CPU:0"), self._files.as_default(step=step):
            for name, value in metrics.items():
                tf.summary.scalar(name, value)

    def finish(self, failed: bool) -> None:
        self._files.close()


# By their packages.
TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoardFiles, "wandb": WandbRun, "mlflow": MlflowRun}


def require_trackers(names: tuple[str, ...]) -> None:
    """Raise UserError if the package of a tracker is not installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        extras = ",".join(missing)
        raise UserError(
            f"execution.trackers = {list(names)}: {', '.join(missing)} is not installed; install the extra: "
            f"pip install 'bert_horovod[{extras}]', or leave it out"
        )


class Trackers:
    """All trackers of a run; on rank 0 only; `say` is called only by the thread that calls `log` and `close`."""

    def __init__(
        self, names: tuple[str, ...], directory: Path, settings: dict[str, Any], say: Callable[[str], None]
    ) -> None:
        self._say, self._path, self._writing = say, directory / IDS, threading.Lock()
        self._ids = _read_ids(self._path) if names else {}
        self._feeds = []
        for name in names:
            about = About(
                directory.resolve().name,
                directory.absolute(),
                flat_table(settings),
                self._ids.get(name),
                lambda known_id, name=name: self._keep(name, known_id),
            )
            self._feeds.append(_Feed(name, about))
            self._feeds[-1].start()

    def log(self, metrics: dict[str, Any]) -> None:
        """Send the numbers of a line of metrics.jsonl."""
        when = metrics.get("time") or time.time()
        numbers = {
            name: value
            for name, value in metrics.items()
            if name not in ("step", "time") and isinstance(value, int | float)
        }
        for feed in self._feeds if numbers else ():
            feed.put((metrics["step"], numbers, when))
        self._warn()

    def close(self, failed: bool) -> None:
        """End the trackers' runs; waits CLOSE_S seconds at most."""
        end = time.monotonic() + CLOSE_S
        for feed in self._feeds:
            feed.end(failed)
        for feed in self._feeds:
            feed.join(max(0.0, end - time.monotonic()))
        self._warn()
        for feed in self._feeds:
            if feed.is_alive():
                self._say(
                    f"warning: {feed.name} did not end within {CLOSE_S:.0f} s; the last lines may be missing there"
                )
            elif feed.lost:
                self._say(f"warning: {feed.name} has not got {feed.lost} lines of metrics; metrics.jsonl has them all")

    def _warn(self) -> None:
        for feed in self._feeds:
            if feed.problem and not feed.told:
                feed.told = True
                self._say(f"warning: {feed.name}: {feed.problem}. The run goes on, and metrics.jsonl has all its lines")

    def _keep(self, name: str, known_id: str) -> None:
        with self._writing:
            self._ids[name] = known_id
            with contextlib.suppress(ReportedError, OSError):  # a full disk: the next start makes a new tracker run
                write_atomically(self._path, json.dumps(self._ids, indent=1) + "\n")


class _Feed(threading.Thread):
    """The thread of a tracker, and the lines that wait for it."""

    def __init__(self, name: str, about: About) -> None:
        super().__init__(name=name, daemon=True)
        self._about = about
        self._waiting: queue.Queue[Any] = queue.Queue(WAITING)
        self._failed, self._ending = False, threading.Event()
        self.problem, self.told = "", False  # the first error's message; whether it was printed
        self.lost = 0  # lines

    def put(self, line: tuple[int, dict[str, float], float]) -> None:
        """Hand a line over; it is lost if too many wait already, or the tracker has failed to begin."""
        try:
            if not self.is_alive():
                raise queue.Full
            self._waiting.put_nowait(line)
        except queue.Full:
            self.lost += 1
            self.problem = self.problem or f"{WAITING} lines wait for it, and further ones are left out"

    def end(self, failed: bool) -> None:
        """Let the thread end after the lines that wait."""
        self._failed = failed
        self._ending.set()

    def run(self) -> None:
        try:
            tracker = TRACKERS[self.name](self._about)
        except BaseException as error:  # a library may even raise SystemExit
            self._note(error)
            self.lost += self._waiting.qsize()
            return
        while not (self._ending.is_set() and self._waiting.empty()):
            try:
                tracker.log(*self._waiting.get(timeout=_PAUSE_S))
            except queue.Empty:
                continue
            except Exception as error:
                self.lost += 1
                self._note(error)
        try:
            tracker.finish(self._failed)
        except Exception as error:
            self._note(error)

    def _note(self, error: BaseException) -> None:
        self.problem = self.problem or first_line_without_secrets(f"{type(error).__name__}: {error}")


def first_line_without_secrets(text: str) -> str:
    """The first line of a library's message, without users in addresses and values of variables that hold secrets."""
    text = next(iter(text.splitlines()), "")
    hidden = [value for name, value in os.environ.items() if _SECRET.search(name) and len(value) >= 4]
    for value in sorted(hidden, key=len, reverse=True):  # one may be the beginning of another
        text = text.replace(value, "***")
    return re.sub(r"//[^/@\s]+@", "//***@", text)[:500]  # not before: half a secret would not be known


def _read_ids(path: Path) -> dict[str, str]:
    """The ids of trackers.json; none if the file is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        return read_record(path, dict[str, str], inside=path.parent)
    return {}
