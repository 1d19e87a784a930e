"""When does more pre-training stop paying? Short fine-tunings of a run's parameters, each on a copy."""

import contextlib
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.finetuning.classifier import TextFinetuning
from bert_horovod.finetuning.sweep import Variant, train_all
from bert_horovod.finetuning.text_data import Files, TextData, glue_data
from bert_horovod.interchange.huggingface import write_directory
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.checkpoint import paths
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.job import Job
from bert_horovod.training.run import Run

STEPS = 300  # of a probe, at most
EPOCHS = 3.0  # at most
_PATIENCE_S = 3600.0  # of the run's watchdog; the probe has one of its own


def probe_data(task: str, data_dir: Path) -> TextData:
    """The train and dev files of a task of GLUE: a probe answers no test file. Raises ReportedError as glue_data."""
    return replace(glue_data(task, Files(data_dir)), test={})


def probe_job(finetuning: TextFinetuning, output_dir: Path, overrides: list[str], world_size: int, **options) -> Job:
    """A short fine-tuning with the task's defaults: EPOCHS of the train examples, or STEPS if that is less.

    Raises:
        UserError: a setting is not what it should be, or does not fit.
    """
    overrides = ["execution.tensorboard=false", "execution.keep_checkpoints=1", *overrides]
    job = finetuning.job(output_dir, EPOCHS, overrides, world_size, **options)
    if job.recipe.total_steps <= STEPS or any(each.startswith("phase.0.steps=") for each in overrides):
        return job
    steps = [f"phase.0.steps={STEPS}", f"execution.evaluate_steps={STEPS}", f"execution.checkpoint_steps={STEPS}"]
    return finetuning.job(output_dir, EPOCHS, [*steps, *overrides], world_size, **options)


class ProbeHook(Hook):
    """Probes after each evaluation; metrics.jsonl gets the scores as probe_*. The run's own numbers stay as they are.

    All ranks fine-tune together. Each reads the data for itself, and keeps the copy in its host's temporary directory.

    Args:
        data: the task that is fine-tuned on, and its files.
        run: a pre-training.
    """

    def __init__(self, data: TextData, run: Run) -> None:
        super().__init__(run)
        self._data = data

    def step(self, event: StepEvent) -> None:
        run, every = self.run, self.run.recipe.execution.evaluate_steps
        if not ((every and event.step % every == 0) or event.step == run.phase.end):
            return
        run.doing("probing", _PATIENCE_S)
        try:
            scores = self._scores()
        except UserError as error:  # the same on all ranks
            run.say(f"probe on {self._data.name} left out: {error}")
            return
        if scores is None:
            return
        if run.journal is not None:
            run.journal.record({"step": event.step, **{f"probe_{name}": value for name, value in scores.items()}})
        told = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        run.say(f"probe on {self._data.name}: {told}")

    def _scores(self) -> dict[str, float] | None:
        """The dev scores of a copy that was fine-tuned; None if the run was asked to stop meanwhile."""
        run = self.run
        with tempfile.TemporaryDirectory(prefix="bert-horovod-probe-") as name:
            copy, output_dir = Path(name) / "checkpoint", Path(name) / "run"
            output_dir.mkdir()
            parameters = {name: variable.numpy() for name, variable in run.state.parameters.items()}
            dataset = run.job.dataset
            write_directory(copy, run.phase.recipe.model, run.task, parameters, dataset.vocabulary, dataset.lowercase)
            with _quietly():
                job = probe_job(TextFinetuning(self._data, copy), output_dir, _like(run.recipe), run.world.size)
                done = train_all([job], [Variant(None, None)], run.world, lambda text: None)
        gc.collect()
        return done[0].scores if done else None


def probe_all(jobs: list[Job], world: World) -> list[tuple[str, dict[str, float]]] | None:
    """Do the probes of several checkpoints that are not done yet: names and scores; None if one was asked to stop."""
    found = []
    for number, job in enumerate(jobs):
        if world.rank == 0:
            print(f"checkpoint {number + 1} of {len(jobs)}: {job.output_dir.name}", flush=True)
        with _quietly():
            done = train_all([job], [Variant(None, None)], world, lambda text: None)
        if done is None:
            return None
        if world.rank == 0:  # of checkpoints two thirds, which nobody will resume
            for checkpoint in paths(job.output_dir):
                shutil.rmtree(checkpoint / "training", ignore_errors=True)
        found.append((job.output_dir.name, done[0].scores))
    return found


def _like(recipe: Recipe) -> list[str]:
    """Settings of a probe that are those of its run."""
    execution = recipe.execution
    return [
        f"numerics.precision='{recipe.numerics.precision}'",
        f"execution.xla='{execution.xla}'",
        f"execution.threads={execution.threads}",
        f"execution.stall_s={execution.stall_s}",
        f"data.seed={recipe.data.seed}",
    ]


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """What a run prints for people is not printed."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
