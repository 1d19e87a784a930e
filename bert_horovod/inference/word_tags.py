"""The tags of words from a head's outputs: one function for evaluation, files of predictions and `predict`."""

from typing import NamedTuple

import numpy as np

from bert_horovod.batches.examples.tag_rows import TaggedTokens, TagRows
from bert_horovod.corpus.reading.tag_schemes import OUTSIDE
from bert_horovod.inference.text_answers import probabilities


class WordTags(NamedTuple):
    """Each sentence's tags, with the probability of each."""

    tags: list[list[str]]
    shares: list[list[float]]  # 1 for a word without pieces


def predicted_tags(rows: TagRows, logits: np.ndarray, labels: tuple[str, ...]) -> WordTags:
    """The likeliest tag of each word, at a tie the first; a word without pieces is O.

    Args:
        rows: those of the outputs.
        logits: float32 [rows.count, length, labels].
        labels: names in the order of their numbers.
    """
    places, tokens = rows.word_places(), rows.tokens
    at_words = logits[places.row, places.position]  # (words with a piece, labels)
    tags, shares = np.full(len(tokens.labels), OUTSIDE, object), np.ones(len(tokens.labels))
    tags[places.word] = np.array(labels, object)[at_words.argmax(axis=-1)]
    shares[places.word] = probabilities(at_words).max(axis=-1)
    return _by_sentence(tokens, tags, shares)


def all_outside(tokens: TaggedTokens) -> WordTags:
    """The tags of words of which none has a piece, so that there are no rows."""
    return _by_sentence(tokens, np.full(len(tokens.labels), OUTSIDE, object), np.ones(len(tokens.labels)))


def _by_sentence(tokens: TaggedTokens, *of_words: np.ndarray) -> WordTags:
    bounds = tokens.sentence_starts[1:-1]
    return WordTags(*([part.tolist() for part in np.split(array, bounds)] for array in of_words))
