"""What can be said about a token store without a model."""

import numpy as np

from bert_horovod.corpus.store import Shard, Store
from bert_horovod.errors import UserError


def token_counts(store: Store) -> tuple[np.ndarray, np.ndarray]:
    """Count how often each id occurs: int64 [vocabulary] in training sections, int64 [vocabulary] in held-out ones.

    Duplicates of documents do not count, as they are never read.
    """
    size = len(store.vocabulary)
    training, held_out = np.zeros(size, np.int64), np.zeros(size, np.int64)
    first = 0
    for shard in store.shards:
        begins = section_token_starts(shard)
        kept = kept_sections(shard, store.duplicates - first)
        first += len(shard.documents) - 1
        for i in np.flatnonzero(kept):
            held = shard.held_out[i]
            counts = held_out if held else training
            counts += np.bincount(shard.tokens[begins[i] : begins[i + 1]], minlength=size)
    return training, held_out


def kept_sections(shard: Shard, duplicates: np.ndarray) -> np.ndarray:
    """Which sections belong to documents that are no duplicates: bool [sections].

    `duplicates`: int64, documents counted from the shard's first; numbers outside of the shard are passed over.
    """
    documents = len(shard.documents) - 1
    kept = np.ones(documents, bool)
    kept[duplicates[(duplicates >= 0) & (duplicates < documents)]] = False
    return np.repeat(kept, np.diff(shard.documents))


def section_token_starts(shard: Shard) -> np.ndarray:
    """Where each section's tokens begin, and the last one's end: uint32 [sections + 1]."""
    return np.asarray(shard.sentences)[np.asarray(shard.sections)]


def unigram_cross_entropy(store: Store) -> float:
    """Cross-entropy, in nats per token, of the held-out tokens under the add-one-smoothed unigrams of the training
    tokens.

    A model that has learned no more than word frequencies has about this loss. Raises UserError when nothing is held
    out.
    """
    training, held_out = token_counts(store)
    if not held_out.sum():
        raise UserError(f"{store.path} has no held-out tokens; prepare the data with a larger --held_out")
    log_probability = np.log((training + 1) / (training.sum() + len(training)))
    return float(-(held_out * log_probability).sum() / held_out.sum())
