"""Predict, before settings are tried, whether they fit into memory and how long a step takes."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from bert_horovod.costs.backward_profile import computed_profile
from bert_horovod.costs.derived import derive
from bert_horovod.costs.planner import accumulation_bytes, update_bytes
from bert_horovod.measuring.tuning.trials import Settings, Trial
from bert_horovod.model.parameters import trained_shapes
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Recipe

# The memory estimate is within 15 % of the measured peak (docs/results/memory.md): above this times the limit a
# candidate cannot fit.
ESTIMATE_MARGIN = 1.15


@dataclasses.dataclass(frozen=True)
class Pace:
    """The machine's speed, computed from a trial."""

    flops_per_s: float  # of forward and backward
    bytes_per_s: float  # of the update: the bytes that it must move, over its seconds
    waiting_s: float  # in a step, for sums over ranks and for rows


class Prediction:
    """The planner's arithmetic for a recipe on this machine.

    Args:
        recipe: the recipe before tuning.
        phase: number of the phase that is measured.
        world_size: number of ranks.
        slots: for each phase, a row's slots for masked positions and for sequences.
        memory_bytes: memory that a rank may take; None: unknown.
        capability: compute capability of the ranks' GPUs; None: they have none.
    """

    def __init__(
        self,
        recipe: Recipe,
        phase: int,
        world_size: int,
        slots: Sequence[tuple[int, int]],
        memory_bytes: float | None,
        capability: tuple[int, int] | None,
    ) -> None:
        self._recipe, self._phase, self._world_size, self._slots = recipe, phase, world_size, slots
        self._memory_bytes, self._capability = memory_bytes, capability

    def memory_bytes(self, settings: Settings) -> int:
        """The estimate of a rank's peak memory, in the phase that needs most."""
        recipe = with_settings(self._recipe, settings)
        return max(
            derive(recipe, phase, self._world_size, slots, self._capability).memory_bytes
            for phase, slots in zip(recipe.phase, self._slots, strict=True)
        )

    def fits(self, settings: Settings) -> bool:
        """Whether the settings may fit into memory."""
        return self._memory_bytes is None or self.memory_bytes(settings) <= ESTIMATE_MARGIN * self._memory_bytes

    def pace(self, settings: Settings, trial: Trial) -> Pace:
        """The machine's pace, computed from a trial of these settings."""
        work = self._work(settings)
        waiting_s = trial.reduce_wait_s + trial.input_wait_s
        return Pace(work.flops / trial.micro_batch_s, work.update_bytes / max(trial.update_s, 1e-9), waiting_s)

    def step_s(self, settings: Settings, pace: Pace) -> float:
        """Seconds of a whole step with these settings, if the machine does their work at this pace."""
        work = self._work(settings)
        moved_s = (work.accumulation_bytes + work.update_bytes) / pace.bytes_per_s
        return work.micro_batches * work.flops / pace.flops_per_s + moved_s + pace.waiting_s

    def _work(self, settings: Settings) -> "_Work":
        recipe = with_settings(self._recipe, settings)
        phase, ranks = recipe.phase[self._phase], self._world_size
        derived = derive(recipe, phase, ranks)
        count, deep = derived.micro_batches, recipe.in_phase(phase)
        shapes = pretraining_shapes(deep.model, recipe.objective.pairs)
        trained = trained_shapes(shapes, deep.model, phase.trained_layers)
        return _Work(
            count,
            computed_profile(deep, phase, ranks, 1.0).end_s,
            accumulation_bytes(recipe, derived.trained, count),
            update_bytes(recipe, trained, count, ranks),
        )


class _Work(NamedTuple):
    """The work of a rank in a step."""

    micro_batches: int
    flops: float  # of one micro-batch, forward and backward, with recomputation
    accumulation_bytes: int  # moved through memory to add up gradients
    update_bytes: int  # moved through memory by the update


def with_settings(recipe: Recipe, settings: Settings) -> Recipe:
    """The recipe with other settings of [execution]."""
    return dataclasses.replace(recipe, execution=dataclasses.replace(recipe.execution, **settings))


def longest_phase(recipe: Recipe) -> int:
    """The number of the phase that should take longest: steps times rows times FLOPs of a row."""

    def flops(number: int) -> float:
        phase = recipe.phase[number]
        return phase.steps * phase.global_batch * derive(recipe, phase, 1).flops_per_row

    return max(range(len(recipe.phase)), key=flops)
