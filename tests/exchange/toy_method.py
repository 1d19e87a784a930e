"""An exchange that is one file: gradients that are multiplied by a setting. Test_methods.py adds its one line."""

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.exchange.dense.gradients import GradientExchange
from bert_horovod.exchange.dense.reducer import whole
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import ExchangeMethod, Recipe, Shape, Stage
from bert_horovod.recipe.settings import Phase


class ScaledGradients(GradientExchange):
    """See exchange.base.Exchange."""

    def __init__(self, recipe: Recipe, *arguments, **options) -> None:
        super().__init__(recipe, *arguments, **options)
        self._factor = recipe.exchange.factor

    def update(self, gradients, lookups, inputs, clock):
        scaled = {name: self._factor * gradient for name, gradient in whole(gradients, lookups).items()}
        return super().update(scaled, {}, inputs, clock)


@dataclass(frozen=True)
class ScaledGradientsSettings(ExchangeMethod):
    """Gradients times a factor, in each step."""

    method: str = named("scaled_gradients")
    code: ClassVar[type] = ScaledGradients
    factor: float = setting(0.5, above=0)  # multiplies each gradient

    wires: ClassVar[tuple[str, ...]] = ("float32", "float16")
    why_wires: ClassVar[str] = "keeps no rounding errors"

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        return [Stage("dense", 1.0, recipe.numerics.wire, reduction)]
