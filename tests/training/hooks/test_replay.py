"""A device that computes wrongly is found by repeating micro-batches, and named; nothing else is."""

from pathlib import Path

import numpy as np
import pytest

from bert_horovod.collectives.world import World
from bert_horovod.recipe_files.loading import recipe_from_table
from bert_horovod.training.hooks.replay import owners_of, verdict
from tests.horovod_runs import run_ranks
from tests.toy_runs import at_step, incidents, logged, pretrain_arguments, train_rank, train_recipe, training_state
from tests.toys import toy_recipe, toy_recipe_table
from tests.training.faulty_ranks import PARAMETER, train_with_fault

EXECUTION = {"micro_batch": 8, "replay_steps": 4, "checkpoint_steps": 6, "consistency_steps": 3}
ALWAYS = 1000  # the last step of a fault that stays
PHASE = {"steps": 12}
MODEL = {"num_hidden_layers": 1}


def gone_back_to(output_dir: Path, step: int, words: str) -> None:
    """The run would go on from this step, and its record has the words."""
    kept = sorted(path.name for path in output_dir.glob("checkpoints/*"))
    assert kept == ([f"step-{step:08d}"] if step else []), kept
    assert (output_dir / "model").exists() == bool(step)
    last = logged(output_dir)[-1]
    assert last["step"] == step
    assert words in last["incident"]


@pytest.mark.parametrize(
    ("kind", "first", "last", "found"),
    [
        pytest.param("gradient-bit", 5, ALWAYS, 6, marks=pytest.mark.full),
        pytest.param("gradient-bit", 8, 8, 8, marks=pytest.mark.slow),
        pytest.param("gradient-bit", 5, 5, 0, marks=pytest.mark.slow),
        pytest.param("tile", 7, ALWAYS, 8, marks=pytest.mark.slow),
        pytest.param("tile", 8, 8, 8, marks=pytest.mark.full),
        pytest.param("stale", 5, ALWAYS, 6, marks=pytest.mark.slow),
        pytest.param("stale", 8, 8, 8, marks=pytest.mark.slow),
    ],
)
def test_of_two_ranks_both_are_named_at_the_first_check_and_the_run_goes_back(
    store, two_ranks, tmp_path, kind, first, last, found
):
    recipe = toy_recipe(execution=EXECUTION, phase=PHASE, model=MODEL)
    answers = two_ranks.run(train_with_fault, store.path, tmp_path, recipe, kind, first, last)
    words = f"step {found}: rank 0 on "
    for answer in answers:
        if not found:
            assert answer.value is None  # a fault that happens once, and not in a micro-batch that is repeated
            continue
        assert answer.value.startswith(words)
        assert " and rank 1 on " in answer.value
        assert " disagree, and no third rank decides which computes wrongly" in answer.value
        assert (f"another gradient in {PARAMETER}. " in answer.value) == (kind != "stale")
    if found:
        gone_back_to(tmp_path, 6 if found > 6 else 0, words)


@pytest.mark.full
@pytest.mark.parametrize(("first", "last", "found"), [(4, 4, True), (5, ALWAYS, False)])
def test_one_rank_sees_only_what_differs_between_two_tries(store, tmp_path, first, last, found):
    recipe = toy_recipe(execution=EXECUTION, phase=PHASE, model=MODEL)
    text = train_with_fault(World(), store.path, tmp_path, recipe, "tile", first, last)
    assert (text is not None) == found
    if found:
        assert text.startswith("step 4: rank 0 on ")
        assert f"computes wrongly: the same rows, dropout and parameters gave another gradient in {PARAMETER}. " in text
        assert "goes on from the beginning" in text


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "last"), [("gradient-bit", "8"), ("tile", "1000"), ("stale", "1000")])
def test_of_three_ranks_the_one_that_differs_from_two_is_named(store, tmp_path, kind, last):
    output_dir = tmp_path / "run"
    execution = EXECUTION | {"micro_batch": 4}
    sections = {"execution": execution, "phase": PHASE, "model": MODEL}
    _, recipe, _, data_dir, *_ = pretrain_arguments(tmp_path, store, output_dir, **sections)
    script = Path(__file__).parents[1] / "faulty_ranks.py"
    done = run_ranks(3, script, recipe, data_dir, str(output_dir), kind, "8", last)
    assert "step 8: rank 1 on " in done.stderr, done.stderr
    assert "computes wrongly: " in done.stderr
    assert "Exit code: 4" in done.stderr
    gone_back_to(output_dir, 6, "step 8: rank 1 on ")


@pytest.mark.full
def test_ranks_that_differ_from_the_start_are_told_and_repeat_their_own(store, two_ranks, tmp_path):
    recipe = toy_recipe(execution=EXECUTION, phase=PHASE, model=MODEL)
    answers = two_ranks.run(train_with_fault, store.path, tmp_path, recipe, "tile", 0, ALWAYS)
    assert [answer.value for answer in answers] == [None, None]
    (incident,) = incidents(tmp_path)
    assert incident.startswith("warning: rank 1 on ")
    assert "a rank without an equal repeats its own" in incident
    assert "on equal hosts it may be a bad device" in incident
    assert training_state(tmp_path)["progress"]["checked"] == 12


