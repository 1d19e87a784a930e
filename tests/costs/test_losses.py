"""Machines that are taken away: Young's and Daly's formulas beside a simulation."""

import math

import numpy as np
import pytest

from bert_horovod.costs.clusters import Losses

LOSSES = Losses(mean_s=7200.0, save_s=30.0, restart_s=300.0)
WORK_S = 200 * 3600.0


def simulated_s(losses, work_s, interval_s, random):
    """A training's time, loss by loss: what was done since the last save is lost, also a save that was not ready."""
    now = done = 0.0
    next_loss = random.exponential(losses.mean_s)
    while done < work_s:
        needed = interval_s + losses.save_s
        if now + needed <= next_loss:
            now, done = now + needed, done + interval_s
            continue
        now = next_loss
        while True:  # a loss while it starts again makes it start again
            next_loss = now + random.exponential(losses.mean_s)
            if now + losses.restart_s <= next_loss:
                now += losses.restart_s
                break
            now = next_loss
    return now


def mean_of_simulations(interval_s, count=60):
    random = np.random.default_rng(1)
    work_s = interval_s * round(WORK_S / interval_s)
    return np.mean([simulated_s(LOSSES, work_s, interval_s, random) / work_s for _ in range(count)])


@pytest.mark.parametrize("interval_s", [120.0, 660.0, 3600.0, 7200.0])
def test_the_expected_time_is_a_simulations_mean(interval_s):
    assert LOSSES.expected_s(1.0, interval_s) == pytest.approx(mean_of_simulations(interval_s), rel=0.02)


def test_the_best_interval_is_the_simulations():
    intervals = np.geomspace(60, 6000, 400)
    least = intervals[np.argmin([LOSSES.expected_s(WORK_S, interval) for interval in intervals])]
    assert LOSSES.daly_s == pytest.approx(least, rel=0.02)
    assert LOSSES.young_s == pytest.approx(math.sqrt(2 * 30 * 7200))
    best, half, double = (mean_of_simulations(LOSSES.daly_s * factor) for factor in (1, 1 / 3, 3))
    assert best < min(half, double)


def test_saves_that_take_longer_than_machines_stay_are_told():
    hopeless = Losses(mean_s=10.0, save_s=60.0, restart_s=1.0)
    assert hopeless.daly_s == 10.0
    assert hopeless.expected_s(1e6, 1e6) == math.inf
