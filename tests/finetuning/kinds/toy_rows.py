"""The first file of a toy kind: texts with a count each, as rows."""

from typing import NamedTuple

import numpy as np

from bert_horovod.batches.examples.base import Arrays, PackedRows
from bert_horovod.batches.layout import RowLayout, SpecialIds


class CountedTokens(NamedTuple):
    """Counted texts as token ids."""

    ids: np.ndarray  # int32 [tokens], of all texts one after another
    lengths: np.ndarray  # int64 [texts]
    counts: np.ndarray  # int32 [texts]


class CountRows(PackedRows):
    """See PackedRows; the arrays are cls_positions and counts, int32 [R, S], and weights, float32 [R, S]."""

    slot, stream = "examples", 900

    def __init__(
        self, tokens: CountedTokens, special: SpecialIds, sequence_length: int, seed: int, packing: bool = True
    ) -> None:
        starts = np.cumsum(tokens.lengths) - tokens.lengths
        kept = np.minimum(tokens.lengths, sequence_length - 2)
        super().__init__(tokens.ids, starts[:, None], kept[:, None], special, sequence_length, seed, packing)
        self._of_texts = tokens.counts

    def arrays(self, members: np.ndarray, real: np.ndarray, layout: RowLayout, source: np.ndarray) -> Arrays:
        return {
            "cls_positions": layout.starts.astype(np.int32),
            "counts": np.where(real, self._of_texts[members], 0).astype(np.int32),
            "weights": real.astype(np.float32),
        }
