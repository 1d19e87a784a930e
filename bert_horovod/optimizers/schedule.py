"""The learning rate of each step of a phase: warm-up, hold, decay."""

import bisect
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from bert_horovod.recipe.settings import Phase

# The form of a decay by its name, phase.decay: the share of the way from the peak to the end that is left, by the share
# s of the decay's steps that is left (1 in its first step, above 0 in its last).
SHAPES: dict[str, Callable[[float, Phase], float]] = {
    "power": lambda s, phase: s**phase.decay_power,  # linear by default, as in the papers
    # Hägele et al. 2024, arXiv 2405.18392
    "one_minus_sqrt": lambda s, _: 1 - math.sqrt(1 - s),
    # Loshchilov and Hutter 2017, arXiv 1608.03983, without restarts
    "cosine": lambda s, _: (1 - math.cos(math.pi * s)) / 2,
}


def learning_rate(phase: Phase, step: int) -> float:
    """The learning rate of an optimizer step, 1 to phase.steps; skipped steps count. Raises ValueError for others.

    T = steps, W = floor(T warmup), C = floor(T hold), lr the peak, e the end (Zheng et al. 2020, arXiv 2006.13484,
    where e is 0):

        step <= W:      lr step / W
        step <= W + C:  lr
        else            e + (lr - e) shape(s), where s = (T - step + 1) / (T - W - C)

    >>> phase = Phase(steps=10, learning_rate=1.0, warmup=0.2, hold=0.4)
    >>> [learning_rate(phase, step) for step in range(1, 11)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if not 1 <= step <= phase.steps:
        raise ValueError(f"step {step} is not in the phase's 1 to {phase.steps}")
    warmup_steps = whole_steps(phase.steps, phase.warmup)
    hold_steps = whole_steps(phase.steps, phase.hold)
    if step <= warmup_steps:
        return phase.learning_rate * step / warmup_steps
    if step <= warmup_steps + hold_steps:
        return phase.learning_rate
    share_left = (phase.steps - step + 1) / (phase.steps - warmup_steps - hold_steps)
    shape = SHAPES[phase.decay](share_left, phase)
    return phase.end_learning_rate + (phase.learning_rate - phase.end_learning_rate) * shape


def steps_without_rate(phase: Phase) -> int:
    """How many of the last steps of a phase have the learning rate 0, in float32.

    >>> steps_without_rate(Phase(steps=900)), steps_without_rate(Phase(steps=900, decay_power=1e9))
    (0, 890)
    """
    steps = range(1 + whole_steps(phase.steps, phase.warmup), phase.steps + 1)
    return len(steps) - bisect.bisect_left(steps, True, key=lambda step: not np.float32(learning_rate(phase, step)))


def whole_steps(steps: int, fraction: float) -> int:
    """floor(steps * fraction), with the fraction as the decimal of the recipe: 0.29 of 100 steps is 29, not 28.99...

    >>> whole_steps(100, 0.29), math.floor(100 * 0.29)
    (29, 28)
    """
    return math.floor(steps * Fraction(str(fraction)))
