"""One optimizer step: what reaches the exchange in float16."""

from unittest import mock

import pytest

from bert_horovod.exchange.dense.gradients import GradientExchange
from bert_horovod.exchange.dense.reducer import GradientReducer
from tests.toy_runs import metrics, newest, train_rank
from tests.toys import toy_recipe


def train_and_look(world, store, output_dir, recipe, divided_first: bool) -> set[str]:
    """Train; returns the dtypes of gradients that the reducer was given. Where asked, they are divided before."""
    given, reduce = set(), GradientReducer.reduce

    def look(self, gradients, *others):
        given.update(gradient.dtype.name for gradient in gradients.values())
        return reduce(self, gradients, *others)

    never = property(lambda self: False, lambda self, value: None)
    with mock.patch.object(GradientReducer, "reduce", look):
        if divided_first:
            with mock.patch.object(GradientExchange, "divides_by_loss_scale", never):
                train_rank(world, store, output_dir, recipe)
        else:
            train_rank(world, store, output_dir, recipe)
    return given


@pytest.mark.full
@pytest.mark.parametrize("reduction", ["ring", pytest.param("two_step", marks=pytest.mark.slow)])
def test_gradients_stay_in_float16_until_their_sum_and_lose_the_loss_scale_there(two_ranks, store, tmp_path, reduction):
    recipe = toy_recipe(
        numerics={"precision": "float16", "wire": "float16", "initial_loss_scale": 2.0**24},
        execution={"reduction": reduction},
        phase={"steps": 8},
    )
    dtypes = [
        two_ranks.run(train_and_look, store.path, tmp_path / name, recipe, first)[0].value
        for name, first in (("late", False), ("first", True))
    ]
    assert dtypes == [{"float16", "float32"}, {"float32"}]
    late, first = (
        [{name: line[name] for name in ("loss", "gradient_norm", "loss_scale", "skipped_steps")} for line in lines]
        for lines in (metrics(tmp_path / "late"), metrics(tmp_path / "first"))
    )
    assert late == first
    assert 0 < late[-1]["skipped_steps"] < 8
    late, first = ((newest(tmp_path / name) / "model.safetensors").read_bytes() for name in ("late", "first"))
    assert late == first
