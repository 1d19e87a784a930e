"""PowerSGD as recipes, plans and checks see it; powersgd.py has the code."""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from bert_horovod.costs.link import NUMBER_BYTES
from bert_horovod.errors import UserError
from bert_horovod.exchange.compressed.factor_names import LEFT, RIGHT
from bert_horovod.model.parameters import WORD_EMBEDDINGS
from bert_horovod.optimizers.schedule import whole_steps
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import ExchangeMethod, Phase, Recipe, Shape, Stage


@dataclass(frozen=True)
class PowerSgdSettings(ExchangeMethod):
    """Gradients in low rank, and what former steps left out of them; any optimizer."""

    method: str = named("powersgd")
    # Rank in which the gradients of matrices are sent. A matrix of n rows and m columns is sent as it is if
    # 2 rank (n + m) >= n m
    rank: int = setting(4, minimum=1, maximum=64)
    # Fraction of each phase's steps, from its start, with dense gradients; the publication advises at least 0.1
    # (arXiv 1905.13727). warmup: the learning rate's warm-up
    dense: float | Literal["warmup"] = setting("warmup", minimum=0, maximum=1)
    # Numbers on the wire in the dense steps. same: as numerics.wire
    dense_wire: str = setting("same", choices=("same", "float32", "float16", "int8"))
    # How the word embeddings are sent, whose gradient is sparse in rows. low_rank: as other matrices, with words_rank;
    # largest_chunks: as exchange.method = "largest_chunks" does; int8: all numbers, in int8
    words: str = setting("low_rank", choices=("low_rank", "largest_chunks", "int8"))
    words_rank: int = setting(0, minimum=0, maximum=64)  # rank of the word embeddings with words = "low_rank"; 0: rank
    # Fraction of the word embeddings' chunks that is sent, with words = "largest_chunks"
    fraction: float = setting(0.1, above=0, maximum=1)
    chunk: int = setting(256, minimum=16, maximum=1 << 20)  # numbers per chunk; 256 divides the usual hidden sizes

    slots: ClassVar[tuple[str, ...]] = (LEFT, RIGHT)
    # Buckets are sent during backward, but a measured plan would assume that all bytes are sent, and could differ in a
    # resumed run.
    overlaps: ClassVar[bool] = False
    cycle: ClassVar[int] = 2  # right factors, then left ones
    price: ClassVar[str] = (
        "sends gradients in low rank, and what a step leaves out in later steps; BERT-mini, 400 steps of rank 4: 0.08 "
        "nats behind float32, 0.06 with exchange.words = largest_chunks"
    )

    def code(self) -> type:
        from bert_horovod.exchange.compressed.powersgd import PowerSgdExchange

        return PowerSgdExchange

    def rank_of(self, name: str, shape: Shape) -> int:
        """The rank in which a parameter of this name and shape is sent; 0: it is not sent in low rank."""
        rank = self.rank
        if name == WORD_EMBEDDINGS:
            rank = (self.words_rank or self.rank) if self.words == "low_rank" else 0
        return rank if len(shape) == 2 and 2 * rank * sum(shape) < math.prod(shape) else 0

    def slot_shape(self, slot: str, name: str, shape: Shape) -> Shape | None:
        rank = self.rank_of(name, shape)
        return (shape[slot == RIGHT], rank) if rank else None

    def dense_steps(self, phase: Phase) -> int:
        """Steps of the phase with dense gradients."""
        return whole_steps(phase.steps, phase.warmup if self.dense == "warmup" else self.dense)

    def wire_of_dense(self, recipe: Recipe) -> str:
        """The wire of the dense steps."""
        return recipe.numerics.wire if self.dense_wire == "same" else self.dense_wire

    def keeps(self, recipe: Recipe, name: str, shape: Shape) -> bool:
        """Whether each rank keeps what it owes of a parameter: what a low rank, chunks or int8 left out."""
        int8 = "int8" in (recipe.numerics.wire, self.wire_of_dense(recipe))
        return int8 or (name == WORD_EMBEDDINGS and self.words != "low_rank") or self.rank_of(name, shape) > 0

    def kept_numbers(self, recipe: Recipe, shapes: dict[str, Shape]) -> float:
        return sum(math.prod(shape) for name, shape in shapes.items() if self.keeps(recipe, name, shape))

    def chunks(self, numbers: int) -> tuple[int, int]:
        """Chunks of the word embeddings with so many numbers, and how many of them a step sends."""
        count = -(-numbers // self.chunk)
        return count, math.ceil(self.fraction * count)

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        dense, wire, wire_of_dense = self.dense_steps(phase), recipe.numerics.wire, self.wire_of_dense(recipe)
        sent = {name: self._sent(name, shape, wire) for name, shape in shapes.items()}
        return [
            Stage("dense", dense / phase.steps, wire_of_dense, _way(wire_of_dense)),
            Stage("low rank", (phase.steps - dense) / phase.steps, wire, _way(wire), sent=sent),
        ]

    def _sent(self, name: str, shape: Shape, wire: str) -> float:
        """Numbers of a parameter in a payload after the dense steps, the mean of a step for each side."""
        numbers, rank = math.prod(shape), self.rank_of(name, shape)
        if rank:
            return rank * sum(shape) / 2
        if name == WORD_EMBEDDINGS and self.words == "largest_chunks":
            count, sent = self.chunks(numbers)
            return sent * self.chunk + count
        if name == WORD_EMBEDDINGS and self.words == "int8":
            return numbers * NUMBER_BYTES["int8"] / NUMBER_BYTES[wire]
        return numbers

    def sums_by_host(self, reductions: tuple[str, ...]) -> bool:
        return True

    def may_sum_in_two_steps(self, reductions: tuple[str, ...]) -> bool:
        return "two_step" in reductions or "int8" in (self.dense_wire, self.words)

    def check(self, recipe: Recipe) -> None:
        if recipe.execution.reduction == "two_step" and recipe.numerics.wire != "int8":
            raise UserError(
                f"execution.reduction = 'two_step': exchange.method = {self.method!r} sums "
                f"{recipe.numerics.wire} numbers by ring; expected auto or ring"
            )

    @classmethod
    def offered(cls, recipe: Recipe, steps: int) -> Recipe | None:
        numerics = dataclasses.replace(recipe.numerics, wire="float16")
        return dataclasses.replace(recipe, exchange=cls(), numerics=numerics)


def _way(wire: str) -> str:
    """The way to sum on a wire."""
    return "two_step" if wire == "int8" else "ring"
