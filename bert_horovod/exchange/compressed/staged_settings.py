"""Settings that the 1-bit methods share: dense gradients at first, then compressed momenta; staged.py has the code."""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from bert_horovod.errors import UserError
from bert_horovod.optimizers.schedule import whole_steps
from bert_horovod.recipe.fields import setting
from bert_horovod.recipe.sections import ExchangeMethod, Phase, Recipe, Shape, Stage

# Plans assume this share for dense = "auto": published shares are 0.15 to 0.25 (arXiv 2102.02888).
AUTO_DENSE = 0.2
SIGNS = ("signs", "two_step")  # wire of compressed sums and the way to sum them, for a Stage


@dataclass(frozen=True)
class StagedSettings(ExchangeMethod):
    """Signs of momenta, once the second moment is frozen."""

    # Fraction of each phase's steps, from its start, with dense gradients, at least the learning rate's warm-up;
    # published recipes have 0.15 to 0.25 (arXiv 2102.02888). zero_one_adam: fraction of the steps in which the second
    # moment v is still updated; the warm-up is enough (arXiv 2202.06009). auto: until v changes little; see
    # exchange/compressed/stages.py
    dense: float | Literal["auto"] = setting(0.2, minimum=0, maximum=1)
    # The data that are compressed. normalized: the update, with one scale per tensor; published: the momentum, with one
    # scale per bucket, as in the papers' code; see exchange/compressed/compressed_sums.py
    form: str = setting("normalized", choices=("normalized", "published"))

    wires: ClassVar[tuple[str, ...]] = ("float32", "float16")
    why_wires: ClassVar[str] = "decides the second moment by its dense gradients"

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        learning = self.learning_steps(phase)
        return [
            Stage("dense", learning / phase.steps, recipe.numerics.wire, reduction),
            Stage("compressed", (phase.steps - learning) / phase.steps, *SIGNS),
        ]

    def learning_steps(self, phase: Phase) -> int:
        """Steps of the phase before the second moment is frozen."""
        share = AUTO_DENSE if self.dense == "auto" else self.dense
        return min(phase.steps, max(1, *(whole_steps(phase.steps, fraction) for fraction in (share, phase.warmup))))

    def kept_numbers(self, recipe: Recipe, shapes: dict[str, Shape]) -> float:
        return sum(map(math.prod, shapes.values()))

    def sums_by_host(self, reductions: tuple[str, ...]) -> bool:
        return True

    def check(self, recipe: Recipe) -> None:
        for i, phase in enumerate(recipe.phase):
            if self.dense != "auto" and self.dense < phase.warmup:
                raise UserError(
                    f"exchange.dense = {self.dense:g}: the second moment cannot be frozen before the learning rate has "
                    f"settled; expected at least phase.{i}.warmup = {phase.warmup:g}, or 'auto'"
                )


@dataclass(frozen=True)
class OneBitSettings(StagedSettings):
    """Signs of momenta in each step, once the second moment is frozen: 1-bit Adam and 1-bit LAMB."""

    price: ClassVar[str] = "sends signs once the second moment is frozen; BERT-mini: 0.013 nats behind float32"

    @classmethod
    def offered(cls, recipe: Recipe, steps: int) -> Recipe | None:
        if recipe.optimizer.name != cls.optimizer:
            return None
        settings = cls()
        dense = max(settings.dense, *(phase.warmup for phase in recipe.phase))
        return dataclasses.replace(
            recipe,
            exchange=dataclasses.replace(settings, dense=dense),
            numerics=dataclasses.replace(recipe.numerics, wire="float16"),
        )
