import numpy as np
import pytest

from bert_horovod.batches.positions import micro_batch_count, step_positions
from bert_horovod.errors import UserError

LAYOUTS = [
    (batch, ranks, micro_batch)
    for batch in (1, 2, 7, 16, 31, 64, 97, 256)
    for ranks in (1, 2, 3, 5, 7, 16, 31)
    for micro_batch in (1, 2, 3, 4, 8, 13, 300)
    if batch >= ranks
]


@pytest.mark.parametrize(("batch", "ranks", "micro_batch"), LAYOUTS)
def test_each_position_is_taken_once_over_all_ranks(batch, ranks, micro_batch):
    taken, per_rank = [], []
    for rank in range(ranks):
        parts = step_positions(3, batch, rank, ranks, micro_batch)
        assert len(parts) == micro_batch_count(batch, ranks, micro_batch)
        real = 0
        for positions, first in parts:
            assert positions.shape == (micro_batch,)
            assert positions.dtype == np.int64
            rows = positions[positions >= 0]
            assert np.array_equal(rows, 3 * batch + first + np.arange(len(rows)))
            assert np.all(positions[len(rows) :] == -1)
            assert 0 <= first <= batch
            taken += rows.tolist()
            real += len(rows)
        per_rank.append(real)
    assert sorted(taken) == list(range(3 * batch, 4 * batch))
    assert max(per_rank) - min(per_rank) <= 1


def test_micro_batch_count_is_the_smallest_that_holds_the_batch():
    assert micro_batch_count(64, 2, 8) == 4
    assert micro_batch_count(65, 2, 8) == 5
    assert micro_batch_count(2, 2, 8) == 1


def test_a_batch_that_the_ranks_cannot_share_is_refused():
    with pytest.raises(UserError, match="a batch that the ranks cannot share"):
        micro_batch_count(3, 4, 1)
    with pytest.raises(UserError, match="global_batch = 3"):
        step_positions(0, 3, 0, 4, 1)
