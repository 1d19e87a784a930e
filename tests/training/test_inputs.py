import threading
import time
from collections.abc import Callable

import pytest

from bert_horovod.training.inputs import prefetch
from tests.horovod_runs import PATIENCE_S


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_items_come_in_order_and_the_thread_ends():
    assert [item for item, _ in prefetch(lambda t: t * t, 3, 8, 2)] == [9, 16, 25, 36, 49]
    assert prefetch_threads() == []
    assert list(prefetch(lambda t: t, 4, 4, 1)) == []


def test_a_slow_maker_shows_as_waiting_and_a_slow_consumer_does_not():
    asked = threading.Semaphore(0)

    def make_slowly(step: int) -> None:
        asked.acquire()  # else what it makes before the consumer asks is no wait
        time.sleep(0.5)

    made, waits = [], {"maker": [], "consumer": []}
    items = prefetch(make_slowly, 0, 4, 1)
    for _ in range(4):
        asked.release()
        waits["maker"].append(next(items)[1])
    for step, (_, seconds) in enumerate(prefetch(made.append, 0, 4, 1)):
        waits["consumer"].append(seconds)
        wait_until(lambda step=step: len(made) == min(step + 2, 4))
    assert min(waits["maker"]) > 0.02
    assert sum(waits["consumer"][1:]) < sum(waits["maker"][1:])


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_depth_items_are_made_ahead(depth):
    made = []
    items = prefetch(made.append, 0, 100, depth)
    for taken in range(1, 4):
        next(items)
        wait_until(lambda taken=taken: len(made) >= taken + depth)
        time.sleep(0.05)  # in which it could make one too many
        assert len(made) == taken + depth
    items.close()


def test_an_error_comes_to_the_consumer_in_its_place():
    def make(step: int) -> int:
        if step == 2:
            raise KeyError("step two")
        return step

    items = prefetch(make, 0, 5, 4)
    assert [next(items)[0], next(items)[0]] == [0, 1]
    with pytest.raises(KeyError, match="step two"):
        next(items)
    assert prefetch_threads() == []


def test_closing_stops_the_thread():
    made = []
    items = prefetch(made.append, 0, 10**9, 2)
    next(items)
    items.close()
    assert prefetch_threads() == []
    assert len(made) <= 4
