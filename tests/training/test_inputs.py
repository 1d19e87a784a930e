import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from bert_horovod.batches.text.mixture import dataset_of
from bert_horovod.collectives.world import World
from bert_horovod.errors import DamagedData
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.inputs import Batches, micro_batch_of, prefetch
from tests.horovod_runs import PATIENCE_S
from tests.toys import VOCABULARY, toy_recipe, write_toy_store


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


def test_steps_made_together_are_those_made_alone_and_a_damaged_row_ends_its_own_step(tmp_path, monkeypatch):
    phase = {"steps": 9, "global_batch": 7, "masked_fraction": 0.5, "masked_fraction_end": 0.1}
    model = {"vocab_size": len(VOCABULARY)}
    recipe = toy_recipe(phase=phase, execution={"micro_batch": 2}, model=model, data={"mixture": {"a": 0.7, "b": 0.3}})
    dataset = dataset_of(
        {name: write_toy_store(tmp_path / name, longest=longest) for name, longest in (("a", 30), ("b", 9))}, recipe
    )
    source, task = dataset.open(0, "train"), Pretraining(recipe.objective.pairs)
    batches = Batches(7, recipe.phase[0], source, dataset, task, recipe)
    calls = []
    monkeypatch.setattr(source, "assemble", lambda rows, make=source.assemble: calls.append(len(rows)) or make(rows))
    world = World()
    world.rank, world.size = 1, 2
    made = [batch for batch, _ in batches.ahead(1, 9, world)]
    assert len(calls) == 3  # one for the first step, then one for each stair of the rate
    assert calls[0] < min(calls[1:])
    widths, highest = [], []
    for number, batch in enumerate(made, 1):
        assert batch.number == number
        for k, (arrays, first_row) in enumerate(zip(batch.micro_batches, batch.first_rows, strict=True)):
            alone, first = micro_batch_of(1, k, number, 7, source, recipe, world)
            assert first == first_row
            assert all(np.array_equal(arrays[name], alone[name]) for name in alone)
        assert batch.tokens == sum(np.count_nonzero(arrays["sequence_ids"]) for arrays in batch.micro_batches)
        widths.append(batch.micro_batches[0]["masked_ids"].shape[1])
        highest.append(max(arrays["input_ids"].max() for arrays in batch.micro_batches))
    assert [after < before for before, after in pairwise(widths)].count(True) == 1

    small = replace(recipe, model=replace(recipe.model, vocab_size=int(max(highest))))
    whole = 0
    with pytest.raises(DamagedData, match="hold id"):
        for whole, _ in enumerate(batches._replace(recipe=small).ahead(1, 9, world), 1):  # noqa: B007
            pass
    assert whole == np.argmax(highest)
