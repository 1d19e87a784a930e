"""The layout of rows: sequences [CLS] A [SEP] or [CLS] A [SEP] B [SEP], one after another, then padding."""

from typing import NamedTuple

import numpy as np

from bert_horovod.batches.special_tokens import SpecialIds


class Layout(NamedTuple):
    """The role of each place in R rows of L positions with up to S sequences."""

    starts: np.ndarray  # int64 [R, S]: places of [CLS]; 0 where there is no sequence
    sequence_ids: np.ndarray  # int64 [R, L]: 1..S, which sequence of the row; 0: padding
    place: np.ndarray  # int64 [R, L]: place in the sequence, from 0; 0 at padding
    is_start: np.ndarray  # bool [R, L]: [CLS]
    is_separator: np.ndarray  # bool [R, L]: [SEP]
    is_second: np.ndarray  # bool [R, L]: the second segment with its [SEP]

    @property
    def is_text(self) -> np.ndarray:
        """Bool [R, L]: neither padding nor [CLS] nor [SEP]."""
        return (self.sequence_ids > 0) & ~self.is_separator & ~self.is_start

    def spread(self, of_sequences: np.ndarray) -> np.ndarray:
        """Give each place the value of its sequence: [R, S] to [R, L]; 0 at padding."""
        with_padding = np.concatenate((np.zeros_like(of_sequences[:, :1]), of_sequences), axis=1)
        return np.take_along_axis(with_padding, self.sequence_ids, axis=1)

    def ids(self, special: SpecialIds) -> np.ndarray:
        """Int32 [R, L]: [CLS], [SEP], and [PAD] everywhere else."""
        ids = np.full(self.place.shape, special.pad, np.int32)
        ids[self.is_start] = special.cls
        ids[self.is_separator] = special.sep
        return ids

    def inputs(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The encoder's inputs for rows with these ids, int32 [R, L] each; see batches.source.Source."""
        return {
            "input_ids": ids,
            "token_type_ids": self.is_second.astype(np.int32),
            "position_ids": self.place.astype(np.int32),
            "sequence_ids": self.sequence_ids.astype(np.int32),
        }


def lay_out(first: np.ndarray, lengths: np.ndarray, sequence_length: int) -> Layout:
    """Lay sequences into rows.

    Args:
        first: tokens of each first segment, int64 [R, S].
        lengths: positions of each sequence, special tokens included, int64 [R, S]; 0: none. The sum over a row is at
            most sequence_length.
        sequence_length: positions per row, L.
    """
    rows, slots = lengths.shape
    starts = np.cumsum(lengths, axis=1) - lengths
    behind = sequence_length - lengths.sum(axis=1, keepdims=True)
    numbers = np.where(lengths > 0, np.arange(1, slots + 1), 0)
    parts = np.concatenate((numbers, np.zeros_like(behind)), axis=1).ravel()
    sequence_ids = np.repeat(parts, np.concatenate((lengths, behind), axis=1).ravel()).reshape(rows, sequence_length)
    present = sequence_ids > 0
    nowhere = np.zeros_like(present)
    layout = Layout(np.where(lengths > 0, starts, 0), sequence_ids, sequence_ids, nowhere, nowhere, nowhere)
    place = np.where(present, np.arange(sequence_length) - layout.spread(starts), 0)
    separator = layout.spread(first) + 1  # place of the first segment's [SEP]
    return layout._replace(
        place=place,
        is_start=present & (place == 0),
        is_separator=present & ((place == separator) | (place == layout.spread(lengths) - 1)),
        is_second=present & (place > separator),
    )
