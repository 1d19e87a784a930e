"""The exchange of gradients as recipes, plans and checks see it; gradients.py has the code."""

import math
from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import ExchangeMethod, Phase, Recipe, Shape, Stage


@dataclass(frozen=True)
class GradientsSettings(ExchangeMethod):
    """Gradients, in each step, in the dtype of numerics.wire."""

    method: str = named("gradients")
    # With the int8 wire each rank stores its rounding errors and adds them in the next step, so that nothing is lost
    # over several steps (Seide et al. 2014; Tang et al. 2021, arXiv 2102.02888); needs 4 to 6 bytes of memory per
    # parameter
    error_feedback: bool = setting(True)

    clips_buckets: ClassVar[bool] = True
    grows: ClassVar[bool] = True
    in_place: ClassVar[bool] = True
    for_one_rank: ClassVar[bool] = True

    def code(self) -> type:
        from bert_horovod.exchange.dense.gradients import GradientExchange

        return GradientExchange

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        return [Stage("dense", 1.0, recipe.numerics.wire, reduction)]

    def kept_numbers(self, recipe: Recipe, shapes: dict[str, Shape]) -> float:
        kept = recipe.numerics.wire == "int8" and self.error_feedback
        return sum(map(math.prod, shapes.values())) * kept  # worker errors; server errors are few

    def sends_less(self, recipe: Recipe) -> str:
        return "numerics.wire = 'int8'" if recipe.numerics.wire == "int8" else ""

    def rows_alone(self, recipe: Recipe) -> bool:
        return recipe.numerics.wire != "int8"  # see dense/reducer.py

    def sums_by_host(self, reductions: tuple[str, ...]) -> bool:
        return reductions == ("two_step",)

    def may_sum_in_two_steps(self, reductions: tuple[str, ...]) -> bool:
        return "two_step" in reductions
