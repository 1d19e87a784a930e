"""MT-DAO as recipes, plans and checks see it; mt_dao.py has the code."""

import math
from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.exchange.local.local_settings import LocalSettings, local_stage
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import Phase, Recipe, Shape, Stage


@dataclass(frozen=True)
class MtDaoSettings(LocalSettings):
    """Averages of parameters, of a slow momentum and of the second moment, each at an interval of its own."""

    method: str = named("mt_dao")
    momentum_interval: int = setting(0, minimum=0)  # steps between two averages of the slow momentum; 0: as interval
    # Steps between two averages of the second moment; 0: as interval
    second_moment_interval: int = setting(0, minimum=0)
    # Decay of the slow momentum; slow_weight is its weight. The paper uses decays from 0.99 to 0.999 and, for the
    # second moment, optimizer.beta_2 = 0.9999, and searches for the weight. Tune both: with decay 0.99 and weight 0.9 a
    # toy model was worse than with plain local adamw
    slow_beta: float = setting(0.99, minimum=0, below=1)
    slow_weight: float = setting(0.9, minimum=0, maximum=1)  # weight of the slow momentum, see slow_beta

    experimental: ClassVar[bool] = True
    optimizer: ClassVar[str] = "adamw"
    why_optimizer: ClassVar[str] = (
        "has an update rule of its own, which takes beta_2, epsilon, weight_decay and max_grad_norm of adamw"
    )
    intervals: ClassVar[tuple[str, ...]] = ("interval", "momentum_interval", "second_moment_interval")

    def code(self) -> type:
        from bert_horovod.exchange.local.mt_dao import MtDaoExchange

        return MtDaoExchange

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        return [local_stage(after=sum(1 / interval for interval in self.all_intervals))]

    @property
    def all_intervals(self) -> tuple[int, int, int]:
        """Steps between two averages: of parameters, of the slow momentum, of the second moment."""
        return self.interval, self.momentum_interval or self.interval, self.second_moment_interval or self.interval

    @property
    def agreement(self) -> int:
        return math.lcm(*self.all_intervals)
