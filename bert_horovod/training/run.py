"""A run in memory: state, open phase, ranks, and the hooks that watch it."""

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_horovod import __version__
from bert_horovod.batches.source import Source
from bert_horovod.batches.text.mixture import HeldOutParts
from bert_horovod.collectives.world import World
from bert_horovod.costs.derived import training_flops
from bert_horovod.errors import RunError, UserError
from bert_horovod.exchange.base import Exchange
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import Phase
from bert_horovod.recipe_files.loading import recipe_to_table
from bert_horovod.runs.checkpoint import path_of
from bert_horovod.runs.directory import stop_requested
from bert_horovod.runs.metrics_lines import Journal
from bert_horovod.runs.sessions import spent
from bert_horovod.runs.trackers import Trackers
from bert_horovod.runtime.stopping import STOP
from bert_horovod.tasks.base import Task
from bert_horovod.training.console import Console
from bert_horovod.training.job import Job
from bert_horovod.training.peak import print_start
from bert_horovod.wording import duration

# Seconds that are allowed in addition to execution.stall_s, for each action until the end of a phase's first step, and
# for later compilations.
FIRST_STEP_S = 600.0


@dataclass(frozen=True)
class OpenPhase:
    """The phase in training."""

    number: int
    settings: Phase
    recipe: Recipe  # the run's recipe, with the model's depth in this phase
    begin: int  # number of the phase's first step in the run, from 0
    end: int  # one past the last step to be trained
    source: Source
    held_out: Source | HeldOutParts
    micro_batches: int  # K, per rank
    task: Task

    def flops_per_row(self, micro_batch: dict[str, np.ndarray]) -> float:
        """Operations of matrix products, forward and backward, of a row of this micro-batch.

        What is computed twice, by recomputation or in a first pass for vectors, counts once.
        """
        masked = micro_batch.get("masked_ids")
        slots = self.source.slots if masked is None else self.source.slots | {"masked": masked.shape[1]}
        return training_flops(
            lambda model: self.task.products(model, 1, self.settings.sequence_length, slots),
            self.recipe.model,
            self.settings.trained_layers,
        )


