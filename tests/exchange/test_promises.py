"""What every exchange promises, of each line of promises.py: its rule, equal ranks, skipped steps, resume, bytes."""

import dataclasses

import numpy as np
import pytest

from bert_horovod.collectives.world import World
from bert_horovod.exchange.methods import METHODS
from bert_horovod.exchange.owed import OwedLayout, shares, total
from tests.exchange.exchange_jobs import MOMENTS, RANKS, trained, trained_in_parts
from tests.exchange.promises import PROMISES, Promise
from tests.exchange.toy_method import ScaledGradientsSettings
from tests.toys import more_rows

pytestmark = pytest.mark.full

PLAIN = PROMISES["gradients"]
TOY = dataclasses.replace(PLAIN.recipe, exchange=ScaledGradientsSettings(factor=1.0))  # as gradients are
ALL = PROMISES | more_rows("promises.PROMISES")
LINES = ALL | {"a toy": PLAIN._replace(recipe=TOY)}


def lasting(line: Promise) -> tuple[pytest.MarkDecorator, ...]:
    """Slow for resumes, of which each traces the graphs of all stages; test_staged.py has them on one rank."""
    return (pytest.mark.slow,) if line.slow or line.tensors is MOMENTS else ()


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow if each.slow else ()) for name, each in LINES.items()],
)
def line(request) -> Promise:
    return LINES[request.param]


@pytest.fixture(scope="module")
def records(line, two_ranks) -> list[dict]:
    """What `trained` gives, by rank."""
    jobs = {"bad": line.bad, "micro_batches": line.micro_batches, "tensors": line.tensors, "fused": line.fused}
    return [answer.value for answer in two_ranks.run(trained, line.recipe, line.steps, **jobs)]


def state(record: dict, step: int, name: str) -> np.ndarray:
    """A value after a step; `SLOT@name` is the matrix of a factor's space."""
    slot, at, parameter = name.partition("@")
    value = record["states"][step][f"{slot}/{parameter}" if at else name].astype(np.float64)
    return value @ value.T if at else value


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(value, other[name]) for name, value in one.items())


def test_every_method_has_a_line():
    assert {each.recipe.exchange.method for each in ALL.values()} == set(METHODS)


def test_it_is_the_transcription(line, records):
    if line.transcribed is None:
        pytest.skip("rounded on the wire: its own tests say how near it is")
    relative, of_largest = line.close
    for step, of_ranks in enumerate(line.transcribed(line.steps, line.bad)):
        for rank, expected in enumerate(of_ranks):
            for name, value in expected.items():
                if name.startswith(("error.", "residual/")) and name not in records[rank]["states"][step]:
                    assert not value.any()  # nothing of it is encoded
                    continue
                computed = state(records[rank], step, name)
                if name.startswith("residual."):
                    computed = np.pad(computed, (0, value.size - computed.size))
                near = of_largest * max(1e-3, np.abs(value).max())
                said = f"step {step + 1}, rank {rank}: {name}"
                np.testing.assert_allclose(computed, value, rtol=relative, atol=near, err_msg=said)
        if all(of_ranks):
            names = line.tensors.shapes
            mine, others = ([each[name] for name in names] for each in of_ranks)
            same = all(map(np.array_equal, mine, others))
            assert equal(records[0]["parameters"][step], records[1]["parameters"][step]) == same, step + 1


def test_ranks_have_one_state_where_the_method_says_so(line, records):
    for step, is_equal in enumerate(records[0]["equal"]):
        if is_equal:
            assert equal(records[0]["common"][step], records[1]["common"][step]), step + 1
    for slot, by_name in records[0]["slots"].items() if records[0]["equal"][-1] else ():
        assert equal(by_name, records[1]["slots"][slot])
    assert records[0]["equal"] == records[1]["equal"]
    assert any(records[0]["equal"])


def test_a_step_that_is_not_finite_on_one_rank_leaves_all_as_it_was(line, records):
    for record in records:
        before, bad = record["states"][line.bad - 2 : line.bad]
        names = [name for name in bad if name != "sum"]  # a sum of an earlier step goes on
        assert equal({name: before[name] for name in names}, bad), "something moved"
        assert record["progress"]["skipped_steps"] == 1
        assert all(np.isfinite(value).all() for value in record["states"][-1].values())


