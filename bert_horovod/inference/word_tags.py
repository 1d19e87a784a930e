"""The tags of words from a head's outputs: one function for evaluation, files of predictions and `predict`."""

from typing import NamedTuple

import numpy as np

from bert_horovod.batches.examples.tag_rows import TagRows
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
    places = rows.places()
    at_words = logits[places.row, places.position]  # (words with a piece, labels)
    names = np.array(labels, object)
    words = len(rows.tokens.word_starts) - 1
    tags, shares = np.full(words, OUTSIDE, object), np.ones(words)
    tags[places.word] = names[at_words.argmax(axis=-1)]
    shares[places.word] = probabilities(at_words).max(axis=-1)
    bounds = rows.tokens.sentence_starts[1:-1]
    return WordTags(*([part.tolist() for part in np.split(array, bounds)] for array in (tags, shares)))
