"""The special tokens of a vocabulary by their roles, and the layout of rows.

The layout of rows: sequences [CLS] A [SEP] or [CLS] A [SEP] B [SEP], one after another, then padding. There may be
several [SEP] between A and B.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_horovod.corpus.reading.tokenizer_settings import (
    BERT_PAIR,
    NO_ID,
    UNCASED,
    JsonTokenizer,
    Pair,
    TokenizerSettings,
    token_ids,
)
from bert_horovod.corpus.store import Store
from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import Model, Recipe

_OTHER_PAIRS = "makes other rows of two texts than [CLS] A [SEP] B [SEP]"


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens that have a meaning of their own."""

    pad: int
    unknown: int  # NO_ID: the tokenizer has none
    cls: int
    sep: int
    mask: int
    others: tuple[int, ...] = ()  # of which no text is made either
    pair: Pair = BERT_PAIR  # rows of two texts


def special_ids(vocabulary: list[str], settings: TokenizerSettings = UNCASED) -> SpecialIds:
    """Ids of the special tokens, [PAD], [UNK], [CLS], [SEP] and [MASK] in BERT; raises UserError if one is missing."""
    ids, names = token_ids(vocabulary), settings.special_tokens
    missing = [name for name in names if name and name not in ids]
    if missing:
        raise UserError(
            f"the vocabulary has no {', '.join(missing)}; expected all of {', '.join(names)}: "
            "prepare the data with a BERT vocabulary"
        )
    pad, unknown, cls, sep, mask = (ids.get(name, NO_ID) for name in names)
    others: tuple[int, ...] = ()
    if isinstance(settings, JsonTokenizer):
        others = tuple(sorted(set(settings.facts.special.values()).difference((pad, unknown, cls, sep, mask))))
    return SpecialIds(pad, unknown, cls, sep, mask, others, settings.pair or BERT_PAIR)


def check_vocabulary(recipe: Recipe, store: Store, padded: bool = False) -> None:
    """Raise UserError if model.vocab_size is not that of the store's vocabulary, or the vocabulary is not BERT's.

    `padded`: whether model.vocab_size may be larger, because a checkpoint has rows that belong to no token.
    """
    size, expected = recipe.model.vocab_size, len(store.vocabulary)
    if size != expected and not (padded and size > expected):
        raise UserError(
            f"model.vocab_size = {recipe.model.vocab_size}, but the token store {store.path} was made with a "
            f"vocabulary of {len(store.vocabulary)}; set model.vocab_size = {len(store.vocabulary)}, "
            "or prepare the data with the other vocabulary"
        )
    special_ids(store.vocabulary, store.tokenizer_settings)
    require_padding(recipe.model, store.vocabulary, store.tokenizer_settings, str(store.path))
    pair = store.tokenizer_settings.pair
    if recipe.objective.pairs and (pair is None or pair.separators > 1):
        raise UserError(
            f"objective.pair = {recipe.objective.pair!r}: the tokenizer of {store.path} "
            f"({store.tokenizer_settings}) {_OTHER_PAIRS}; expected objective.pair = 'none'"
        )


def require_padding(model: Model, vocabulary: list[str], settings: TokenizerSettings, named: str) -> None:
    """Raise UserError if the model counts positions from another id than padding's; `named`: whose tokenizer it is."""
    pad = token_ids(vocabulary).get(settings.special_tokens.pad)
    if model.padding_id not in (None, pad):
        raise UserError(
            f"{named}: the token of padding, {settings.special_tokens.pad}, has the id {pad}; with model.architecture "
            f"= {model.architecture!r} expected {model.padding_id}, because transformers counts its positions from "
            "there: take RoBERTa's or XLM-R's tokenizer, or another architecture"
        )


def require_pairs(settings: TokenizerSettings, named: str) -> None:
    """Raise UserError if a tokenizer makes other rows of two texts than this program; `named`: whose it is."""
    if settings.pair is None:
        raise UserError(
            f"{named} has a tokenizer ({settings}) that {_OTHER_PAIRS} or [CLS] A [SEP] [SEP] B [SEP], so that two "
            "texts in a row would not be what transformers makes of them; expected a task with one text, or another "
            "checkpoint"
        )


def ordinary_ids(vocabulary: list[str], special: SpecialIds) -> np.ndarray:
    """Ids that text is made of, int32, ascending: not special, not [unused...]; raises UserError if there is none."""
    ids = token_ids(vocabulary)
    reserved = {special.pad, special.unknown, special.cls, special.sep, special.mask, *special.others}
    ordinary = [
        number
        for number, token in enumerate(vocabulary)
        if ids.get(token) == number
        and number not in reserved
        and not (token.startswith("[unused") and token.endswith("]"))
    ]
    if not ordinary:
        raise UserError("the vocabulary has no ordinary tokens; prepare the data with a BERT vocabulary")
    return np.array(ordinary, np.int32)


class RowLayout(NamedTuple):
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


def lay_out(first: np.ndarray, lengths: np.ndarray, sequence_length: int, separators: int = 1) -> RowLayout:
    """Lay sequences into rows of so many positions, L.

    `first`: tokens of each first segment, int64 [R, S]. `lengths`: positions of each sequence, special tokens included,
    int64 [R, S]; 0: none. `separators`: [SEP] between two segments.
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
    layout = RowLayout(starts, runs, sequence_ids, sequence_ids, is_second, is_text, cls, sep)
    place = (np.arange(sequence_length) - layout.spread(starts)) * is_text
    is_text.reshape(-1)[cls] = False
    is_text.reshape(-1)[sep] = False
    return layout._replace(place=place)
