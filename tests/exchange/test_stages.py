"""When v is frozen and when it learns again."""

import pytest

from bert_horovod.exchange.compressed.stages import Stages, phase_of
from bert_horovod.recipe_files.loading import recipe_from_table
from bert_horovod.runs.state import Progress
from tests.toys import toy_recipe_table


def stages_of(progress: Progress, dense=0.2, beta_2=0.9, loss_jump=3.0) -> Stages:
    table = toy_recipe_table(exchange={"method": "onebit_adam", "dense": dense}, optimizer={"beta_2": beta_2})
    table["numerics"]["loss_jump"] = loss_jump
    table["phase"] = [table["phase"][0] | {"steps": steps} for steps in (50, 100)]
    return Stages(recipe_from_table(table), progress)


def run(stages: Stages, progress: Progress, first: int, last: int, losses=None, v_sums=None) -> list[str]:
    """The changes of stage, as step:what."""
    changes = []
    for step in range(first, last + 1):
        progress.updates += 1
        loss = (losses or {}).get(step, 5.0)
        if stages.jumped(loss):
            stages.thaw(step)
            changes.append(f"{step}:dense")
        if stages.looks_at_v(step):
            stages.steady(step, v_sums[step])
        if stages.freezes_after(step):
            stages.freeze()
            changes.append(f"{step}:frozen")
        progress.mean_loss = 5.0
    return changes


def test_each_phase_is_dense_for_its_share_of_the_steps():
    progress = Progress()
    stages = stages_of(progress)
    assert stages.begin(1, 50)
    assert run(stages, progress, 1, 50) == ["10:frozen"]
    assert stages.frozen
    assert stages.begin(51, 150)
    assert not stages.frozen
    assert run(stages, progress, 51, 150) == ["70:frozen"]


JUMPS = {5: 99.0, 12: 99.0, 33: 99.0, 45: float("nan")}  # dense, too early, dense, skipped


@pytest.mark.parametrize(
    ("settings", "updates", "losses", "changes"),
    [
        ({"dense": 0.1}, 0, {}, ["5:frozen"]),  # as long as the warm-up
        ({}, -20, {}, ["21:frozen"]),  # steps without updates
        ({"dense": 1}, 0, {}, []),
        ({}, 0, {30: 5.9}, ["10:frozen"]),
        ({"loss_jump": 3.0}, 0, JUMPS | {30: 6.1}, ["10:frozen", "30:dense", "40:frozen"]),
        ({"loss_jump": 0.0}, 0, JUMPS | {30: 6.1}, ["10:frozen", "30:dense", "40:frozen"]),
        ({"loss_jump": 0.3}, 0, JUMPS | {30: 5.2}, ["10:frozen", "30:dense", "40:frozen"]),
    ],
)
def test_the_dense_stage_outlasts_the_warm_up_and_follows_a_loss_jump(settings, updates, losses, changes):
    progress = Progress(updates=updates)
    stages = stages_of(progress, **settings)
    stages.begin(1, 50)
    assert run(stages, progress, 1, 50, losses) == changes


def test_auto_freezes_when_v_has_changed_little_over_its_own_memory():
    progress = Progress()
    stages = stages_of(progress, dense="auto")
    stages.begin(1, 50)
    assert stages.memory == 10
    v_sums = {10: 8.0, 20: 5.0, 30: 5.5, 40: 5.3, 50: 5.3}  # down, up, and up by less than 4 %
    assert run(stages, progress, 1, 50, v_sums=v_sums) == ["40:frozen"]


def test_a_resumed_run_is_in_the_same_stage():
    progress = Progress()
    stages = stages_of(progress)
    stages.begin(1, 50)
    run(stages, progress, 1, 30, {25: 9.0})
    again = stages_of(Progress(updates=30, mean_loss=5.0, exchange=dict(progress.exchange)))
    assert not again.begin(1, 50)
    assert run(stages, progress, 31, 50) == ["35:frozen"]
    assert run(again, again._progress, 31, 50) == ["35:frozen"]


def test_a_step_amid_a_phase_begins_none():
    with pytest.raises(ValueError, match="no phase of the recipe begins with step 2"):
        phase_of(recipe_from_table(toy_recipe_table()), 2)
