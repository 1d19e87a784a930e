"""Local updates: each rank updates its own parameters, and ranks average them at an interval of steps (local SGD).

    x_r, m_r, v_r <- rule(x_r, m_r, v_r, n g_r)          every step; g_r: rank r's share of the gradient, n ranks
    x_r <- (x_1 + ... + x_n) / n, and so m_r and v_r     after every exchange.interval steps

(Stich 2019, arXiv 1805.09767.) The rule may be any optimizer's. Slots are averaged with the parameters, so that after
an average all ranks are equal, and the run may be compared, evaluated and saved. With adamw that is three times the
bytes; on a toy model the loss was 3.249 nats so, and 3.260 with parameters alone.

g_1 + ... + g_n is the global gradient. So with plain SGD and an interval of 1 the average is
x - lr (g_1 + ... + g_n), the same as with the exchange of gradients, up to rounding. With adamw and an interval of 1, m
is the same as with the exchange of gradients at the same parameters, but v is not: it is the mean of the ranks' squared
gradients, which contains the variance over ranks; the exchange of gradients squares the mean. Each rank clips by the
norm of its own gradient.

Between averages ranks differ, so nothing may be compared, evaluated or saved there: recipe/checking.py allows
these only at steps that the interval divides.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.exchange.local.local_step import LocalExchange, LocalSettings, local_stage, slots_a_parameter
from bert_horovod.recipe.fields import named
from bert_horovod.recipe.sections import Recipe, Shape, Stage
from bert_horovod.recipe.settings import Phase


class LocalSgdExchange(LocalExchange):
    """See exchange.local.local_step.LocalExchange."""

    def after_step(self, step: int, loss: float) -> str:
        if self.ranks_equal_after(step) and self._world.size > 1:
            self._average()
        return ""

    def _numbers_reduced(self) -> float:
        return self._numbers / self._agreement


@dataclass(frozen=True)
class LocalSgdSettings(LocalSettings):
    """Averages of all parameters and slots at once, with any optimizer."""

    method: str = named("parameters")
    code: ClassVar[type] = LocalSgdExchange

    price: ClassVar[str] = (
        "wire float32; ranks train alone between averages: learning rates must be found again; BERT-mini, 8 steps: "
        "0.013 nats behind float32"
    )

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        return [local_stage(after=(1 + slots_a_parameter(recipe, shapes)) / self.interval)]

    @classmethod
    def offered(cls, recipe: Recipe, steps: int) -> Recipe:
        numerics = dataclasses.replace(recipe.numerics, wire="float32")
        return dataclasses.replace(recipe, exchange=cls(interval=steps), numerics=numerics)
