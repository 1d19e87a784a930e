"""1-bit LAMB as recipes, plans and checks see it; onebit_lamb.py has the code."""

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.errors import UserError
from bert_horovod.exchange.compressed.staged_settings import OneBitSettings
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import Recipe


@dataclass(frozen=True)
class OneBitLambSettings(OneBitSettings):
    """Signs of LAMB's momentum, once its second moment is frozen."""

    method: str = named("onebit_lamb")
    # Lower limit of a tensor's trust ratio; largest_ratio is the upper limit. BERT-large was published with at most 0.3
    # (arXiv 2104.06069)
    smallest_ratio: float = setting(0.01, above=0)
    largest_ratio: float = setting(10.0, above=0)  # upper limit of the trust ratio, see smallest_ratio

    optimizer: ClassVar[str] = "lamb"
    slots: ClassVar[tuple[str, ...]] = ("v_fresh",)

    def code(self) -> type:
        from bert_horovod.exchange.compressed.onebit_lamb import OneBitLamb

        return OneBitLamb

    def check(self, recipe: Recipe) -> None:
        super().check(recipe)
        if self.smallest_ratio > self.largest_ratio:
            raise UserError(
                f"exchange.smallest_ratio = {self.smallest_ratio:g}: expected at most exchange.largest_ratio = "
                f"{self.largest_ratio:g}"
            )
