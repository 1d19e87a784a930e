"""MT-DAO: what it does not share with others, which test_promises.py has."""

import numpy as np
import pytest

from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from tests.exchange.exchange_jobs import RATE, exchange_recipe, initial, trained
from tests.exchange.promises import PROMISES


def test_a_number_moves_from_its_second_gradient_on():
    x = [step["a.weight"] for step in trained(World(), PROMISES["mt_dao"].recipe, 4)["parameters"]]
    undecayed = 1 - RATE * 0.1
    for step in range(3):  # rows 0 to 2 have no gradient before step 3
        np.testing.assert_allclose(x[step][:3], initial()["a.weight"][:3] * undecayed ** (step + 1), rtol=1e-6)
    assert np.abs(x[3][:3] / x[2][:3] - undecayed).max() > 1e-3


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"optimizer": {"name": "lamb"}}, r"optimizer\.name = 'lamb': .*'mt_dao' has an update rule.*expected adamw"),
        ({"numerics": {"wire": "float16"}}, r"numerics\.wire = 'float16': .*'mt_dao'.*expected float32"),
        (
            {"exchange": {"momentum_interval": 3, "interval": 4}, "execution": {"checkpoint_steps": 8}},
            r"phase\.0\.steps = 20: .*every 12 steps \(exchange\.interval = 4 and exchange\.momentum_interval = 3 and",
        ),
        ({"exchange": {"interval": 4}, "execution": {"checkpoint_steps": 6}}, r"execution\.checkpoint_steps = 6: "),
        ({"exchange": {"slow_beta": 1.0}}, r"exchange\.slow_beta = 1\.0: expected .*less than 1"),
        ({"exchange": {"slow_weight": 1.5}}, r"exchange\.slow_weight = 1\.5: expected .*at most 1"),
        ({"exchange": {"momentum_interval": -1}}, r"exchange\.momentum_interval = -1: expected at least 0"),
        ({"exchange": {"fraction": 0.5}}, r"exchange\.fraction = 0\.5: .*'mt_dao' has no such setting"),
    ],
)
def test_what_does_not_go_together_is_refused_by_its_key(sections, message):
    sections = sections | {"exchange": {"method": "mt_dao"} | sections.get("exchange", {})}
    with pytest.raises(UserError, match=message):
        exchange_recipe(**sections)
