"""The fraction of tokens that a phase masks: it may fall, or rise, with the step that a row is trained in."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import Objective, Phase

# A phase goes down in stairs of about STAIR_STEPS steps, two to STAIRS of them: on each, a row has one number of masked
# places, and the step is compiled once. More stairs save work at places that hold nothing, and cost compilations.
STAIRS, STAIR_STEPS = 8, 500


def masked_count(tokens: np.ndarray | int, fraction: np.ndarray | float) -> np.ndarray:
    """Masked positions of sequences with that many ordinary tokens: round(fraction * tokens), at least 1; int64."""
    return np.maximum(1, np.rint(fraction * np.asarray(tokens))).astype(np.int64)


@dataclass(frozen=True)
class MaskRate:
    """A phase's fraction of masked tokens: from `first` to `last`, linear in the phase's `steps`.

    It is a pure function of a row's position, as all that makes a row: a row is trained in step
    position // global_batch of its phase. So ranks, a resumed run, and whoever makes a micro-batch again from its
    positions have the same masks. Rows beyond the phase's end, which a rollback brings, have the rate `last`.

    >>> MaskRate(0.35, 0.15, steps=100, global_batch=4).at(np.array([0, 3, 200, 999])).round(3).tolist()
    [0.35, 0.35, 0.25, 0.15]
    """

    first: float
    last: float
    steps: int = 1
    global_batch: int = 1

    def at(self, positions: np.ndarray) -> np.ndarray:
        """The fraction in the rows at these positions; float64, the shape of `positions`."""
        return self._in_step(np.asarray(positions) // self.global_batch)

    def stair(self, positions: np.ndarray) -> np.ndarray:
        """The number of the stair, an index of `stairs`, that the rows at these positions are on."""
        step = np.minimum(np.asarray(positions) // self.global_batch, self.steps - 1)
        return step * len(self.stairs) // self.steps

    @cached_property
    def stairs(self) -> list[float]:
        """The largest fraction in each of up to STAIRS equal parts of the phase."""
        count = 1 if self.first == self.last else min(STAIRS, self.steps, max(2, -(-self.steps // STAIR_STEPS)))
        ends = self._in_step(-(-np.arange(count + 1) * self.steps // count))
        return np.maximum(ends[:-1], ends[1:]).tolist()

    def _in_step(self, step: np.ndarray) -> np.ndarray:
        return self.first + (self.last - self.first) * np.minimum(step, self.steps) / self.steps


def mask_rate(recipe: Recipe, phase: Phase) -> MaskRate:
    """The rate of a phase's rows for training."""
    first = phase.masked_fraction or recipe.objective.masked_fraction
    return MaskRate(first, phase.masked_fraction_end or first, phase.steps, phase.global_batch)


def held_out_rate(objective: Objective) -> MaskRate:
    """The rate of held-out rows: one for all phases."""
    fraction = objective.held_out_masked_fraction or objective.masked_fraction
    return MaskRate(fraction, fraction)


class RowSlots(NamedTuple):
    """Masked positions of a row that one sequence fills, in a phase."""

    mean: int  # over the phase's steps, rounded
    most: int


def full_row_slots(recipe: Recipe, phase: Phase) -> RowSlots:
    """Masked positions of a full row; [CLS], [SEP] and a pair's second [SEP] cannot be masked."""
    tokens = phase.sequence_length - (3 if recipe.objective.pairs else 2)
    slots = masked_count(tokens, np.array(mask_rate(recipe, phase).stairs))
    return RowSlots(round(slots.mean()), int(slots.max()))
