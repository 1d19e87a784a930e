"""What a line of metrics.jsonl holds.

A rank that is slow is named once, with its host and what that costs, and so is its end; noise is not.
"""

import math
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.collectives.world import World, from_all_ranks
from bert_horovod.recipe.sections import Recipe
from bert_horovod.reporting.run_figures import _spread
from bert_horovod.runs.metrics_lines import read_log
from bert_horovod.runtime import xla
from bert_horovod.training.hooks import metrics as metrics_module
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.hooks.metrics import MOST_ADDED, Interval, SlowRanks, Timing
from tests.toy_runs import incidents, metrics, train_rank
from tests.toys import toy_recipe


def test_the_share_of_the_peak_is_that_of_all_ranks_and_null_where_the_peak_is_unknown(monkeypatch):
    clock = iter([100.0, 104.0, 104.0])
    monkeypatch.setattr("bert_horovod.training.hooks.metrics.time.monotonic", lambda: next(clock))
    interval = Interval()
    for _ in range(2):
        interval.add(rows=32, input_wait_s=0.5, reduce_wait_s=0.25, tokens=100.0)
    interval.saving_s = 0.5
    rates = interval.rates(800.0, flops_per_row=1e6, peak_flops_per_s=64e6)
    assert rates == {
        "rows_per_s": 16.0,
        "tokens_per_s": 200.0,
        "flops_per_s": 16e6,
        "flops_share": 0.25,
        "step_s": 2.0,
        "input_wait_s": 0.5,
        "saving_s": 0.25,
        "reduce_wait_s": 0.25,
    }
    assert interval.rates(800.0, flops_per_row=1e6, peak_flops_per_s=None)["flops_share"] is None


def test_without_times_the_wait_for_all_reduces_is_unknown():
    interval = Interval()
    interval.add(rows=32, input_wait_s=0.5, reduce_wait_s=None, tokens=100.0)
    assert interval.rates(100.0, 1e6, None)["reduce_wait_s"] is None


@pytest.mark.parametrize(
    ("plain_s", "added_s", "period"),
    [(0.2, 0.0, 100), (0.2, -0.1, 100), (0.2, 0.05, 100), (0.2, 0.126, 400), (0.01, 0.1, 6400), (10.0, 2.0, 100)],
)
def test_where_steps_are_short_one_is_timed_less_often(plain_s, added_s, period):
    timing, now, added = Timing(100), 0.0, 0.0
    for step in range(1, 40_001):
        if step % timing.period == timing.period // 2:
            timing.timed.add(step)
            added += added_s
            now += added_s * 0.75 + 60 * (step == 50)  # which is compiled
        elif step - 1 in timing.timed:
            now += added_s * 0.25
        now += plain_s + 5 * (step % 1000 == 0)  # a save
        timing.end(step, now)
        if step % 10 == 0:
            timing.choose(timing.added_steps)
        if step == 1000:
            added = 0.0  # until then it is found out
    assert timing.period == period
    assert added <= MOST_ADDED * plain_s * 39_000
    timing.end(39_990, now)  # gone back: no step's time
    timing.choose(timing.added_steps)
    assert timing.period == period


HOSTS = ["node1", "node1", "node2", "node2"]


def said(*windows: tuple[list[float], list[float]]) -> list[str]:
    """What is said after each window, of each rank's computing and reading."""
    slow_ranks = SlowRanks(HOSTS)
    return [slow_ranks.add(np.array(computing), np.array(reading), 2.0) for computing, reading in windows]


LIKE = ([1.0, 1.1, 1.05, 1.0], [0.0] * 4)
COMPUTES = ([1.0, 1.1, 1.05, 1.5], [0.0] * 4)
READS = ([1.0, 1.1, 1.05, 1.0], [0.0, 0.6, 0.0, 0.0])


def test_a_slow_rank_is_told_once_and_again_when_that_ends():
    texts = said(*[COMPUTES] * 10, *[LIKE] * 10)
    assert [number for number, text in enumerate(texts) if text] == [7, 17]
    assert texts[7] == (
        "rank 3 on node2 is slow, mostly by computing: 1.500 s of its own in a step, the ranks' median is 1.075 s. "
        "All wait for it: that costs 21% of the time"
    )
    assert texts[17] == "rank 3 on node2 is no longer slower than the others"


def test_a_rank_that_waits_for_rows_is_told_apart():
    (text,) = [text for text in said(*[READS] * 10) if text]
    assert text.startswith("rank 1 on node1 is slow, mostly by reading rows: 1.700 s")


@pytest.mark.parametrize(
    "windows",
    [
        [LIKE] * 20,
        [COMPUTES, LIKE] * 10,  # in half of the windows
        [*[COMPUTES] * 7, *[LIKE] * 10],  # for a while
        [COMPUTES, READS] * 10,  # now one, now another
    ],
)
def test_noise_is_not_named(windows):
    assert not any(said(*windows))


class StandsStillInTimedSteps(Hook):
    """A rank that stops itself when its timed computing has begun, until rank 0 lets it go on."""

    def __init__(self, run) -> None:
        super().__init__(run)
        self._stops = False
        self._now, xla._now = xla._now, self._now_and_stop

    def begin(self, step: int) -> None:
        self._stops = step % 10 == 5

    def finish(self) -> None:
        xla._now = self._now

    def _now_and_stop(self, number: np.ndarray) -> np.float64:
        now = self._now(number)
        if self._stops:
            self._stops = False
            os.kill(os.getpid(), signal.SIGSTOP)
        return now


def train_with_a_slow_rank(world: World, store: Path, output_dir: Path, recipe: Recipe) -> None:
    """Rank 1 stands still for half a second of each timed step: far longer than a busy machine holds up rank 0."""
    pids = from_all_ranks([os.getpid()], world, "pids")
    done = threading.Event()

    def wake() -> None:
        while not done.wait(0.01):
            if Path(f"/proc/{pids[1]}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T":
                time.sleep(0.5)
                os.kill(pids[1], signal.SIGCONT)

    waker = threading.Thread(target=wake)
    most_added, metrics_module.MOST_ADDED = (
        metrics_module.MOST_ADDED,
        math.inf,
    )  # a rank stands still in timed steps alone
    if world.rank == 0:
        waker.start()
    try:
        train_rank(world, store, output_dir, recipe, hooks=(StandsStillInTimedSteps,) * world.rank)
    finally:
        metrics_module.MOST_ADDED = most_added
        done.set()
        if world.rank == 0:
            waker.join()


@pytest.mark.full
def test_a_rank_that_stands_still_in_each_step_is_named(store, two_ranks, tmp_path):
    model = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512}
    recipe = toy_recipe(phase={"steps": 126}, model=model, execution={"micro_batch": 16})
    two_ranks.run(train_with_a_slow_rank, store.path, tmp_path, recipe)
    notices = incidents(tmp_path)
    assert "rank 1 on " in notices[0]
    assert " is slow, mostly by computing: " in notices[0]
    timed = [line for line in metrics(tmp_path) if line["compute_s"] is not None]
    assert [line["step"] for line in timed] == [*range(5, 126, 10)]
    assert all(line["slowest_compute_s"] >= line["compute_s"] for line in timed)
    assert {line["slowest_rank"] for line in metrics(tmp_path)} >= {None, 1}
    assert "% longer than the median; in " in _spread(read_log(tmp_path / "metrics.jsonl"))
