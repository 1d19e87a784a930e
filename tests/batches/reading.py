"""Rows and indexes read back, for the tests of rows."""

from typing import NamedTuple

import numpy as np

from bert_horovod.batches.text.index import RowIndex, open_index
from bert_horovod.batches.text.mask_rates import MaskRate, held_out_rate
from bert_horovod.batches.text.rows import Rows
from bert_horovod.batches.words import token_roles
from bert_horovod.corpus.store import Store
from bert_horovod.recipe.settings import Objective
from tests.toys import SPECIAL

PAD, UNKNOWN, CLS, SEP, MASK = 0, 3, 4, 5, 6  # of the toy vocabulary
ORDINARY = 7  # the first ordinary id
# As toys.VOCABULARY, but two of five entries are continuation pieces.
WITH_PIECES = SPECIAL + [f"##piece{i}" if i % 5 < 2 else f"word{i}" for i in range(993)]


class Window(NamedTuple):
    """A window; tokens are counted over all shards."""

    start: int
    first: int
    second: int


def index_windows(index: RowIndex, store: Store) -> list[Window]:
    """The windows of an index by their numbers."""
    found = index.of_windows(np.arange(index.windows))
    starts = found.start + store.first_tokens[found.shard]
    return [Window(*map(int, window)) for window in zip(starts, found.first, found.second, strict=True)]


def store_tokens(store) -> np.ndarray:
    """All tokens of a store."""
    return np.concatenate([shard.tokens for shard in store.shards])


def token_documents(store) -> np.ndarray:
    """The document of each token of a store."""
    shards = [np.asarray(shard.sentences, np.int64)[shard.sections][shard.documents] for shard in store.shards]
    lengths = np.concatenate([np.diff(starts) for starts in shards])
    return np.repeat(np.arange(len(lengths)), lengths)


def make_rows(
    store,
    length: int = 32,
    pair: str = "next_sentence",
    packing: bool = True,
    seed: int = 1,
    split: str = "train",
    rate: MaskRate | None = None,
    **objective,
) -> Rows:
    """Rows of a store; `objective` are further settings of the recipe's section; `rate`: in place of its own."""
    settings, index = Objective(pair=pair, **objective), open_index(store, length, pair, packing, split)
    return Rows(store, index, token_roles(store, settings), settings, rate or held_out_rate(settings), seed)


def unmasked(batch: dict[str, np.ndarray]) -> np.ndarray:
    """The rows' ids as they were before masking."""
    ids = batch["input_ids"].copy()
    row, slot = np.nonzero(batch["masked_weights"])
    ids[row, batch["masked_positions"][row, slot]] = batch["masked_ids"][row, slot]
    return ids


def segments(ids: list[int]) -> list[list[int]]:
    """A sequence's segments, without [CLS] and [SEP]."""
    assert ids[0] == CLS
    assert ids[-1] == SEP
    parts: list[list[int]] = [[]]
    for token in ids[1:-1]:
        if token == SEP:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts
