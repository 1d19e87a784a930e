"""Pre-training: predict masked tokens and, with sentence pairs, whether B continues A."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_horovod.costs.derived import Product, matrix_products
from bert_horovod.model.architectures.families import class_name
from bert_horovod.model.forward import Forward
from bert_horovod.model.heads import loss_sums
from bert_horovod.model.parameters import Shapes
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime import lazy_tensorflow as tf


@dataclass(frozen=True)
class Pretraining:
    """See tasks.base.Task; `pairs`: whether there is a sentence-pair head, `pair_name`: prefix of its metrics.

    `stores`: names of the token stores whose losses are metrics too; (): none.
    """

    pairs: bool
    pair_name: str = "nsp"
    stores: tuple[str, ...] = ()

    @property
    def counts(self) -> tuple[str, ...]:
        # sequences: those that are in the pair loss
        return "masked_tokens", "sequences", *(f"masked_tokens.{name}" for name in self.stores)

    @property
    def sum_names(self) -> tuple[str, ...]:
        return "mlm_loss", "mlm_correct", "nsp_loss", "nsp_correct", *(f"mlm_loss.{name}" for name in self.stores)

    def parameters(self, model: Model) -> Shapes:
        return pretraining_shapes(model, self.pairs)

    def configuration(self, model: Model) -> dict[str, Any]:
        return {"architectures": [class_name(model, "BertForPreTraining" if self.pairs else "BertForMaskedLM")]}

    def products(self, model: Model, rows: int, length: int, slots: dict[str, int]) -> list[Product]:
        return matrix_products(model, rows, length, slots["masked"], slots["sequences"], self.pairs)

    def batch_counts(self, batch: dict[str, np.ndarray]) -> dict[str, int]:
        masked = np.count_nonzero(batch["masked_weights"], axis=1)
        of_stores = np.bincount(batch["stores"], masked, len(self.stores)) if self.stores else ()
        return {
            "masked_tokens": int(masked.sum()),
            "sequences": int(np.count_nonzero(batch["sequence_weights"])),
            **{f"masked_tokens.{name}": int(count) for name, count in zip(self.stores, of_stores, strict=True)},
        }

    def sums(self, forward: Forward, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return dict(zip(self.sum_names, loss_sums(forward, self.pairs, batch, len(self.stores)), strict=True))

    def loss(self, sums: dict[str, Any], counts: dict[str, Any]) -> Any:
        return sums["mlm_loss"] / counts["masked_tokens"] + sums["nsp_loss"] / counts["sequences"]

    def metrics(self, sums: dict[str, float], counts: dict[str, float]) -> dict[str, float]:
        masked, sequences = counts["masked_tokens"], counts["sequences"]
        means = {"mlm_loss": sums["mlm_loss"] / masked, "mlm_accuracy": sums["mlm_correct"] / masked}
        if self.pairs:
            means |= {
                f"{self.pair_name}_loss": sums["nsp_loss"] / sequences,
                f"{self.pair_name}_accuracy": sums["nsp_correct"] / sequences,
            }
        for name in self.stores:  # of a step without a row of this store there is no loss
            total, masked = sums[f"mlm_loss.{name}"], counts[f"masked_tokens.{name}"]
            means[f"mlm_loss.{name}"] = total / masked if total else math.nan
        return means
