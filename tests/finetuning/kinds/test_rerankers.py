"""MRR@10 and accuracy of candidates by query."""

import numpy as np
import pytest

from bert_horovod.finetuning.kinds.rerankers import ranking_scores


def plain(scores, relevance, queries) -> float:
    found = []
    for query in sorted(set(queries)):
        mine = [i for i, each in enumerate(queries) if each == query]
        order = sorted(mine, key=lambda i: (-scores[i], relevance[i] >= 0.5))
        ranks = [1 + place for place, i in enumerate(order) if relevance[i] >= 0.5]
        if ranks and len(ranks) < len(mine):
            found.append(1 / ranks[0] if ranks[0] <= 10 else 0.0)
    return sum(found) / len(found)


def test_mrr_is_that_of_the_plain_way_with_ties_against_the_model():
    random = np.random.default_rng(0)
    queries = [f"q{number}" for number in random.integers(0, 30, 600)]
    relevance = random.choice([0, 0.4, 0.6, 1], 600, p=[0.7, 0.2, 0.05, 0.05])
    scores = random.integers(0, 12, 600) / 12
    found = ranking_scores(scores, relevance, queries)
    assert found["mrr_10"] == pytest.approx(plain(scores, relevance, queries))
    assert found["accuracy"] == np.mean((scores >= 0.5) == (relevance >= 0.5))


def test_constant_scores_and_queries_with_one_kind_of_candidates_gain_nothing():
    assert ranking_scores(np.ones(3), np.array([1, 0, 0]), ["a"] * 3)["mrr_10"] == pytest.approx(1 / 3)
    assert ranking_scores(np.array([0.9, 0.1]), np.array([1, 1]), ["a", "b"])["mrr_10"] == 0
