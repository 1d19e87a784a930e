"""Evaluates the model on held-out rows, and compares the loss with that of earlier runs of the same recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bert_horovod.batches.source import Source
from bert_horovod.batches.text.mixture import HeldOutParts
from bert_horovod.collectives.world import World
from bert_horovod.model.forward import ComputePolicy, Forward, as_tensors
from bert_horovod.model.gpu_kernels.choice import compute_policy
from bert_horovod.model.weights import cast_weights
from bert_horovod.recipe.sections import Model
from bert_horovod.runs.directory import start_of
from bert_horovod.runs.reference_curves import references_of, text_key_of
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.tasks.base import Task
from bert_horovod.training.hooks.base import Hook, StepEvent
from bert_horovod.training.run import FIRST_STEP_S, Run


class Evaluator:
    """Evaluates a task on the first `count` held-out rows, each time the same rows with the same masks.

    Each rank takes a contiguous share of the rows, `micro_batch` of them at once.
    """

    def __init__(
        self,
        task: Task,
        model: Model,
        policy: ComputePolicy,
        source: Source,
        count: int,
        micro_batch: int,
        world: World,
    ) -> None:
        self.count = min(count, source.count)
        self._task = task
        self._source = source
        self._micro_batch = micro_batch
        self._world = world

        @tf.function(autograph=False)
        def sums_of(parameters: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
            sums = task.sums(Forward(model, cast_weights(parameters, policy.dtype), policy), batch)
            return tf.cast(tf.stack([sums[name] for name in task.sum_names]), tf.float64)

        self._sums = sums_of

    def evaluate(self, variables: dict[str, tf.Variable]) -> dict[str, float]:
        """The task's metrics over the held-out rows; equal on all ranks."""
        parameters = {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}
        first, last = (self.count * rank // self._world.size for rank in (self._world.rank, self._world.rank + 1))
        names = (*self._task.sum_names, *self._task.counts)
        total = np.zeros(len(names))
        for start in range(first, last, self._micro_batch):
            positions = np.arange(start, start + self._micro_batch)
            batch = self._source.assemble(np.where(positions < last, positions, -1))
            counts = self._task.batch_counts(batch)
            total += [*self._sums(parameters, as_tensors(batch)).numpy(), *counts.values()]
        total = self._world.all_reduce(tf.constant(total), "evaluation").numpy().tolist()
        sums = dict(zip(names, total, strict=True))
        counts = {name: max(1.0, sums[name]) for name in self._task.counts}  # 0 if, say, all rows are single segments
        return self._task.metrics({name: sums[name] for name in self._task.sum_names}, counts)


class StoresEvaluator:
    """Evaluates each store alone; the metrics are the means by `weights`, and those of each store.

    `begin` is called with the name of each before it is evaluated: twenty stores may take longer than one activity may.
    """

    def __init__(self, parts: dict[str, Evaluator], weights: dict[str, float], begin: Callable[[str], None]) -> None:
        self._parts, self._begin = parts, begin
        self._weights = weights if sum(weights.values()) else dict.fromkeys(weights, 1.0)

    def evaluate(self, variables: dict[str, tf.Variable]) -> dict[str, float]:
        """The metrics; equal on all ranks. That of store "own" is named as in mlm_loss.own."""
        found = {}
        for name, evaluator in self._parts.items():
            self._begin(name)
            found[name] = evaluator.evaluate(variables)
        total = sum(self._weights.values())
        return {
            metric: sum(self._weights[name] * found[name][metric] for name in found) / total
            for metric in next(iter(found.values()))
        } | {f"{metric}.{name}": mean for name, means in found.items() for metric, mean in means.items()}


class EvaluationHook(Hook):
    """Evaluates every execution.evaluate_steps steps and at a phase's end, with the job's evaluator if it has one."""

    def phase(self) -> None:
        run, execution, held_out = self.run, self.run.recipe.execution, self.run.phase.held_out
        self._more_s = FIRST_STEP_S  # until all is compiled
        if run.job.evaluator:
            self._evaluator = run.job.evaluator(run)
            return

        def evaluator(task: Task, source: Source) -> Evaluator:
            model, policy = run.phase.recipe.model, compute_policy(run.recipe)
            rows, micro_batch = execution.evaluate_rows, execution.micro_batch
            return Evaluator(task, model, policy, source, rows, micro_batch, run.world)

        if isinstance(held_out, HeldOutParts):
            task = replace(run.task, stores=())
            parts = {name: evaluator(task, rows) for name, rows in held_out.rows.items()}
            self._evaluator = StoresEvaluator(
                parts, held_out.weights, lambda name: run.doing(f"evaluating {name}", self._more_s)
            )
        else:
            self._evaluator = evaluator(run.task, held_out)

    def wants_state(self, step: int) -> bool:
        return self.run.evaluation_due(step)

    def step(self, event: StepEvent) -> None:
        run = self.run
        if not self.wants_state(event.step):
            return
        run.doing("evaluating", self._more_s)
        means = self._evaluator.evaluate(run.state.parameters)
        self._more_s = 0.0
        run.held_out = {f"held_out_{name}": mean for name, mean in means.items()}
        if run.journal is not None:
            run.journal.record({"step": event.step, **run.held_out})
        run.say("held out: " + "  ".join(f"{name} {mean:.4f}" for name, mean in means.items()))


class ExpectedLossHook(Hook):
    """Prints on rank 0 when the loss leaves the band of earlier runs, and when it is back in the band."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._reference = None
        if run.world.rank == 0:
            fresh = run.job.initial is None and not start_of(run.job.output_dir).weights
            found = references_of(run.recipe, text_key_of(run.recipe, run.job.dataset), fresh)
            self._reference = next((reference for reference in found if reference.means), None)
        self._losses: list[float] = []
        self._outside = False

    def step(self, event: StepEvent) -> None:
        reference, journal = self._reference, self.run.journal
        if reference is None or journal is None:
            return
        self._losses.append(event.loss)
        if event.step % reference.window:
            return
        text, self._losses = reference.judge(event.step, self._losses), []
        if text and not self._outside:
            journal.incident(event.step, text)
        elif self._outside and not text and reference.bounds((event.step - 1) // reference.window):
            journal.incident(event.step, f"at step {event.step} the loss is again as in other runs of this recipe")
        self._outside = bool(text)

    def rolled_back(self) -> None:
        self._losses = []
