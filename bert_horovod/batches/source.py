"""The interfaces of a run's data: Dataset, and Source, which makes rows."""

from pathlib import Path
from typing import Protocol

import numpy as np

from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings


class Dataset(Protocol):
    """The data of a run; the same on all ranks."""

    path: Path  # for messages
    hash: str  # SHA-256, in hexadecimal: a run resumes only on the same data
    text_key: str  # Store.text_key: of the same text, however it is stored; "" for other data than a token store
    vocabulary: list[str]  # tokens by id
    tokenizer_settings: TokenizerSettings
    tokens: int  # in all; how long opening takes depends on it

    def make_files(self, phase: int, world: World) -> None:
        """Make what is missing of files that other runs may reuse, such as an index; all ranks call this together."""

    def open(self, phase: int, split: str, build: bool = True) -> "Source":
        """The rows of a phase; `split`: "train" or "held_out".

        `build`: make such files if they are missing, and check them. One process per host calls with True first.
        """


class Source(Protocol):
    """The rows of one phase and split, in random access: each a pure function of its position.

    Positions from `count` on are further epochs, so rows never end. `slots` has the most items in a row, by the names
    that the task counts: {"masked": 20, "sequences": 3} for rows of 128 positions with up to three packed sequences.
    """

    count: int  # rows an epoch
    slots: dict[str, int]

    def assemble(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Make the rows at these positions, int64 [rows]; a position of -1 makes a row of padding with weight zero.

        With L positions per row, the arrays are at least, int32 [rows, L] each: input_ids, token_type_ids, position_ids
        and sequence_ids (0: padding; a token attends only to tokens with its own number).
        """


def open_source_once(dataset: Dataset, phase: int, split: str, world: World) -> Source:
    """Open a phase's rows. All ranks make missing files; one process per host checks them, then the others read."""
    dataset.make_files(phase, world)
    source = dataset.open(phase, split) if world.local_rank == 0 else None
    world.barrier()
    return dataset.open(phase, split, build=False) if source is None else source