class Run:
    """A run from its start, training.entering.begin_run, to its end; call `close` at the end.

    `hooks`: functions that make the run's hooks (hooks.base.Hook), in the order in which the loop calls the hooks. The
    job's own hooks come first.
    """

    def __init__(self, job: Job, world: World, hooks: Iterable[Callable[["Run"], Any]]) -> None:
        self.job, self.world, self.recipe, self.task = job, world, job.recipe, job.task
        self.last_step = min(self.recipe.total_steps, job.max_steps or self.recipe.total_steps)
        self.exchange: Exchange | None = None  # the open phase's, from its first step on
        self.phase: OpenPhase | None = None
        self.journal: Journal | None = None  # on rank 0 only
        self._trackers: Trackers | None = None  # on rank 0 only
        self.peak_flops_per_s: float | None = None  # of all ranks together; on rank 0 only
        self.failure: BaseException | None = None  # the error that ends the run
        self.held_out: dict[str, float] = {}  # means of the last evaluation
        self.ended = ""  # why a hook ended the run before its last step
        self.waits_for_room = True  # for a checkpoint on a full disk
        self.save_is_late = False  # a checkpoint was due while the loss was far above its mean
        self.rollbacks = (-1, 0)  # step of the last rollback's checkpoint, and the number of rollbacks to it
        self._takes_signals = False
        agreement = self.recipe.exchange.agreement
        if self.last_step % agreement:
            raise UserError(
                f"--max_steps {job.max_steps}: with [exchange] of this recipe ranks are equal only every {agreement} "
                "steps; expected a multiple of it"
            )
        self.hosts: list[str] = []  # by rank
        self.hooks = [make(self) for make in (*job.hooks, *hooks)]

    def begin(self) -> None:
        """Say from where the run goes on, open its log, and take signals; the state is open."""
        job, execution, first_step = self.job, self.recipe.execution, self.state.progress.step
        self.first_step, self._started = first_step, time.monotonic()
        self.console = Console(self.world.rank == 0, first_step, self.last_step)
        if self.world.rank == 0:
            self.peak_flops_per_s = print_start(self.recipe, self.task, self.world)  # while the other ranks wait
            resumed = f"resuming from {self.resumed_from}" if self.resumed_from else None
            self.say(resumed or f"starting from {job.initial.checkpoint if job.initial else 'fresh parameters'}")
            about = recipe_to_table(self.recipe) | {"data_sha256": job.dataset.hash, "version": __version__}
            self._trackers = Trackers(execution.trackers, job.output_dir, about, self.say)
            self.journal = Journal(job.output_dir, first_step, self.say, self._trackers.log)
            if self.state.progress.plan.get("made_for", {}).get("world_size") != self.world.size:
                self.journal.dropped.clear()  # another number of ranks adds in another order
        if first_step >= self.last_step:
            beyond = f", beyond --max_steps {job.max_steps}, which counts from its beginning"
            of = f" of {self.last_step}" if first_step == self.last_step else beyond
            self.say(f"nothing to do: the run is at step {first_step}{of}")
        STOP.begin(speaks=self.world.rank == 0)
        self._takes_signals = True

    def say(self, text: str) -> None:
        """Print a line for people, on rank 0."""
        self.console.say(text)

    def doing(self, what: str, more_s: float = 0) -> None:
        """Tell the hooks the run's present activity; it may take `more_s` seconds longer than execution.stall_s."""
        for hook in self.hooks:
            hook.doing(what, more_s)

    def position(self) -> dict[str, int]:
        """The run's place in its data, computed from the progress."""
        phase, progress = self.phase, self.state.progress
        batches = progress.step - phase.begin + progress.passed_over.get(str(phase.number), 0)
        epoch, row = divmod(batches * phase.settings.global_batch, phase.source.count)
        return {"phase": phase.number, "epoch": epoch, "row": row}

    def save_due(self, step: int) -> bool:
        """Whether a checkpoint is due after this step; one that was due while the loss was far up comes after that."""
        late = self.save_is_late and self.exchange.ranks_equal_after(step)
        return late or step % self.recipe.execution.checkpoint_steps == 0 or step == self.phase.end

    def evaluation_due(self, step: int) -> bool:
        """Whether the model is evaluated after this step."""
        every = self.recipe.execution.evaluate_steps
        return bool(every and step % every == 0) or step == self.phase.end

    def asked_to_stop(self) -> bool:
        """Whether this rank was asked to stop, by a signal, a file or the time."""
        late = self.job.stop_at is not None and time.time() >= self.job.stop_at
        return STOP.asked or late or (self.world.rank == 0 and stop_requested(self.job.output_dir))

    def must_stop(self) -> bool:
        """Whether this rank was asked to stop, or a hook wants the run to end."""
        return any([self.asked_to_stop(), *(hook.wants_to_end() for hook in self.hooks)])

    def settle(self) -> None:
        """Before an error ends the run: finish the checkpoints that are being written, if there is room."""
        self.waits_for_room = False
        with contextlib.suppress(RunError):  # that the last checkpoint cannot be written matters less
            for hook in self.hooks:
                hook.wait()

    def summarise(self) -> None:
        """Print the run's step, last evaluation and checkpoint; nothing if the run did no step."""
        progress = self.state.progress
        steps = progress.step - self.first_step
        if not steps:
            return
        figures = "".join(f"; {name.replace('_', ' ')} {metric:.4f}" for name, metric in self.held_out.items())
        self.say(
            f"at step {progress.step} of {self.recipe.total_steps}: {steps:,} steps in "
            f"{duration(time.monotonic() - self._started)}; {progress.skipped_steps} skipped{figures}"
        )
        if self.world.rank == 0 and (taken := spent(self.job.output_dir, time.time())):
            self.say("; ".join(f"{name} {value}" for name, value in taken.lines()))
        self.say(f"checkpoint: {path_of(self.job.output_dir, progress.step)}")

    def close(self) -> None:
        """Close hooks, journal, trackers and console, and handle signals no longer."""
        for hook in reversed(self.hooks):
            hook.close()
        if self.journal is not None:
            self.journal.close()
        if self._trackers is not None:
            self._trackers.close(self.failure is not None)
        if hasattr(self, "console"):
            self.console.close()
        if self._takes_signals:
            STOP.end()
