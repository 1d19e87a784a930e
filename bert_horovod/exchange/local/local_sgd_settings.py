"""Local updates as recipes, plans and checks see them; local_sgd.py has the code."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.exchange.local.local_settings import LocalSettings, local_stage, slots_a_parameter
from bert_horovod.recipe.fields import named
from bert_horovod.recipe.sections import Phase, Recipe, Shape, Stage


@dataclass(frozen=True)
class LocalSgdSettings(LocalSettings):
    """Averages of all parameters and slots at once, with any optimizer."""

    method: str = named("parameters")

    price: ClassVar[str] = (
        "wire float32; ranks train alone between averages: learning rates must be found again; BERT-mini, 8 steps: "
        "0.013 nats behind float32"
    )

    def code(self) -> type:
        from bert_horovod.exchange.local.local_sgd import LocalSgdExchange

        return LocalSgdExchange

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        return [local_stage(after=(1 + slots_a_parameter(recipe, shapes)) / self.interval)]

    @classmethod
    def offered(cls, recipe: Recipe, steps: int) -> Recipe:
        numerics = dataclasses.replace(recipe.numerics, wire="float32")
        return dataclasses.replace(recipe, exchange=cls(interval=steps), numerics=numerics)
