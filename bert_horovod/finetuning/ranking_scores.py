"""Scores of candidates that a model puts in order, by query; arithmetic in float64."""

from collections.abc import Sequence

import numpy as np

PLACES = 10


def ranking_scores(scores: np.ndarray, relevance: np.ndarray, queries: Sequence[str]) -> dict[str, float]:
    """MRR@10 over the queries that have relevant candidates and others, and the accuracy at 0.5.

    Equal scores count against the model. MRR is 0 if no query has both kinds of candidates.

    Args:
        scores: of the candidates, [candidates].
        relevance: 0 to 1, likewise; relevant is what has 0.5 and more.
        queries: of each candidate.

    >>> ranking_scores(np.array([0.9, 0.2, 0.7, 0.4]), np.array([0, 1, 1, 0]), ["a", "a", "b", "b"])
    {'mrr_10': 0.75, 'accuracy': 0.5}
    """
    relevant = relevance >= 0.5
    _, query = np.unique(np.array(queries, object).astype(str), return_inverse=True)
    reciprocal = []
    for mine in np.split(np.argsort(query, kind="stable"), np.flatnonzero(np.diff(np.sort(query))) + 1):
        right, wrong = scores[mine][relevant[mine]], scores[mine][~relevant[mine]]
        if len(right) and len(wrong):
            rank = 1 + np.count_nonzero(wrong >= right.max())
            reciprocal.append(1 / rank if rank <= PLACES else 0.0)
    return {
        f"mrr_{PLACES}": float(np.mean(reciprocal)) if reciprocal else 0.0,
        "accuracy": float(np.mean((scores >= 0.5) == relevant)),
    }
