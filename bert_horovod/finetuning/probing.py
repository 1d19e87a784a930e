"""Probes: short fine-tunings of copies of a run's parameters, to see when more pre-training no longer helps."""

import contextlib
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.base import Kind
from bert_horovod.finetuning.kinds.kinds import kind_of_task
from bert_horovod.finetuning.sweep import Variant, train_all
from bert_horovod.interchange.huggingface import write_directory
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.checkpoint import paths
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.job import Job
from bert_horovod.training.run import Run

STEPS = 300  # of a probe, at most
EPOCHS = 3.0  # at most
_PATIENCE_S = 3600.0  # for the run's watchdog; the probe has its own watchdog


def probe_data(task: str, files: Files, flags: Mapping[str, Any] = MappingProxyType({})) -> Kind:
    """The train and dev files of a task; a probe needs no test files. Raises ReportedError as Kind.read."""
    kind = kind_of_task(task).read(task, files, flags)
    kind.data = replace(kind.data, test={})
    return kind


def probe_job(finetuning: Finetuning, output_dir: Path, overrides: list[str], world_size: int, **options) -> Job:
    """A short fine-tuning with the task's defaults: EPOCHS of the train examples, or STEPS if that is less.

    Raises UserError if a setting is invalid, or does not fit.
    """
    overrides = ["execution.trackers=[]", "execution.keep_checkpoints=1", *overrides]
    job = finetuning.job(output_dir, EPOCHS, overrides, world_size, **options)
    if job.recipe.total_steps <= STEPS or any(override.startswith("phase.0.steps=") for override in overrides):
        return job
    steps = [f"phase.0.steps={STEPS}", f"execution.evaluate_steps={STEPS}", f"execution.checkpoint_steps={STEPS}"]
    return finetuning.job(output_dir, EPOCHS, [*steps, *overrides], world_size, **options)


class ProbeHook(Hook):
    """Probes after each evaluation, and records the scores in metrics.jsonl as probe_*; does not change the run.

    All ranks fine-tune together. Each rank reads the data, and writes the copy of the parameters to its host's
    temporary directory.
    """

    def __init__(self, kind: Kind, run: Run) -> None:
        super().__init__(run)
        self._kind, self._name = kind, kind.data.name

    def wants_state(self, step: int) -> bool:
        return self.run.evaluation_due(step)

    def step(self, event: StepEvent) -> None:
        run = self.run
        if not self.wants_state(event.step):
            return
        run.doing("probing", _PATIENCE_S)
        try:
            scores = self._scores()
        except UserError as error:  # the same on all ranks
            run.say(f"probe on {self._name} left out: {error}")
            return
        if scores is None:
            return
        if run.journal is not None:
            run.journal.record({"step": event.step, **{f"probe_{name}": score for name, score in scores.items()}})
        text = "  ".join(f"{name} {score:.4f}" for name, score in scores.items())
        run.say(f"probe on {self._name}: {text}")

    def _scores(self) -> dict[str, float] | None:
        """Fine-tune a copy of the parameters; returns its dev scores, None if the run was asked to stop meanwhile."""
        run = self.run
        with tempfile.TemporaryDirectory(prefix="bert-horovod-probe-") as name:
            copy, output_dir = Path(name) / "checkpoint", Path(name) / "run"
            output_dir.mkdir()
            parameters = {name: variable.numpy() for name, variable in run.state.parameters.items()}
            dataset = run.job.dataset
            write_directory(
                copy, run.phase.recipe.model, run.task, parameters, dataset.vocabulary, dataset.tokenizer_settings
            )
            with _quietly():
                job = probe_job(
                    Finetuning(self._kind, find_checkpoint(copy)), output_dir, _like(run.recipe), run.world.size
                )
                done = train_all([job], [Variant(None, None)], run.world, lambda _: None)
        gc.collect()
        return done[0].scores if done else None


def hook(task: str, data_dir: Path) -> Callable[[Run], Hook]:
    """A factory of the run's hook that probes on a task, for Job.hooks; raises the errors of probe_data."""
    return partial(ProbeHook, probe_data(task, Files(data_dir)))


def probe_all(jobs: list[Job], world: World) -> list[tuple[str, dict[str, float]]] | None:
    """Probe several checkpoints, except those done before; returns names and scores, None if asked to stop."""
    probed = []
    for number, job in enumerate(jobs):
        if world.rank == 0:
            print(f"checkpoint {number + 1} of {len(jobs)}: {job.output_dir.name}", flush=True)
        with _quietly():
            done = train_all([job], [Variant(None, None)], world, lambda _: None)
        if done is None:
            return None
        if world.rank == 0:  # two thirds of a checkpoint; nobody will resume a probe
            for checkpoint in paths(job.output_dir):
                shutil.rmtree(checkpoint / "training", ignore_errors=True)
        probed.append((job.output_dir.name, done[0].scores))
    return probed


def _like(recipe: Recipe) -> list[str]:
    """The settings that a probe takes from its run."""
    execution = recipe.execution
    return [
        f"numerics.precision='{recipe.numerics.precision}'",
        f"execution.xla='{execution.xla}'",
        f"execution.kernels='{'xla' if execution.kernels == 'xla' else 'auto'}'",  # "triton" may not serve its lengths
        f"execution.threads={execution.threads}",
        f"execution.stall_s={execution.stall_s}",
        f"data.seed={recipe.data.seed}",
    ]


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Hold back what a run prints to standard output."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
