"""Kinds of vocabulary entries: special tokens by their roles, and ordinary tokens."""

from dataclasses import dataclass

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
    """Ids of the special tokens, [PAD], [UNK], [CLS], [SEP] and [MASK] in BERT; raises UserError if one is missing.

    Args:
        vocabulary: tokens by id.
        settings: the tokenizer's, which name the tokens.
    """
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
    """Raise UserError if the model counts positions from another id than that of padding.

    Args:
        model: the sizes.
        vocabulary: tokens by id.
        settings: the tokenizer's.
        named: whose it is, for the message.
    """
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
