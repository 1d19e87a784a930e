"""DreamDDP as recipes, plans and checks see it; dreamddp.py has the code."""

import math
from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.errors import UserError
from bert_horovod.exchange.local.local_settings import LocalSettings, local_stage, slots_a_parameter
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import Phase, Recipe, Shape, Stage


@dataclass(frozen=True)
class DreamDdpSettings(LocalSettings):
    """Averages of one part of the parameters in each step, while it computes."""

    method: str = named("dreamddp")
    # Steps between two averages of all parameters and slots at once. Ranks are equal only after such an average, so
    # checkpoints, evaluations and comparisons of ranks must fall on it, and a request to stop waits for it. Backward
    # does not hide it: it takes as long as an average of all parameters, times 1 + the number of slots
    full_interval: int = setting(100, minimum=1)

    intervals: ClassVar[tuple[str, ...]] = ("full_interval",)

    def code(self) -> type:
        from bert_horovod.exchange.local.dreamddp import DreamDdpExchange

        return DreamDdpExchange

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        after = (1 + slots_a_parameter(recipe, shapes)) / self.full_interval
        return [local_stage(meanwhile=1 / self.interval, after=after)]

    @property
    def agreement(self) -> int:
        return self.full_interval

    @property
    def cycle(self) -> int:
        return self.interval

    def kept_numbers(self, recipe: Recipe, shapes: dict[str, Shape]) -> float:
        return sum(map(math.prod, shapes.values())) / self.interval

    def sends_less(self, recipe: Recipe) -> str:
        return ""  # it judges its interval itself, by its own steps

    def check(self, recipe: Recipe) -> None:
        if self.full_interval % self.interval:
            raise UserError(
                f"exchange.full_interval = {self.full_interval}: every parameter is averaged once in exchange.interval "
                f"= {self.interval} steps; expected a multiple of it"
            )
