"""Settings that the methods with local updates share: ranks update alone, and average; local_step.py has the code."""

import math
from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.optimizers.base import slot_numbers
from bert_horovod.recipe.fields import setting
from bert_horovod.recipe.sections import ExchangeMethod, Recipe, Shape, Stage


@dataclass(frozen=True)
class LocalSettings(ExchangeMethod):
    """Averages of parameters; in between each rank updates alone."""

    # Steps between two averages of a parameter over ranks. In between each rank updates alone, so the learning rate
    # must be tuned again: on a toy model with interval 8 three times Adam's learning rate was best (loss 3.260 nats;
    # Adam with its own best rate: 3.234), and intervals 4 and 32 made no difference. MT-DAO was published with 32,
    # DreamDDP with 5 to 10
    interval: int = setting(1, minimum=1)

    wires: ClassVar[tuple[str, ...]] = ("float32",)
    why_wires: ClassVar[str] = "sends parameters, whose small changes a narrow one would round away"
    intervals: ClassVar[tuple[str, ...]] = ("interval",)
    overlaps: ClassVar[bool] = False

    @property
    def agreement(self) -> int:
        return self.interval


def local_stage(**sums: float) -> Stage:
    """The one stage of a local method; `sums`: see Stage."""
    return Stage("local", 1.0, "float32", "ring", during_backward=False, **sums)


def slots_a_parameter(recipe: Recipe, shapes: dict[str, Shape]) -> float:
    """Numbers in slots over numbers in parameters, of these shapes."""
    return slot_numbers(recipe, shapes) / sum(map(math.prod, shapes.values()))
