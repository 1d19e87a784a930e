"""Questions as rows of windows, each with the whole question and a part of its context.

The rules are those of Google's run_squad.py: `stride` is the step from one window to the next, not their overlap.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from bert_horovod.batches.examples.base import Arrays, LabelledDataset, PackedRows, hash_of
from bert_horovod.batches.examples.span_tokens import NOT_FOUND, SpanTokens
from bert_horovod.batches.layout import RowLayout, SpecialIds

STRIDE = 128  # tokens
MOST_QUESTION_TOKENS = 64


class SpanWindows(NamedTuple):
    """Windows, those of a question one after another; int64 [windows] each."""

    question: np.ndarray  # number of the question, ascending
    question_count: np.ndarray  # tokens of the question, after cutting
    start: np.ndarray  # first token in the context
    count: np.ndarray  # type: ignore[assignment] # tokens of the context; hides the method of tuples
    answer_start: np.ndarray  # place of the answer's first token in the window, [CLS] is 0; 0: not the whole answer
    answer_end: np.ndarray  # the same for the answer's last token
    begin: np.ndarray  # place of the context's first token in the window

    @property
    def lengths(self) -> np.ndarray:
        """Positions of each window, [CLS] and [SEP] included."""
        return self.begin + self.count + 1


def question_room(sequence_length: int, separators: int = 1) -> int:
    """Tokens of a question, at most: Google's 64, but a quarter of a short row is kept for the context."""
    return min(MOST_QUESTION_TOKENS, sequence_length - 2 - separators - sequence_length // 4)


def cut_spans(tokens: SpanTokens, sequence_length: int, stride: int = STRIDE, separators: int = 1) -> SpanWindows:
    """Cut windows: every token of a context is in at least one.

    A context without tokens is one window without a context. Questions whose answer is NOT_FOUND have no window.
    `stride`: tokens from the begin of one window to the begin of the next; less if a window has less room.
    `separators`: [SEP] between question and context.
    """
    kept = np.flatnonzero(tokens.answers[:, 0] != NOT_FOUND)
    question_counts = np.minimum(np.diff(tokens.question_starts), question_room(sequence_length, separators))[kept]
    context_counts = np.diff(tokens.context_starts)[tokens.context_of[kept]]
    room = sequence_length - 2 - separators - question_counts
    step = np.minimum(room, stride)
    windows = 1 + np.maximum(0, -(-(context_counts - room) // step))
    owner = np.repeat(np.arange(len(kept)), windows)
    start = (np.arange(len(owner)) - np.repeat(np.cumsum(windows) - windows, windows)) * step[owner]
    count = np.minimum(room[owner], context_counts[owner] - start)
    question_count = question_counts[owner]
    first, last = tokens.answers[kept[owner]].T
    inside = (first >= start) & (last < start + count)  # NO_ANSWER is before every start
    begin = question_count + 1 + separators
    answer_start, answer_end = (np.where(inside, place + begin - start, 0) for place in (first, last))
    return SpanWindows(kept[owner], question_count, start, count, answer_start, answer_end, begin)


class SpanRows(PackedRows):
    """Windows of questions as rows, at least one; see PackedRows: A is the question, B the context.

    With S windows per row, at most, the arrays are:

        start_positions  int32   [R, S]  place in the row of the answer's first token; place of [CLS] if the window
                                         does not hold the whole answer; 0 where there is no window
        end_positions    int32   [R, S]  the same for the answer's last token
        weights          float32 [R, S]  1: a window, 0: none
    """

    slot, stream = "windows", 300

    def __init__(
        self,
        tokens: SpanTokens,
        special: SpecialIds,
        sequence_length: int,
        seed: int = 0,
        packing: bool = True,
        stride: int = STRIDE,  # tokens from the begin of one window to the begin of the next
    ) -> None:
        self.tokens, self.windows = tokens, cut_spans(tokens, sequence_length, stride, special.pair.separators)
        windows, of_context = self.windows, tokens.context_of[self.windows.question]
        ids = np.concatenate((tokens.question_ids, tokens.context_ids))
        context = len(tokens.question_ids) + tokens.context_starts[of_context] + windows.start
        starts = np.stack((tokens.question_starts[windows.question], context), 1)
        counts = np.stack((windows.question_count, windows.count), 1)
        super().__init__(ids, starts, counts, special, sequence_length, seed, packing)

    def arrays(self, members: np.ndarray, real: np.ndarray, layout: RowLayout, source: np.ndarray) -> Arrays:
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
