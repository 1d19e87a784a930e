"""The order of a mixture: each store keeps its share in every aligned stretch, and each of its rows comes once."""

from fractions import Fraction

import numpy as np
import pytest

from bert_horovod.batches.mixing import PERIOD, RUN, Order, rows_of_period, shares_of, size_shares

FEW = {"a": 0.001, "b": 0.009, "c": 0.29, "d": 0.7}
MANY = {f"store{number:02}": 1.0 / (1 + number) for number in range(20)}


@pytest.mark.parametrize("weights", [FEW, MANY, {"a": 1, "b": 0}, {"a": 1e-9, "b": 1}, {"one": 3}])
def test_a_store_is_at_most_two_rows_away_from_its_share_between_two_multiples_of_64(weights):
    rows = rows_of_period(shares_of(weights), dict.fromkeys(weights, Fraction(1)))
    assert sum(rows.values()) == PERIOD
    assert all(bool(rows[name]) == (weight > 0) for name, weight in weights.items())
    assert all(abs(rows[name] - PERIOD * share) <= 2 for name, share in shares_of(weights).items())
    length = 100_032  # beyond a period
    order = Order(rows, seed=5)
    stores, _ = order.at(np.arange(length))
    for store, of_period in enumerate(order.rows):
        before = np.append(0, np.cumsum(stores == store))[::RUN]  # rows up to each multiple of RUN
        ahead = before - np.arange(len(before)) * RUN * of_period / PERIOD
        assert np.ptp(ahead) <= 2  # the most over any stretch


def test_each_row_of_a_store_comes_once_in_order_and_its_place_is_found_again():
    order = Order(rows_of_period(shares_of(FEW), dict.fromkeys(FEW, Fraction(1))), seed=7)
    positions = np.arange(3 * PERIOD)
    stores, own = order.at(positions)
    for store in range(4):
        mine = own[stores == store]
        assert np.array_equal(mine, np.arange(len(mine)))
        assert np.array_equal(order.of_run(store, mine), positions[stores == store])
    assert order.of_run(0, np.array([-1])).tolist() == [-1]
    assert np.array_equal(order.at(positions[12345:12350])[1], own[12345:12350])


def test_many_short_phases_together_read_each_store_as_often_as_its_share():
    """If each phase began at the period's begin, none of these would have a row of store a."""
    rows = rows_of_period(shares_of(FEW), dict.fromkeys(FEW, Fraction(1)))
    read = sum(Order(rows, seed=phase, phase=phase).read(3 * RUN) for phase in range(50))
    expected = 50 * 3 * RUN * np.array(list(FEW.values()))
    assert np.all(np.abs(read - expected) < 3 + 0.01 * expected)


def test_rows_of_two_stores_do_not_alternate_in_a_pattern_and_the_seed_changes_them():
    halves, others = (Order({"a": PERIOD // 2, "b": PERIOD // 2}, seed).at(np.arange(6400))[0] for seed in (1, 2))
    assert 0.4 < np.mean(halves[1:] == halves[:-1]) < 0.6
    assert np.any(halves != others)
    assert not np.array_equal(halves[:64], halves[64:128])


def test_rows_follow_from_shares_of_tokens_and_the_rows_mean_tokens():
    rows = rows_of_period(shares_of({"long": 1, "short": 1}), {"long": Fraction(120), "short": Fraction(40)})
    assert rows == {"long": PERIOD // 4, "short": PERIOD * 3 // 4}


def test_shares_by_size_follow_the_power():
    tokens = {"a": 1000, "b": 10}
    assert size_shares(tokens, 1) == {"a": Fraction(100, 101), "b": Fraction(1, 101)}
    assert size_shares(tokens, 0) == {"a": Fraction(1, 2), "b": Fraction(1, 2)}
    assert float(size_shares(tokens, 0.5)["b"]) == pytest.approx(1 / 11, rel=1e-5)
