"""Scores of sentence vectors: whether each anchor finds its passage, and whether cosines follow scores; in float64."""

import numpy as np

PLACES = 10
_BLOCK = 1024  # anchors that are compared at once


def cosines_of(vectors: np.ndarray) -> np.ndarray:
    """The cosines of each item's first two vectors of length 1, float64 [items], with the 6 digits that files have."""
    first, second = (vectors[:, place].astype(np.float64) for place in (0, 1))
    return (first * second).sum(-1).round(6)


def ranks_of(vectors: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The place of each item's passage when all passages are ordered by their cosines to its anchor, int64 [items].

    The first place is 1; equal cosines count against the model. Other passages that are right for a text equal to the
    anchor are left out, and a passage that is there several times counts once. `vectors`: of length 1, float32 [items,
    texts, hidden]; `numbers`: equal where texts are equal, [items, texts].
    """
    anchors, (passages, places) = numbers[:, 0], np.unique(numbers[:, 1], return_inverse=True)
    candidates = np.empty((len(passages), vectors.shape[-1]), np.float32)
    candidates[places] = vectors[:, 1]
    by_anchor = np.argsort(anchors, kind="stable")
    begins = np.searchsorted(anchors[by_anchor], anchors, "left")
    ends = np.searchsorted(anchors[by_anchor], anchors, "right")
    ranks = np.empty(len(numbers), np.int64)
    for begin in range(0, len(numbers), _BLOCK):
        items = np.arange(begin, min(begin + _BLOCK, len(numbers)))
        cosines = vectors[items, 0] @ candidates.T  # (items, passages)
        own = cosines[np.arange(len(items)), places[items]].copy()
        for row, item in enumerate(items):  # also the item itself
            cosines[row, places[by_anchor[begins[item] : ends[item]]]] = -np.inf
        ranks[items] = 1 + (cosines >= own[:, None]).sum(1)
    return ranks


def retrieval_scores(ranks: np.ndarray) -> dict[str, float]:
    """MRR@10, nDCG@10, recall@1 and recall@10 of places, int64 [items].

    >>> retrieval_scores(np.array([1, 2, 11, 1]))
    {'mrr_10': 0.625, 'ndcg_10': 0.657732438393, 'recall_1': 0.5, 'recall_10': 0.75}
    """
    near = ranks <= PLACES
    scores = {
        f"mrr_{PLACES}": np.where(near, 1 / ranks, 0),
        f"ndcg_{PLACES}": np.where(near, 1 / np.log2(1 + ranks), 0),
        "recall_1": ranks == 1,
        f"recall_{PLACES}": near,
    }
    return {name: round(float(np.mean(each)), 12) for name, each in scores.items()}


def uniformity(vectors: np.ndarray) -> float:
    """log mean exp(-2 |x - y|^2) over pairs of different texts (Wang and Isola 2020, arXiv 2005.10242); less is better.

    `vectors`: of length 1, float32 [texts, hidden]; no more than 1,024 of them are compared.
    """
    few = vectors[np.linspace(0, len(vectors) - 1, min(len(vectors), _BLOCK)).astype(int)].astype(np.float64)
    distances = 2 - 2 * (few @ few.T)[~np.eye(len(few), dtype=bool)]
    return float(np.log(np.mean(np.exp(-2 * distances)))) if len(distances) else 0.0
