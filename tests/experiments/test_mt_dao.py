"""MT-DAO: what no line of promises.py says."""

import numpy as np

from bert_horovod.collectives.world import World
from tests.exchange.exchange_jobs import RATE, initial, trained
from tests.experiments.promises import PROMISES


def test_a_number_moves_from_its_second_gradient_on():
    x = [step["a.weight"] for step in trained(World(), PROMISES["mt_dao"].recipe, 4)["parameters"]]
    undecayed = 1 - RATE * 0.1
    for step in range(3):  # rows 0 to 2 have no gradient before step 3
        np.testing.assert_allclose(x[step][:3], initial()["a.weight"][:3] * undecayed ** (step + 1), rtol=1e-6)
    assert np.abs(x[3][:3] / x[2][:3] - undecayed).max() > 1e-3
