"""Windows: a context that is too long for a row is read in parts, each with the whole question.

The rules are those of Google's run_squad.py: `stride` is the step from one window to the next, not their overlap.
"""

from typing import NamedTuple

import numpy as np

from bert_horovod.batches.examples.span_tokens import NOT_FOUND, SpanTokens

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

    Args:
        tokens: the questions.
        sequence_length: positions of a window, at most.
        stride: tokens from the begin of one window to the begin of the next; less if a window has less room.
        separators: [SEP] between question and context.
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
