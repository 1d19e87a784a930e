"""Questions as rows of windows, each with the whole question and a part of its context."""

from functools import cached_property

import numpy as np

from bert_horovod.batches.examples.base import Arrays, LabelledDataset, PackedRows, hash_of
from bert_horovod.batches.examples.span_tokens import SpanTokens
from bert_horovod.batches.examples.span_windows import STRIDE, SpanWindows, cut_spans
from bert_horovod.batches.layout import Layout
from bert_horovod.batches.special_tokens import SpecialIds


class SpanRows(PackedRows):
    """Windows of questions as rows, at least one; see PackedRows: A is the question, B the context.

    With S windows per row, at most, the arrays are:

        start_positions  int32   [R, S]  place in the row of the answer's first token; place of [CLS] if the window
                                         does not hold the whole answer; 0 where there is no window
        end_positions    int32   [R, S]  the same for the answer's last token
        weights          float32 [R, S]  1: a window, 0: none

    Args:
        stride: tokens from the begin of one window to the begin of the next.
    """

    slot, stream = "windows", 300

    def __init__(
        self,
        tokens: SpanTokens,
        special: SpecialIds,
        sequence_length: int,
        seed: int = 0,
        packing: bool = True,
        stride: int = STRIDE,
    ) -> None:
        self.tokens, self.windows = tokens, cut_spans(tokens, sequence_length, stride, special.pair.separators)
        windows, of_context = self.windows, tokens.context_of[self.windows.question]
        ids = np.concatenate((tokens.question_ids, tokens.context_ids))
        context = len(tokens.question_ids) + tokens.context_starts[of_context] + windows.start
        starts = np.stack((tokens.question_starts[windows.question], context), 1)
        counts = np.stack((windows.question_count, windows.count), 1)
        super().__init__(ids, starts, counts, special, sequence_length, seed, packing)

    def arrays(self, members: np.ndarray, real: np.ndarray, layout: Layout, source: np.ndarray) -> Arrays:
        windows = SpanWindows(*(np.where(real, column[members], 0) for column in self.windows))
        return {
            "start_positions": (layout.starts + windows.answer_start).astype(np.int32),
            "end_positions": (layout.starts + windows.answer_end).astype(np.int32),
            "weights": real.astype(np.float32),
        }


class SpanDataset(LabelledDataset):
    """Questions as a run's dataset; their hash is of another form, by which earlier runs are told."""

    @cached_property
    def hash(self) -> str:
        begun = f"{self.vocabulary} {self.tokenizer_settings.hashed()} {self.options.get('stride', STRIDE)}"
        arrays = (array for name in ("train", "held_out") for array in self.splits[name])
        return hash_of(arrays, begun.encode())
