"""MT-DAO: its rule on two ranks is that of a transcription to NumPy in float64."""

import numpy as np
import pytest

from bert_horovod.errors import UserError
from bert_horovod.model.parameters import decays
from tests.exchange.local_jobs import RANKS, RATE, SHAPES, exchange_recipe, initial, share, trained, trained_in_parts

STEPS, BAD = 24, 5
SETTINGS = {"interval": 2, "momentum_interval": 3, "second_moment_interval": 4, "slow_beta": 0.95, "slow_weight": 0.8}
ADAMW = {"beta_2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1, "max_grad_norm": 30.0}
RECIPE = exchange_recipe(48, exchange={"method": "mt_dao", **SETTINGS}, optimizer=ADAMW)


def transcribed() -> list[list[dict[str, np.ndarray]]]:
    """Parameters by step and rank, float64."""
    b, w, b2, eps, wd = 0.95, 0.8, 0.99, 1e-6, 0.1
    x = [{name: value.astype(np.float64) for name, value in initial().items()} for _ in range(RANKS)]
    u, v = ([{name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(RANKS)] for _ in range(2))
    history, t = [], 0
    for step in range(1, STEPS + 1):
        if step != BAD:
            t += 1
            for rank in range(RANKS):
                gradients = {name: RANKS * value.astype(np.float64) for name, value in share(rank, step).items()}
                norm = np.sqrt(sum((value**2).sum() for value in gradients.values()))
                for name, g in gradients.items():
                    g = g / max(1.0, norm / 30.0)
                    u[rank][name] = b * u[rank][name] + (1 - b) * g
                    moved = ((1 - w) * g + w * u[rank][name]) / (np.sqrt(v[rank][name]) + eps)
                    bound = (t - 1) ** 0.25
                    moved = np.where(v[rank][name] > 0, np.clip(moved, -bound, bound), 0)
                    x[rank][name] = x[rank][name] - RATE * (moved + wd * decays(name) * x[rank][name])
                    known = v[rank][name] > 0
                    v[rank][name] = np.where(known, b2 * v[rank][name] + (1 - b2) * g**2, g**2)
        for values, every in ((x, 2), (u, 3), (v, 4)):
            if step % every == 0:
                for name in SHAPES:
                    mean = sum(of_rank[name] for of_rank in values) / RANKS
                    for of_rank in values:
                        of_rank[name] = mean
        history.append([dict(of_rank) for of_rank in x])
    return history


@pytest.fixture(scope="module")
def ranks(two_ranks) -> list[dict]:
    return [answer.value for answer in two_ranks.run(trained, RECIPE, STEPS, bad=BAD)]


@pytest.mark.full
def test_it_is_the_transcription_on_every_rank(ranks):
    for step, expected in enumerate(transcribed()):
        for rank in range(RANKS):
            for name in SHAPES:
                computed = ranks[rank]["parameters"][step][name]
                np.testing.assert_allclose(
                    computed, expected[rank][name], rtol=3e-4, atol=3e-6, err_msg=f"{step} {name}"
                )


@pytest.mark.full
def test_a_number_moves_from_its_second_gradient_on(ranks):
    x = [step["a.weight"] for step in ranks[0]["parameters"]]
    undecayed = 1 - RATE * 0.1
    for step in range(3):  # rows 0 to 2 have no gradient before step 3
        np.testing.assert_allclose(x[step][:3], initial()["a.weight"][:3] * undecayed ** (step + 1), rtol=1e-6)
    assert np.abs(x[3][:3] / x[2][:3] - undecayed).max() > 1e-3


@pytest.mark.full
def test_an_update_that_is_not_finite_on_one_rank_moves_none(ranks):
    for name in SHAPES:
        for record in ranks:
            np.testing.assert_array_equal(record["parameters"][BAD - 1][name], record["parameters"][BAD - 2][name])
    assert not np.isfinite(ranks[0]["norms"][BAD - 1])


@pytest.mark.full
def test_ranks_are_equal_where_all_intervals_meet(ranks):
    equal = [
        step
        for step in range(1, STEPS + 1)
        if all(
            (ranks[0]["parameters"][step - 1][name] == ranks[1]["parameters"][step - 1][name]).all() for name in SHAPES
        )
    ]
    # Nothing moves in step 1, nor in one that is skipped.
    assert equal == sorted({1, BAD, *range(2, STEPS + 1, 2)})
    for slot in ("m", "v"):
        for name in SHAPES:
            np.testing.assert_array_equal(ranks[0]["slots"][slot][name], ranks[1]["slots"][slot][name])


@pytest.mark.full
def test_bytes_are_those_that_collectives_were_given(ranks):
    for record in ranks:
        assert record["stated_bytes"] == [pytest.approx(np.mean(record["bytes"]))] * STEPS
        assert record["wire_bytes"] == record["stated_bytes"][0]  # 2 (n - 1) / n of it


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(two_ranks):
    for answer in two_ranks.run(trained_in_parts, RECIPE, STEPS, stop=12):
        whole, parts = answer.value
        for name in SHAPES:
            np.testing.assert_array_equal(whole["parameters"][-1][name], parts["parameters"][-1][name])
            np.testing.assert_array_equal(whole["slots"]["v"][name], parts["slots"]["v"][name])


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
