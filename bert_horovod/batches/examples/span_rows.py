"""Questions as rows: windows of question and context, each row a pure function of (seed, position).

With packing, several windows share a row, and each attends only to itself. Their lengths are packed once (packing.py);
windows of equal length change places every epoch (packed_order.py).
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from bert_horovod.batches.examples.span_windows import SPECIAL_TOKENS, STRIDE, SpanWindows, cut_spans
from bert_horovod.batches.examples.spans import SpanTokens
from bert_horovod.batches.layout import lay_out
from bert_horovod.batches.order import stream_seed
from bert_horovod.batches.packed_order import PackedItems
from bert_horovod.batches.special_tokens import SpecialIds, special_ids
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.recipe.sections import Recipe

# Streams of the recipe's seed, others than in text/rows.py and labelled.py; phase i trains on _PHASE_STREAM + i.
_HELD_OUT_STREAM, _PHASE_STREAM = 300, 301


class SpanRows:
    """The rows of a split, endless, in random access; see batches.source.Source.

    Args:
        tokens: the questions.
        windows: the questions' windows, at least one.
        special: the vocabulary's special ids.
        sequence_length: positions per row, L; that of the windows.
        seed: orders the rows.
        packing: whether several windows share a row.
    """

    def __init__(
        self,
        tokens: SpanTokens,
        windows: SpanWindows,
        special: SpecialIds,
        sequence_length: int,
        seed: int = 0,
        packing: bool = True,
    ) -> None:
        self.tokens, self.windows = tokens, windows
        self._order = PackedItems(windows.lengths, sequence_length, seed, packing)
        self.count = self._order.count
        self.slots = {"windows": self._order.slots}
        self._ids = np.concatenate((tokens.question_ids, tokens.context_ids))
        self._question_start = tokens.question_starts[windows.question]
        self._context_start = (
            len(tokens.question_ids) + tokens.context_starts[tokens.context_of[windows.question]] + windows.start
        )
        self._special = special
        self._length = sequence_length

    def members(self, positions: np.ndarray) -> np.ndarray:
        """The numbers of the windows that rows hold: int64 [R, S] for positions int64 [R]; -1: none."""
        return self._order.members(positions)

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Each window's row in the first epoch, and the place of its [CLS] in that row: int64 [windows] each."""
        members = self.members(np.arange(self.count))
        lengths = np.where(members >= 0, self.windows.lengths[members], 0)
        starts = np.cumsum(lengths, axis=1) - lengths
        row, place = np.zeros((2, len(self.windows.question)), np.int64)
        row[members[members >= 0]] = np.nonzero(members >= 0)[0]
        place[members[members >= 0]] = starts[members >= 0]
        return row, place

    def assemble(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Make the rows at these positions; a position of -1 makes a row of padding with weight zero.

        A window is [CLS] question [SEP] context [SEP]. With R = len(positions), L = sequence_length, S windows per
        row, at most:

            input_ids        int32   [R, L]  [PAD] where there is nothing
            token_type_ids   int32   [R, L]  1: context with its [SEP], else 0
            position_ids     int32   [R, L]  place in the window, from 0; 0 at padding
            sequence_ids     int32   [R, L]  1..S: which window of the row, attending to itself only; 0: padding
            start_positions  int32   [R, S]  place in the row of the answer's first token; place of [CLS] if the window
                                             does not hold the whole answer; 0 where there is no window
            end_positions    int32   [R, S]  the same for the answer's last token
            weights          float32 [R, S]  1: a window, 0: none
        """
        members = self.members(positions)
        real = members >= 0
        windows = SpanWindows(*(np.where(real, column[members], 0) for column in self.windows))
        lengths = np.where(real, windows.question_count + windows.count + SPECIAL_TOKENS, 0)
        layout = lay_out(windows.question_count, lengths, self._length)
        ids = layout.ids(self._special)
        # Add these to a token's place in the window: its place in `self._ids`, for question and context, (R, S) each.
        to_question = np.where(real, self._question_start[members], 0) - 1
        to_context = np.where(real, self._context_start[members], 0) - windows.question_count - 2
        source = layout.place + np.where(layout.is_second, layout.spread(to_context), layout.spread(to_question))
        ids[layout.is_text] = self._ids[source[layout.is_text]]
        return {
            **layout.inputs(ids),
            "start_positions": (layout.starts + windows.answer_start).astype(np.int32),
            "end_positions": (layout.starts + windows.answer_end).astype(np.int32),
            "weights": real.astype(np.float32),
        }


@dataclass(frozen=True)
class SpanDataset:
    """Questions as the dataset of a run; see batches.source.Dataset.

    Args:
        path: where the texts are from.
        vocabulary, tokenizer_settings: the tokenizer's.
        recipe: the run's; it gives sequence lengths, packing and the seed.
        train, held_out: the questions; train has at least one window.
        stride: tokens from the begin of one window to the begin of the next.

    Raises:
        UserError: the vocabulary lacks a special token.
    """

    path: Path
    vocabulary: list[str]
    tokenizer_settings: TokenizerSettings
    recipe: Recipe
    train: SpanTokens
    held_out: SpanTokens
    stride: int = STRIDE

    def __post_init__(self) -> None:
        special_ids(self.vocabulary, self.tokenizer_settings)

    @cached_property
    def hash(self) -> str:
        digest = hashlib.sha256(f"{self.vocabulary} {self.tokenizer_settings.hashed()} {self.stride}".encode())
        for array in (*self.train, *self.held_out):
            digest.update(f"{array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @property
    def tokens(self) -> int:
        return len(self.train.context_ids) + len(self.held_out.context_ids)

    def make_files(self, phase: int, world: World) -> None:
        pass

    def open(self, phase: int, split: str, build: bool = True) -> SpanRows:
        tokens, stream = self.held_out, _HELD_OUT_STREAM
        if split == "train":
            tokens, stream = self.train, _PHASE_STREAM + phase
        length, settings = self.recipe.phase[phase].sequence_length, self.recipe.data
        windows = cut_spans(tokens, length, self.stride)
        special = special_ids(self.vocabulary, self.tokenizer_settings)
        return SpanRows(tokens, windows, special, length, stream_seed(settings.seed, stream), settings.packing)
