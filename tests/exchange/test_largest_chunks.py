"""The largest chunks: what they do not share with others, which test_promises.py has."""

import numpy as np
import pytest

from bert_horovod.errors import UserError
from tests.exchange.exchange_jobs import SHAPES, exchange_recipe, initial, trained
from tests.exchange.promises import chunks
from tests.toy_runs import metrics, train_rank
from tests.toys import toy_recipe

STEPS = 20


@pytest.mark.full
def test_a_fraction_of_1_is_the_exchange_of_gradients_to_rounding(two_ranks):
    adamw = {"name": "adamw", "max_grad_norm": 5.0}
    all_of_them = two_ranks.run(trained, chunks(optimizer=adamw, fraction=1.0), STEPS)[0].value
    plain = two_ranks.run(trained, exchange_recipe(STEPS, optimizer=adamw), STEPS)[0].value
    for step in range(STEPS):
        for name in SHAPES:
            computed, expected = (each["parameters"][step][name] for each in (all_of_them, plain))
            np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(all_of_them["norms"], plain["norms"], rtol=1e-5)


@pytest.mark.slow
def test_float16_on_the_wire_is_near(two_ranks):
    wide, narrow = (two_ranks.run(trained, chunks(wire, dense=0.25), 8)[0].value for wire in ("float32", "float16"))
    for name in SHAPES:
        difference = np.abs(wide["parameters"][7][name] - narrow["parameters"][7][name]).max()
        assert 0 < difference < 0.01 * np.abs(wide["parameters"][7][name] - initial()[name]).max(), name


@pytest.mark.slow
def test_a_toy_learns_with_a_tenth_of_the_gradients(two_ranks, store, tmp_path):
    recipe = toy_recipe(
        exchange={"method": "largest_chunks", "dense": 0.2},
        phase={"learning_rate": 0.03},
        execution={"micro_batch": 8, "evaluate_steps": 0, "consistency_steps": 4},
    )
    two_ranks.run(train_rank, store.path, tmp_path / "run", recipe)
    lines = metrics(tmp_path / "run")
    assert np.mean([line["loss"] for line in lines[-5:]]) < np.mean([line["loss"] for line in lines[:5]]) - 0.03
    assert lines[-1]["bytes_reduced"] < 0.15 * lines[0]["bytes_reduced"]


@pytest.mark.parametrize(
    ("exchange", "message"),
    [
        ({"fraction": 0.0}, r"exchange\.fraction = 0\.0: expected more than 0"),
        ({"fraction": 1.5}, r"exchange\.fraction = 1\.5: expected .*at most 1"),
        ({"chunk": 8}, r"exchange\.chunk = 8: expected at least 16"),
        ({"dense": 1.5}, r"exchange\.dense = 1\.5: expected .*at most 1"),
        ({"interval": 4}, r"exchange\.interval = 4: exchange\.method = 'largest_chunks' has no such setting"),
        ({"method": "gradients"}, r"exchange\.fraction = 0\.25: exchange\.method = 'gradients' has no such setting"),
    ],
)
def test_what_does_not_go_together_is_refused_by_its_key(exchange, message):
    with pytest.raises(UserError, match=message):
        chunks(**exchange)
