"""The exchange of the largest chunks as recipes, plans and checks see it; largest_chunks.py has the code."""

import math
from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.errors import UserError
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import ExchangeMethod, Phase, Recipe, Shape, Stage


@dataclass(frozen=True)
class LargestChunksSettings(ExchangeMethod):
    """The largest chunks of gradients and of what former steps left; any optimizer."""

    method: str = named("largest_chunks")
    dense: float = setting(0.2, minimum=0, maximum=1)  # fraction of each phase's steps, from its start, with all chunks
    # Fraction of the chunks that is sent. GradientFlow (arXiv 1902.06855) sent 0.1 to 0.15. On a toy model with adamw
    # the loss was higher than with all gradients: by 0.002 nats with 0.2, by 0.027 nats with 0.05
    fraction: float = setting(0.1, above=0, maximum=1)
    chunk: int = setting(256, minimum=16, maximum=1 << 20)  # numbers per chunk; 256 divides the usual hidden sizes

    wires: ClassVar[tuple[str, ...]] = ("float32", "float16")
    why_wires: ClassVar[str] = "sums its chunks by ring"
    # Buckets are sent during backward, but a measured plan would assume that all bytes are sent, and could differ in a
    # resumed run, while residuals are kept by bucket.
    overlaps: ClassVar[bool] = False

    def code(self) -> type:
        from bert_horovod.exchange.compressed.largest_chunks import LargestChunksExchange

        return LargestChunksExchange

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        share, wire = round(self.dense * phase.steps) / phase.steps, recipe.numerics.wire
        return [
            Stage("dense", share, wire, "ring", chunk=self.chunk),
            Stage("chunks", 1 - share, wire, "ring", fraction=self.fraction, chunk=self.chunk),
        ]

    def kept_numbers(self, recipe: Recipe, shapes: dict[str, Shape]) -> float:
        return sum(map(math.prod, shapes.values()))

    def check(self, recipe: Recipe) -> None:
        if recipe.execution.reduction == "two_step":
            raise UserError(
                f"execution.reduction = 'two_step': exchange.method = {self.method!r} {self.why_wires}; expected auto "
                "or ring"
            )
