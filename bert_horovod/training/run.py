"""A run in memory: what is trained, on what, by whom, and who watches."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_horovod.batches.source import Source
from bert_horovod.collectives.messages import from_rank_0
from bert_horovod.collectives.world import World
from bert_horovod.costs.derived import derive
from bert_horovod.costs.products import training_flops
from bert_horovod.errors import UserError
from bert_horovod.exchange.base import Exchange
from bert_horovod.recipe.sections import Phase, Recipe
from bert_horovod.runs.checkpoint import path_of
from bert_horovod.runs.directory import Followed, stop_requested
from bert_horovod.runs.journal import Journal
from bert_horovod.runtime.stopping import STOP
from bert_horovod.training.announce import print_start
from bert_horovod.training.console import Console, duration
from bert_horovod.training.growth import grow
from bert_horovod.training.job import Job
from bert_horovod.training.start import first_state, open_source_once, require_same_data, require_same_state
from bert_horovod.training.step import compute_policy

# Beyond execution.stall_s, for each thing up to the end of a phase's first step, and for what compiles later.
FIRST_STEP_S = 600.0
_INDEXED_PER_S = 1e6  # tokens of a dataset, if disk and processor are slow


@dataclass(frozen=True)
class OpenPhase:
    """The phase that is trained."""

    number: int
    settings: Phase
    recipe: Recipe  # the run's, with the model as deep as it is in this phase
    begin: int  # its first step's number, from 0, in the run
    end: int  # one past the last step to be trained
    source: Source
    held_out: Source
    micro_batches: int  # K, per rank
    flops_per_row: float  # of matrix products, forward and backward


class Run:
    """A run, from its start to its end; `close` it.

    `hooks` make what watches it (hooks.base.Hook), in the order in which they hear of a step; a job's own come first.
    """

    def __init__(self, job: Job, world: World, hooks: Iterable[Callable[["Run"], Any]]) -> None:
        self.job, self.world, self.recipe, self.task = job, world, job.recipe, job.task
        self.last_step = min(self.recipe.total_steps, job.max_steps or self.recipe.total_steps)
        self.exchange: Exchange | None = None  # of the phase that is trained, from its first step on
        self.phase: OpenPhase | None = None
        self.journal: Journal | None = None  # rank 0's
        self.peak_flops_per_s: float | None = None  # of all ranks; rank 0's to know
        self.held_out: dict[str, float] = {}  # the last evaluation's means
        self.rollbacks = (-1, 0)  # the step that was gone back to, and how often
        self.directory: Followed | None = None  # rank 0's output directory
        self.output_dir = job.output_dir  # where it is now
        self._takes_signals = False
        agreement = self.recipe.exchange.agreement
        if self.last_step % agreement:
            raise UserError(
                f"--max_steps {job.max_steps}: with [exchange] of this recipe ranks are equal only every {agreement} "
                "steps; expected a multiple of it"
            )
        self.hooks = [make(self) for make in (*job.hooks, *hooks)]
        try:
            require_same_data(job.dataset, world)
            self.load()
            self._open()
        except BaseException:
            self.close()
            raise

    def load(self) -> None:
        """Take the newest checkpoint, or start from the beginning."""
        self.doing("loading the state", FIRST_STEP_S)
        self.state, self.resumed_from = first_state(self.job, self.world)

    def _open(self) -> None:
        job, execution, first_step = self.job, self.recipe.execution, self.state.progress.step
        self.first_step, self._started = first_step, time.monotonic()
        self.console = Console(self.world.rank == 0, first_step, self.last_step)
        if self.world.rank == 0:
            self.peak_flops_per_s = print_start(self.recipe, self.task, self.world)  # while the other ranks wait
            resumed = f"resuming from {self.resumed_from}" if self.resumed_from else None
            self.say(resumed or f"starting from {job.init_checkpoint or 'fresh parameters'}")
            self.directory = Followed(job.output_dir)
            self.journal = Journal(job.output_dir, first_step, execution.tensorboard, self.say)
        if first_step >= self.last_step:
            beyond = f", beyond --max_steps {job.max_steps}, which counts from its beginning"
            of = f" of {self.last_step}" if first_step == self.last_step else beyond
            self.say(f"nothing to do: the run is at step {first_step}{of}")
        STOP.begin(speaks=self.world.rank == 0)
        self._takes_signals = True

    def open_phase(self, number: int, begin: int) -> None:
        """Open the rows of a phase, on all ranks alike."""
        settings, job, world = self.recipe.phase[number], self.job, self.world
        self.doing("opening the rows", FIRST_STEP_S + job.dataset.tokens / _INDEXED_PER_S)
        sources = [open_source_once(job.dataset, number, split, world) for split in ("train", "held_out")]
        recipe, length, slots = self.recipe.in_phase(settings), settings.sequence_length, sources[0].slots
        self.phase = OpenPhase(
            number,
            settings,
            recipe,
            begin,
            min(begin + settings.steps, self.last_step),
            *sources,
            derive(self.recipe, settings, world.size).micro_batches,
            training_flops(
                lambda model: self.task.products(model, 1, length, slots), recipe.model, settings.trained_layers
            ),
        )
        grow(self)
        require_same_state(self.state, world)
        for hook in self.hooks:
            hook.phase()
        compiles = "tracing" if compute_policy(self.recipe).xla == "off" else "compiling with XLA"
        self.say(
            f"phase {number}: sequence length {settings.sequence_length}, {sources[0].count:,} rows an epoch; "
            f"{compiles} for the first step, which takes a while"
        )

    def say(self, text: str) -> None:
        """Print a line for people, on rank 0."""
        self.console.say(text)

    def doing(self, what: str, more_s: float = 0) -> None:
        """Tell the hooks what the run does from now on."""
        for hook in self.hooks:
            hook.doing(what, more_s)

    def position(self) -> dict[str, int]:
        """Where the run is in its data; it follows from the progress."""
        phase, progress = self.phase, self.state.progress
        batches = progress.step - phase.begin + progress.passed_over.get(str(phase.number), 0)
        epoch, row = divmod(batches * phase.settings.global_batch, phase.source.count)
        return {"phase": phase.number, "epoch": epoch, "row": row}

    def save_due(self, step: int) -> bool:
        """Whether a checkpoint is due after this step."""
        return step % self.recipe.execution.checkpoint_steps == 0 or step == self.phase.end

    def must_stop(self) -> bool:
        """Whether this rank was asked to stop, at a step after which ranks agree."""
        late = self.job.stop_at is not None and time.time() >= self.job.stop_at
        if self.directory is not None:
            late |= stop_requested(self.job.output_dir) or self.directory.now() != self.job.output_dir
        return STOP.asked or late

    def moved(self) -> tuple[bool, Path | None]:
        """Whether rank 0's output directory is not where it was, and where it is; None: it was removed.

        Equal on all ranks, which call it together; they may see the directory under another path.
        """
        now = self.directory.now() if self.directory is not None else None
        mine = [now != self.job.output_dir, str(now or "")]
        moved, where = from_rank_0(mine, self.world, "output_dir")
        return moved, Path(where) if where else None

    def summarise(self) -> None:
        """Say where the run is, its last evaluation and its checkpoint; nothing if it did no step."""
        progress = self.state.progress
        steps = progress.step - self.first_step
        if not steps:
            return
        figures = "".join(f"; {name.replace('_', ' ')} {value:.4f}" for name, value in self.held_out.items())
        self.say(
            f"at step {progress.step} of {self.recipe.total_steps}: {steps:,} steps in "
            f"{duration(time.monotonic() - self._started)}; {progress.skipped_steps} skipped{figures}"
        )
        self.say(f"checkpoint: {path_of(self.job.output_dir, progress.step)}")

    def close(self) -> None:
        """End all that watches."""
        for hook in reversed(self.hooks):
            hook.close()
        if self.journal is not None:
            self.journal.close()
        if hasattr(self, "console"):
            self.console.close()
        if self.directory is not None:
            self.directory.close()
        if self._takes_signals:
            STOP.end()
