"""The layout of rows: sequences [CLS] A [SEP] or [CLS] A [SEP] B [SEP], one after another, then padding.

There may be several [SEP] between A and B.
"""

from typing import NamedTuple

import numpy as np

from bert_horovod.batches.special_tokens import SpecialIds


class Layout(NamedTuple):
    """The role of each place in R rows of L positions with up to S sequences."""

    starts: np.ndarray  # int64 [R, S]: places of [CLS]; 0 where there is no sequence
    runs: np.ndarray  # int64 [R, S + 1]: positions of each sequence, and of the padding behind them
    sequence_ids: np.ndarray  # int64 [R, L]: 1..S, which sequence of the row; 0: padding
    place: np.ndarray  # int64 [R, L]: place in the sequence, from 0; 0 at padding
    is_second: np.ndarray  # bool [R, L]: the second segment with its [SEP], and with those before it but the first
    is_text: np.ndarray  # bool [R, L]: neither padding nor [CLS] nor [SEP]
    cls: np.ndarray  # int64 [n]: places of [CLS], counted over all rows
    sep: np.ndarray  # int64 [n]: places of [SEP], likewise

    def spread(self, of_sequences: np.ndarray) -> np.ndarray:
        """Give each place the value of its sequence: [R, S] to [R, L]; 0 at padding."""
        with_padding = np.concatenate((of_sequences, np.zeros_like(of_sequences[:, :1])), axis=1)
        return np.repeat(with_padding.ravel(), self.runs.ravel()).reshape(self.sequence_ids.shape)

    def ids(self, special: SpecialIds) -> np.ndarray:
        """Int32 [R, L]: [CLS], [SEP], and [PAD] everywhere else."""
        ids = np.full(self.place.shape, special.pad, np.int32)
        ids.reshape(-1)[self.cls] = special.cls
        ids.reshape(-1)[self.sep] = special.sep
        return ids

    def inputs(self, ids: np.ndarray, typed: bool = True) -> dict[str, np.ndarray]:
        """The encoder's inputs for rows with these ids, int32 [R, L] each; see batches.source.Source.

        `typed`: whether the second segment has a type of its own.
        """
        return {
            "input_ids": ids,
            "token_type_ids": (self.is_second & typed).astype(np.int32),
            "position_ids": self.place.astype(np.int32),
            "sequence_ids": self.sequence_ids.astype(np.int32),
        }


def lay_out(first: np.ndarray, lengths: np.ndarray, sequence_length: int, separators: int = 1) -> Layout:
    """Lay sequences into rows.

    Args:
        first: tokens of each first segment, int64 [R, S].
        lengths: positions of each sequence, special tokens included, int64 [R, S]; 0: none. The sum over a row is at
            most sequence_length.
        sequence_length: positions per row, L.
        separators: [SEP] between two segments.
    """
    rows, slots = lengths.shape
    starts = np.where(lengths > 0, np.cumsum(lengths, axis=1) - lengths, 0)
    runs = np.concatenate((lengths, sequence_length - lengths.sum(axis=1, keepdims=True)), axis=1)
    numbers = np.append(np.arange(1, slots + 1), 0)
    sequence_ids = np.repeat(np.broadcast_to(numbers, runs.shape).ravel(), runs.ravel()).reshape(rows, sequence_length)
    # Each sequence is a run of [CLS] A [SEP] and a run of further [SEP] and B [SEP], which may be empty.
    with_first = np.minimum(first + 2, lengths)
    halves = np.stack((with_first, lengths - with_first), axis=2).reshape(rows, 2 * slots)
    halves = np.concatenate((halves, runs[:, -1:]), axis=1)
    is_half = np.arange(2 * slots + 1) % 2 == 1
    is_second = np.repeat(np.broadcast_to(is_half, halves.shape).ravel(), halves.ravel()).reshape(sequence_ids.shape)
    is_text = sequence_ids > 0
    row, slot = np.nonzero(lengths)
    cls = row * sequence_length + starts[row, slot]
    behind, pairs = cls + with_first[row, slot], (lengths > with_first)[row, slot]
    further = (behind[pairs] + number for number in range(1, separators))
    sep = np.concatenate((behind, cls + lengths[row, slot], *further)) - 1
    layout = Layout(starts, runs, sequence_ids, sequence_ids, is_second, is_text, cls, sep)
    place = (np.arange(sequence_length) - layout.spread(starts)) * is_text
    is_text.reshape(-1)[cls] = False
    is_text.reshape(-1)[sep] = False
    return layout._replace(place=place)
