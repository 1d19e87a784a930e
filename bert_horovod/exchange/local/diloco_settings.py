"""DiLoCo as recipes, plans and checks see it; diloco.py has the code."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from bert_horovod.errors import UserError
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.reductions import reductions
from bert_horovod.recipe.sections import ExchangeMethod, Phase, Recipe, Shape, Stage


@dataclass(frozen=True)
class DiLoCoSettings(ExchangeMethod):
    """Local updates with any optimizer, and an outer step with the mean of the distances that ranks have moved."""

    method: str = named("diloco")
    # Steps between two outer steps of a parameter. Published with 30 to 500; ranks train alone in between, so the
    # learning rate must be tuned again
    interval: int = setting(30, minimum=1)
    outer_rate: float = setting(0.7, above=0)  # learning rate of the outer step; 1 without outer_momentum: an average
    # Decay of the outer step's Nesterov momentum. Published with 0.9 for inner adamw
    outer_momentum: float = setting(0.9, minimum=0, below=1)
    # Parts of equal bytes whose outer steps come one after another, each interval / fragments steps after the one
    # before, so that fewer bytes are sent at once
    fragments: int = setting(1, minimum=1)
    # Steps during which a fragment's sum over ranks is sent, while training goes on; its outer step comes after them.
    # 0: at once, and ranks wait for it
    delay: int = setting(0, minimum=0)
    # With a delay: weight of a rank's own numbers when an outer step replaces them. What a rank has trained during the
    # delay is lost with 0
    mixing: float = setting(0.5, minimum=0, maximum=1)

    slots: ClassVar[tuple[str, ...]] = ("outer_momentum",)
    overlaps: ClassVar[bool] = False
    for_one_rank: ClassVar[bool] = True
    trains_copies: ClassVar[bool] = True
    price: ClassVar[str] = (
        "ranks train alone between outer steps: learning rates must be found again; BERT-mini, 400 steps in fragments, "
        "interval 30: 0.05 nats behind float32"
    )

    def code(self) -> type:
        from bert_horovod.exchange.local.diloco import DiLoCoExchange

        return DiLoCoExchange

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        wire, reduction = recipe.numerics.wire, self.reduction(recipe)
        if not self.delay:
            return [Stage("local", 1.0, wire, reduction, during_backward=False, after=1 / self.interval)]
        sending = self.delay / self.period  # share of steps
        each = 1 / (self.fragments * self.delay)
        return [
            Stage("sending", sending, wire, reduction, during_backward=False, meanwhile=each),
            Stage("alone", 1 - sending, wire, reduction, during_backward=False),
        ]

    @property
    def period(self) -> int:
        """Steps between the outer steps of two fragments."""
        return self.interval // self.fragments

    @property
    def cycle(self) -> int:
        return self.interval

    def kept_numbers(self, recipe: Recipe, shapes: dict[str, Shape]) -> float:
        copies = 1 + 1 / self.fragments + (recipe.numerics.wire == "int8")  # parameters, numbers on the way, errors
        return copies * sum(map(math.prod, shapes.values()))

    def check(self, recipe: Recipe) -> None:
        if self.interval % self.fragments:
            raise UserError(
                f"exchange.fragments = {self.fragments}: their outer steps are spread evenly over exchange.interval = "
                f"{self.interval} steps; expected a divisor of it"
            )
        if self.delay > self.period:
            raise UserError(
                f"exchange.delay = {self.delay}: the next fragment is sent {self.period} steps later "
                f"(exchange.interval = {self.interval} / exchange.fragments = {self.fragments}); expected at most that"
            )

    def reduction(self, recipe: Recipe) -> str:
        """The way to sum: two_step where the recipe allows it, because it rounds narrow numbers twice only."""
        return "two_step" if "two_step" in reductions(recipe) else "ring"

    def sums_by_host(self, reductions: tuple[str, ...]) -> bool:
        return "two_step" in reductions

    @classmethod
    def offered(cls, recipe: Recipe, steps: int) -> Recipe:
        fragments = min(steps, 4)
        return replace(recipe, exchange=cls(interval=steps, fragments=fragments, delay=steps // fragments))
