"""What rows come from: the interface of whatever a run reads."""

from pathlib import Path
from typing import Protocol

import numpy as np


class Source(Protocol):
    """The rows of one phase and split: endless, in random access; each a pure function of its position."""

    count: int  # rows an epoch
    slots: dict[str, int]  # most of what a row may hold, by name, as the task counts them

    def assemble(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Make the rows at these positions, int64 [rows]; a position of -1 makes a row of padding with weight zero.

        With L positions a row there are at least, int32 [rows, L] each: input_ids, token_type_ids, position_ids and
        sequence_ids (0 is padding; a token attends to those of its own number alone).
        """


class Dataset(Protocol):
    """What a run reads; equal on all ranks."""

    path: Path  # for messages
    hash: str  # SHA-256, in hexadecimal: a run is resumed on the same data alone
    vocabulary: list[str]  # tokens by id
    lowercase: bool
    tokens: int  # in all; how long opening takes depends on it

    def open(self, phase: int, split: str, build: bool = True) -> Source:
        """The rows of a phase; `split`: "train" or "held_out".

        `build`: make what other runs may reuse, such as an index on the disk. One process a host calls with True first.
        """
