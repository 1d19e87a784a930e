"""Two real ranks measure their link."""

import numpy as np


def test_the_link_between_two_ranks_is_the_same_on_both(ranks):
    np.testing.assert_array_equal(ranks[0]["link"], ranks[1]["link"])
    assert (ranks[0]["link"] > 0).all()
