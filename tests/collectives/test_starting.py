"""Pairs of ranks, round by round."""

import itertools

import pytest

from bert_horovod.collectives.starting import MOST_IN_PAIRS, meetings


@pytest.mark.parametrize("size", [3, 4, 5, 8])
def test_in_a_round_of_meetings_no_rank_is_in_two_pairs_and_each_pair_meets_once(size):
    pairs = meetings(range(10, 10 + size))
    assert sorted(pairs) == list(itertools.combinations(range(10, 10 + size), 2))
    a_round = size // 2
    for begin in range(0, len(pairs), a_round):
        members = [rank for pair in pairs[begin : begin + a_round] for rank in pair]
        assert len(members) == len(set(members)) == 2 * a_round


def test_two_ranks_and_many_ranks_make_no_pairs():
    assert meetings(range(2)) == meetings(range(MOST_IN_PAIRS + 1)) == []
