"""Kinds of vocabulary entries: special tokens, ordinary tokens and continuation pieces."""

from dataclasses import dataclass

import numpy as np

from bert_horovod.corpus.reading.tokenizer_settings import token_ids
from bert_horovod.corpus.store import Store
from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import Recipe


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens that have a meaning of their own."""

    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int


def special_ids(vocabulary: list[str]) -> SpecialIds:
    """Ids of [PAD], [UNK], [CLS], [SEP] and [MASK]; raises UserError if one is missing."""
    ids = token_ids(vocabulary)
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    missing = [name for name in names if name not in ids]
    if missing:
        raise UserError(
            f"the vocabulary has no {', '.join(missing)}; expected all of {', '.join(names)}: "
            "prepare the data with a BERT vocabulary"
        )
    return SpecialIds(*(ids[name] for name in names))


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
    special_ids(store.vocabulary)


def ordinary_ids(vocabulary: list[str], special: SpecialIds) -> np.ndarray:
    """Ids that text is made of, int32, ascending: not special, not [unused...]; raises UserError if there is none."""
    ids = token_ids(vocabulary)
    reserved = {special.pad, special.unknown, special.cls, special.sep, special.mask}
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


def continuation_pieces(vocabulary: list[str]) -> np.ndarray:
    """Tell which entries continue a word: bool [entries], true for those that begin with ##."""
    return np.array([token.startswith("##") and len(token) > 2 for token in vocabulary])
