"""0/1 Adam: what no line of promises.py says."""

import dataclasses

import pytest

from bert_horovod.costs.exchanges import stages
from bert_horovod.errors import UserError
from bert_horovod.experiments.zero_one_adam import sync_period
from bert_horovod.optimizers.schedule import learning_rate
from bert_horovod.recipe.settings import Phase
from bert_horovod.recipe_files.loading import recipe_from_table
from tests.costs.test_exchanges import with_exchange
from tests.toys import toy_recipe


def test_the_period_of_syncs_is_a_power_of_two_below_the_fall_of_the_learning_rate():
    phase = Phase(learning_rate=0.5, steps=1000, warmup=0.0)
    for step in range(1, 1001, 7):
        fall = phase.learning_rate / learning_rate(phase, step)
        period = sync_period(phase, step, 16)
        assert period in (1, 2, 4, 8, 16)
        assert period <= fall
        assert 2 * period > min(fall, 16)
    assert sync_period(phase, 1000, 1) == 1
    with pytest.raises(ValueError, match="step 1001 is not in the phase"):
        sync_period(phase, 1001, 16)


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_syncs_of_a_phase_are_as_many_as_its_learning_rates_say(power):
    recipe = with_exchange(toy_recipe(), 3000, 0.1, method="zero_one_adam", dense=0.1, interval=16)
    phase = dataclasses.replace(recipe.phase[0], decay_power=power)
    recipe = dataclasses.replace(recipe, phase=(phase,))
    expected = sum(1 / sync_period(phase, step, 16) for step in range(301, 3001))
    local = stages(recipe, phase)[-1]
    assert local.after == pytest.approx(expected / 2700)
    assert 2700 / 16 < expected < 2700


def test_a_decay_that_ends_in_zeros_is_refused_because_periods_divide_by_the_rate():
    table = {"exchange": {"method": "zero_one_adam"}, "optimizer": {"name": "adamw"}}
    with pytest.raises(UserError, match=r"^phase\.1: its last 989 steps have the learning rate 0, .* smaller decay_p"):
        recipe_from_table(table | {"phase": [{}, {"decay_power": 1e9}]})
    recipe_from_table(table | {"phase": [{"decay_power": 1e9, "end_learning_rate": 1e-6}]})