@pytest.mark.full
@pytest.mark.parametrize("kind", ["tile", "long"])
def test_ranks_that_a_new_phase_parts_try_the_one_before_once_more(store, two_ranks, tmp_path, kind):
    table = toy_recipe_table(execution=EXECUTION | {"checkpoint_steps": 4}, model=MODEL)
    table["phase"] = [table["phase"][0] | each for each in ({"steps": 7, "sequence_length": 16}, {"steps": 2})]
    recipe = recipe_from_table(table)
    for answer in two_ranks.run(train_with_fault, store.path, tmp_path, recipe, kind, 6, ALWAYS):
        assert (answer.value or "").startswith("step 7: rank 0 on " if kind == "tile" else "")
        assert ("disagree, and no third rank decides" in (answer.value or "")) == (kind == "tile")
    if kind == "tile":
        gone_back_to(tmp_path, 4, "step 7: rank 0 on ")
    else:
        (incident,) = incidents(tmp_path)
        assert "gradients are compared among equal ranks alone" in incident


SENDING = [
    pytest.param({"exchange": {"method": "gradients"}}, marks=pytest.mark.full),
    pytest.param({"exchange": {"method": "parameters", "interval": 2}}, marks=pytest.mark.slow),  # full: with a fault
    pytest.param({"exchange": {"method": "diloco", "interval": 4}}, marks=pytest.mark.slow),  # likewise
    pytest.param({"exchange": {"method": "powersgd"}}, marks=pytest.mark.full),
]


@pytest.mark.parametrize("sections", SENDING, ids=lambda sections: sections["exchange"]["method"])
def test_each_way_to_send_is_checked_without_a_false_alarm(store, two_ranks, tmp_path, sections):
    execution = EXECUTION | {"replay_steps": 1, "consistency_steps": 6, "checkpoint_steps": 4}
    recipe = toy_recipe(execution=execution, phase=PHASE, model=MODEL, **sections)
    two_ranks.run(train_rank, store.path, tmp_path, recipe)
    assert not [line for line in logged(tmp_path) if "incident" in line]
    assert training_state(tmp_path)["progress"]["checked"] == 12


@pytest.mark.full
@pytest.mark.parametrize("method", [{"method": "parameters", "interval": 2}, {"method": "diloco", "interval": 4}])
def test_ranks_with_parameters_of_their_own_find_a_fault_that_comes_and_goes(store, two_ranks, tmp_path, method):
    execution = EXECUTION | {"consistency_steps": 6, "checkpoint_steps": 4}
    recipe = toy_recipe(execution=execution, phase=PHASE, model=MODEL, exchange=method)
    for answer in two_ranks.run(train_with_fault, store.path, tmp_path, recipe, "gradient-bit", 8, 8):
        assert answer.value.startswith("step 8: rank 1 on ")
        assert "computes wrongly" in answer.value
    gone_back_to(tmp_path, 4, "step 8: rank 1 on ")


@pytest.mark.full
def test_a_run_that_is_asked_to_stop_is_checked_before_it_saves(store, tmp_path):
    stop = at_step(5, lambda run: (run.job.output_dir / "stop").touch())
    train_recipe(toy_recipe(execution=EXECUTION, phase=PHASE, model=MODEL), store, tmp_path / "run", hooks=(stop,))
    state = training_state(tmp_path / "run")["progress"]
    assert state["step"] == state["checked"] == 5


R, A, B = (np.array([number]) for number in (7, 8, 9))  # checksums: the right one, and wrong ones
ALL = [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("groups", "trained", "tries", "votes", "expected"),
    [
        (ALL, [R, A, R, R], [R, R, R, R], {1: [R, R, R, R]}, ({1}, set())),  # trained wrongly, once
        (ALL, [R, R, R, R], [A, R, R, R], {1: [R, R, R, R]}, ({0}, set())),  # repeated wrongly, once
        (ALL, [R, A, R, R], [R, A, R, R], {1: [R, A, R, R], 2: [R, A, R, R]}, ({1}, set())),  # always wrong
        (ALL, [R, A, R, R], [R, R, B, R], {1: [R, A, R, R], 3: [R, R, B, R]}, ({1, 2}, set())),  # two, each in its way
        ([[0, 1]], [R, A], [R, A], {0: [R, A], 1: [R, A]}, (set(), {0, 1})),
        ([[0, 1]], [R, A], [R, R], {1: [R, R]}, (set(), {0, 1})),
        ([[0], [1], [2]], [R, A, R], [R, R, R], {}, ({1}, set())),  # each repeats its own
        ([[0]], [A], [R], {}, ({0}, set())),
        (ALL, [A, A, A, A], [R, R, R, R], {rank: [R] * 4 for rank in range(4)}, None),  # the program's fault
        ([[0], [1]], [A, B], [R, R], {}, None),
    ],
)
def test_the_verdict(groups, trained, tries, votes, expected):
    owners = owners_of(groups, len(trained), 0)
    differing = [rank for rank, owner in enumerate(owners) if tries[rank] != trained[owner]]
    arrays = (np.array(trained), np.array(tries), {owner: np.array(each) for owner, each in votes.items()})
    assert verdict(groups, owners, differing, *arrays) == expected


def test_pairs_of_ranks_lie_on_different_hosts_too():
    pairs = {(rank, owner) for turn in range(7) for rank, owner in enumerate(owners_of([list(range(8))], 8, turn))}
    assert len(pairs) == 8 * 7  # each with each other
