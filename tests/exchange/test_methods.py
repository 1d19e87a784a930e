"""A new exchange is a file and a line: recipe, checks, plan, memory, training and resume then know it."""

import pytest

from bert_horovod.costs.exchanges import stages
from bert_horovod.costs.planner import Device, Network, plan_phase
from bert_horovod.errors import UserError
from bert_horovod.exchange.base import Exchange
from bert_horovod.exchange.methods import METHODS
from tests.exchange.toy_method import ScaledGradientsSettings
from tests.toy_runs import metrics, train
from tests.toys import toy_recipe

METHOD = "scaled_gradients"
SECTIONS = {
    "execution": {"checkpoint_steps": 2},
    "phase": {"steps": 4},
    "optimizer": {"name": "sgd", "max_grad_norm": 0},
}


@pytest.fixture
def toy(monkeypatch) -> str:
    monkeypatch.setitem(METHODS._own, METHOD, ScaledGradientsSettings)  # the line
    return METHOD


@pytest.mark.full
def test_it_trains_with_its_setting_and_resumes(toy, store, tmp_path):
    plain = train(store, tmp_path / "plain", max_steps=2, **SECTIONS)
    sections = SECTIONS | {"exchange": {"method": toy, "factor": 0.25}}
    run = train(store, tmp_path / "run", max_steps=2, **sections)
    norms = [metrics(each)[0]["gradient_norm"] for each in (run, plain)]
    assert norms[0] == pytest.approx(norms[1] / 4)
    train(store, run, max_steps=4, **sections)
    assert [line["step"] for line in metrics(run)] == [1, 2, 3, 4]


def test_it_is_planned_and_checked_by_what_it_says(toy):
    recipe = toy_recipe(exchange={"method": toy})
    assert [stage.name for stage in stages(recipe, recipe.phase[0])] == ["dense"]
    device, network = Device("toy", 1e12), Network(1e9)
    plans = [plan_phase(each, 0, 2, device, network) for each in (recipe, toy_recipe())]
    assert plans[0].sent_bytes == pytest.approx(plans[1].sent_bytes, rel=0.2)  # gradients send looked-up rows alone
    with pytest.raises(UserError, match=r"numerics\.wire = 'int8': .*'scaled_gradients' keeps no rounding"):
        toy_recipe(exchange={"method": toy}, numerics={"wire": "int8"})
    with pytest.raises(UserError, match=r"exchange\.factor = 2\.0: .*'gradients' .*exchange.method = scaled_gradients"):
        toy_recipe(exchange={"factor": 2.0})


def test_methods_have_their_names_and_code():
    for name, method in METHODS.items():
        assert method().method == name
        assert issubclass(method.code, Exchange)
