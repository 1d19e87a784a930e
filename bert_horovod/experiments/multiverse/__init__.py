"""Maximal Multiverse Learning (Malkiel and Wolf 2021, arXiv 1911.06182): classification with several heads."""

from dataclasses import dataclass
from typing import Any

from bert_horovod.recipe.fields import ReadIf, fixed, named, setting
from bert_horovod.recipe.finetuning_heads import PLAIN, Head
from bert_horovod.recipe.settings import CLASSIFICATION

_CLASSIFIES = ReadIf("a classification", tasks=(CLASSIFICATION,))


@dataclass(frozen=True)
class Multiverse(Head):
    """Several classifiers on the same features, made orthogonal; weak ones end (docs/methods.md)."""

    head: str = named("multiverse", read_if=_CLASSIFIES, usual=PLAIN)
    class_weights: str = fixed("none")
    heads: int = setting(32, minimum=2, maximum=256, read_if=_CLASSIFIES)  # number of classifiers at the start
    # Weight of the loss that makes heads differ: nats that are added if all heads have the same weight vectors
    orthogonality: float = setting(1.0, minimum=0, read_if=_CLASSIFIES)
    # A head ends if its mean loss is above the mean of all remaining heads by more than this fraction
    elimination: float = setting(0.005, minimum=0, read_if=_CLASSIFIES)

    def task(self, plain: Any) -> Any:
        from bert_horovod.experiments.multiverse.several_heads import MultiverseClassification

        return MultiverseClassification(
            plain.labels, plain.text_columns, heads=self.heads, orthogonality=self.orthogonality
        )

    def hooks(self) -> tuple[type, ...]:
        from bert_horovod.experiments.multiverse.elimination import Elimination

        return (Elimination,)
