"""Texts that get a vector each, as rows: an item is a text, a pair of texts, or a pair with wrong ones.

Each text is a sequence of its own, [CLS] text [SEP], that attends to itself only; the texts of an item share a row.
"""

from typing import NamedTuple

import numpy as np

from bert_horovod.batches.examples.base import Arrays, PackedRows
from bert_horovod.batches.examples.labelled import truncated
from bert_horovod.batches.layout import RowLayout, SpecialIds
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.errors import UserError

_SPECIAL = 2  # [CLS] text [SEP]


class EmbeddingTokens(NamedTuple):
    """Items as token ids; T texts each."""

    ids: np.ndarray  # int32 [tokens], of all texts one after another
    starts: np.ndarray  # int64 [items, T]: places in `ids`
    counts: np.ndarray  # int64 [items, T]: tokens
    numbers: np.ndarray  # int32 [items, T]: equal where texts are equal, from 1; 0: a text that is none
    targets: np.ndarray  # float32 [items]: the pairs' scores; [0]: there are none


def tokenised_texts(
    texts: tuple[list[str], ...], prompts: tuple[str, ...], scores: np.ndarray | None, tokenizer: Tokenizer
) -> EmbeddingTokens:
    """Tokenise the texts of items, T lists of as many; no special tokens are added.

    A list that is there twice is tokenised once; from the third list on, an empty text is none. `prompts`: what is put
    before each text of a list; (): nothing.
    """
    known: dict[str, int] = {"": 0}
    sides: dict[int, tuple[np.ndarray, np.ndarray, list[int]]] = {}
    for place, side in enumerate(texts):
        if id(side) not in sides:
            whole = [prompts[place] + text for text in side] if prompts else side
            ids, counts = tokenizer(whole)
            numbers = [known.setdefault(text, len(known)) for text in whole]
            if place >= 2:
                numbers = [number if text else 0 for number, text in zip(numbers, side, strict=True)]
            sides[id(side)] = ids, counts, numbers
    begins = np.cumsum([0, *(len(ids) for ids, _, _ in sides.values())])
    starts = {
        key: begin + np.cumsum(counts) - counts
        for begin, (key, (_, counts, _)) in zip(begins, sides.items(), strict=False)
    }
    return EmbeddingTokens(
        np.concatenate([ids for ids, _, _ in sides.values()]),
        np.stack([starts[id(side)] for side in texts], 1),
        np.stack([sides[id(side)][1] for side in texts], 1),
        np.array([sides[id(side)][2] for side in texts], np.int32).T,
        np.zeros(0, np.float32) if scores is None else scores.astype(np.float32),
    )


class EmbeddingRows(PackedRows):
    """Items as rows; see PackedRows. Where an item is longer than a row, its longest text is cut first.

    With S items of T texts per row, at most, the arrays are:

        cls_positions   int32   [R, S, T]  places of [CLS]; 0 where there is no item
        text_numbers    int32   [R, S, T]  EmbeddingTokens.numbers; 0 where there is no item
        targets         float32 [R, S]     the scores, if there are any; 0 where there is no item
        weights         float32 [R, S]     1: an item, 0: none
    """

    slot, stream = "pairs", 500

    def __init__(
        self, tokens: EmbeddingTokens, special: SpecialIds, sequence_length: int, seed: int, packing: bool = True
    ) -> None:
        texts = tokens.counts.shape[1]
        if sequence_length < texts * (_SPECIAL + 1):
            raise UserError(
                f"phase.0.sequence_length = {sequence_length}: a row has no room for the {texts} texts of an item, "
                f"with [CLS] and [SEP] each; expected at least {texts * (_SPECIAL + 1)}, or fewer wrong passages"
            )
        further = _SPECIAL * (texts - 1)
        counts = truncated(tokens.counts, sequence_length - _SPECIAL - further)
        whole = counts.sum(axis=1, keepdims=True) + further  # as one text; `sequences` parts it
        super().__init__(tokens.ids, tokens.starts[:, :1], whole, special, sequence_length, seed, packing)
        self.tokens, self._kept = tokens, counts
        self.cut = int((counts < tokens.counts).any(1).sum())  # items that lose tokens

    def sequences(self, members: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows, counts = len(members), self._kept[members]
        lengths = np.where(real[..., None], counts + _SPECIAL, 0).reshape(rows, -1)
        starts, counts = (
            np.stack((each, np.zeros_like(each)), -1).reshape(rows, -1, 2)
            for each in (self.tokens.starts[members], counts)
        )
        return starts, counts, lengths

    def arrays(self, members: np.ndarray, real: np.ndarray, layout: RowLayout, source: np.ndarray) -> Arrays:
        numbers = np.where(real[..., None], self.tokens.numbers[members], 0).astype(np.int32)
        arrays = {
            "cls_positions": layout.starts.astype(np.int32).reshape(numbers.shape),
            "text_numbers": numbers,
            "weights": real.astype(np.float32),
        }
        if len(self.tokens.targets):
            arrays["targets"] = np.where(real, self.tokens.targets[members], 0).astype(np.float32)
        return arrays
