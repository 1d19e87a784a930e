import threading
import time

import pytest

from bert_horovod.batches.prefetch import prefetch


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_items_come_in_order_and_the_thread_ends():
    assert [item for item, _ in prefetch(lambda t: t * t, 3, 8, 2)] == [9, 16, 25, 36, 49]
    assert prefetch_threads() == []
    assert list(prefetch(lambda t: t, 4, 4, 1)) == []


def test_a_slow_maker_shows_as_waiting_and_a_slow_consumer_does_not():
    waited = [seconds for _, seconds in prefetch(lambda _: time.sleep(0.05), 0, 4, 1)]
    assert min(waited) > 0.02
    waited = []
    for _, seconds in prefetch(lambda t: t, 0, 4, 1):
        waited.append(seconds)
        time.sleep(0.05)
    assert max(waited[1:]) < 0.02


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_depth_items_are_made_ahead(depth):
    made = []
    items = prefetch(made.append, 0, 100, depth)
    for taken in range(1, 4):
        next(items)
        time.sleep(0.05)
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
    began = time.perf_counter()
    items.close()
    assert time.perf_counter() - began < 1
    assert prefetch_threads() == []
    assert len(made) <= 4


def test_a_depth_of_nothing_is_refused():
    with pytest.raises(ValueError, match="depth = 0"):
        prefetch(lambda t: t, 0, 1, 0)
