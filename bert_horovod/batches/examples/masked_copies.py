"""Sentences as rows of masked copies: each token of a sentence is masked in a copy of its own."""

import numpy as np

from bert_horovod.batches.examples.base import Arrays, PackedRows
from bert_horovod.batches.layout import RowLayout, SpecialIds


class MaskedCopies(PackedRows):
    """Masked copies of sentences as rows; see PackedRows. Item i is the copy in which token i of `ids` is masked.

    `ids`: tokens of all sentences, int32 [tokens]; `counts`: those of each sentence, int64 [sentences]; `ends`: in copy
    i the tokens from i to before ends[i] are masked, int64 [tokens]. With S copies per row, at most, the arrays are:

        masked_positions  int32   [R, S]  places of the tokens to guess; 0 where there is no copy
        masked_ids        int32   [R, S]  these tokens, likewise
        masked_weights    float32 [R, S]  1: a copy, 0: none
    """

    slot, stream = "copies", 600

    def __init__(
        self, ids: np.ndarray, counts: np.ndarray, ends: np.ndarray, special: SpecialIds, sequence_length: int
    ) -> None:
        starts, copies = (np.repeat(each, counts)[:, None] for each in (np.cumsum(counts) - counts, counts))
        super().__init__(ids, starts, copies, special, sequence_length, seed=0, packing=True)
        self._ends = ends

    def arrays(self, members: np.ndarray, real: np.ndarray, layout: RowLayout, source: np.ndarray) -> Arrays:
        positions = layout.starts + 1 + members - self._starts[members, 0]
        begins, ends = layout.spread(members), layout.spread(self._ends[members])
        return {
            "masked_positions": np.where(real, positions, 0).astype(np.int32),
            "masked_ids": np.where(real, self._ids[members], 0),
            "masked_weights": real.astype(np.float32),
            "is_masked": layout.is_text & (begins <= source) & (source < ends),
        }

    def assemble(self, positions: np.ndarray) -> Arrays:
        arrays = super().assemble(positions)
        arrays["input_ids"][arrays.pop("is_masked")] = self._special.mask
        return arrays