def test_bytes_are_those_that_collectives_were_given(line, records):
    if not line.counted:
        pytest.skip("sends by other collectives: tests/costs counts what a method says against its stages")
    period = max(line.recipe.exchange.cycle, line.recipe.exchange.agreement)
    end = line.steps - period * (line.steps == line.recipe.phase[0].steps)  # at a phase's end ranks may send more
    last = slice(end - (2 if end >= 2 * period else 1) * period, end)
    for record in records:
        stated, counted = record["stated_bytes"], record["bytes"]
        # The first sum of a copy comes after a delay.
        for place in (last,) if line.recipe.exchange.trains_copies else (slice(0, period), last):
            assert np.mean(stated[place]) == pytest.approx(np.mean(counted[place]))
        for step in line.told if period == 1 else ():  # also in the first one of a new stage
            assert stated[step] == pytest.approx(counted[step])
        assert record["wire_bytes"] == 2 * (RANKS - 1) / RANKS * stated[-1]
        assert record["traces"] == 1


def test_what_ranks_owe_and_what_was_sent_is_all_there_was(line, records):
    """The sum of all gradients is what sgd moved parameters by and what ranks still owe."""
    if line.recipe.optimizer.name != "sgd" or line.recipe.exchange.agreement > 1:
        pytest.skip("its updates are no sums of gradients")
    tensors = line.tensors
    owed = total([record["own"] for record in records], OwedLayout(RANKS, 1, tensors.buckets), tensors.shapes)
    steps = [step for step in range(1, line.steps + 1) if step != line.bad]
    for name, first in tensors.first().items():
        given = sum(tensors.gradients(rank, step)[name].astype(np.float64) for rank in range(RANKS) for step in steps)
        moved = (first - records[0]["parameters"][-1][name].astype(np.float64)) / tensors.rate
        np.testing.assert_allclose(moved + owed[name], given, rtol=1e-3, atol=1e-2, err_msg=name)


def test_a_change_of_stage_is_told(line, records):
    for record in records:
        assert [step for step, _ in record.get("notices", []) if line.told] == list(line.told)


@pytest.mark.parametrize("name", [pytest.param(name, marks=lasting(line)) for name, line in LINES.items()])
def test_a_resumed_run_equals_an_uninterrupted_one_in_each_stage(name, two_ranks):
    line = LINES[name]
    steps = max(line.stops) + 4
    for answer in two_ranks.run(trained_in_parts, line.recipe, steps, line.stops, line.tensors):
        whole, *parts = answer.value
        for part in parts:
            assert equal(whole["states"][-1], part["states"][-1])
            assert equal(whole["own"], part["own"])
            assert whole["progress"] == part["progress"]


def test_another_number_of_ranks_owes_as_much_and_one_sends_nothing(line, records):
    shapes, known = line.tensors.shapes, records[0]
    if line.recipe.exchange.trains_copies:  # which begin with their mean: tests/runs/test_rank_parts.py
        own = {name: np.mean([record["own"][name] for record in records], 0) for name in known["own"]}
    else:
        before = OwedLayout(RANKS, 1, line.tensors.buckets)
        owed, names = total([record["own"] for record in records], before, shapes), list(known["own"])
        again = OwedLayout(3, 1, line.tensors.buckets)
        of_three = total([shares(owed, names, again, rank) for rank in range(3)], again, shapes)
        for name, value in owed.items():
            np.testing.assert_allclose(of_three[name], value, rtol=1e-5, atol=1e-5)
        own = shares(owed, names, OwedLayout(1, 1, line.tensors.buckets), 0)
    last = min(line.steps + 2, line.recipe.phase[0].steps)
    alone = trained(World(), line.recipe, last, known=known | {"own": own}, tensors=line.tensors)
    assert alone["bytes"] == [0] * (last - line.steps)
    assert alone["wire_bytes"] == 0
    assert all(np.isfinite(value).all() for each in alone["states"] for value in each.values())
