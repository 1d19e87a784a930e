"""1-bit Adam as recipes, plans and checks see it; onebit_adam.py has the code."""

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.exchange.compressed.staged_settings import OneBitSettings
from bert_horovod.recipe.fields import named


@dataclass(frozen=True)
class OneBitAdamSettings(OneBitSettings):
    """Signs of AdamW's momentum, once its second moment is frozen."""

    method: str = named("onebit_adam")

    optimizer: ClassVar[str] = "adamw"

    def code(self) -> type:
        from bert_horovod.exchange.compressed.onebit_adam import OneBitAdam

        return OneBitAdam
