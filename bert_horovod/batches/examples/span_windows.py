"""Windows: a context that is too long for a row is read in parts, each with the whole question.

The rules are those of Google's run_squad.py: `stride` is the step from one window to the next, not their overlap.
"""

from typing import NamedTuple

import numpy as np

from bert_horovod.batches.examples.span_tokens import NOT_FOUND, SpanTokens

STRIDE = 128  # tokens
MOST_QUESTION_TOKENS = 64
SPECIAL_TOKENS = 3  # [CLS] question [SEP] context [SEP]


class SpanWindows(NamedTuple):
    """Windows, those of a question one after another; int64 [windows] each."""

    question: np.ndarray  # number of the question, ascending
    question_count: np.ndarray  # tokens of the question, after cutting
    start: np.ndarray  # first token in the context
    count: np.ndarray  # type: ignore[assignment] # tokens of the context; hides the method of tuples
    answer_start: np.ndarray  # place of the answer's first token in the window, [CLS] is 0; 0: not the whole answer
    answer_end: np.ndarray  # the same for the answer's last token

    @property
    def lengths(self) -> np.ndarray:
        """Positions of each window, [CLS] and [SEP] included."""
        return self.question_count + self.count + SPECIAL_TOKENS


def question_room(sequence_length: int) -> int:
    """Tokens of a question, at most: Google's 64, but a quarter of a short row is kept for the context."""
    return min(MOST_QUESTION_TOKENS, sequence_length - SPECIAL_TOKENS - sequence_length // 4)


def cut_spans(tokens: SpanTokens, sequence_length: int, stride: int = STRIDE) -> SpanWindows:
    """Cut windows: every token of a context is in at least one.

    A context without tokens is one window without a context. Questions whose answer is NOT_FOUND have no window.

    Args:
        tokens: the questions.
        sequence_length: positions of a window, at most.
        stride: tokens from the begin of one window to the begin of the next; less if a window has less room.
    """
    kept = np.flatnonzero(tokens.answers[:, 0] != NOT_FOUND)
    question_counts = np.minimum(np.diff(tokens.question_starts), question_room(sequence_length))[kept]
    context_counts = np.diff(tokens.context_starts)[tokens.context_of[kept]]
    room = sequence_length - SPECIAL_TOKENS - question_counts
    step = np.minimum(room, stride)
    windows = 1 + np.maximum(0, -(-(context_counts - room) // step))
    owner = np.repeat(np.arange(len(kept)), windows)
    start = (np.arange(len(owner)) - np.repeat(np.cumsum(windows) - windows, windows)) * step[owner]
    count = np.minimum(room[owner], context_counts[owner] - start)
    question_count = question_counts[owner]
    first, last = tokens.answers[kept[owner]].T
    inside = (first >= start) & (last < start + count)  # NO_ANSWER is before every start
    shift = question_count + 2 - start
    return SpanWindows(
        kept[owner], question_count, start, count, np.where(inside, first + shift, 0), np.where(inside, last + shift, 0)
    )
