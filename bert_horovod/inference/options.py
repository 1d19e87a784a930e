"""What every predictor is given: the user's options, and a function that is told how far it is."""

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int], None]  # rows that are done, of how many


@dataclass(frozen=True)
class Options:
    """A user's options for a predictor; each kind of predictor reads those that it needs."""

    text_columns: tuple[str, ...] = ()  # of tables; (): as the checkpoint says
    sequence_length: int | None = None  # tokens of an example, at most; None: as the checkpoint was trained
    doc_stride: int | None = None  # of question answering: tokens from one window of a context to the next
    null_score_threshold: float | None = None  # of question answering: no answer if the null odds are above it
