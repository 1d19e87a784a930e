"""Measurements in place of data sheets."""

import json

import pytest

from bert_horovod.costs.measurements import measured_device, measured_network
from bert_horovod.costs.planner import Device, Network, plan_phase, update_bytes
from bert_horovod.errors import UserError
from bert_horovod.measuring.configuration import describe_recipe, step_flops
from bert_horovod.model.shapes import pretraining_shapes
from tests.costs.test_planner import HOP, recipe

COMM = {"world_size": 4, "link": {"latency_s": 6e-3, "bytes_per_s": 1e9}, "reduction": "ring"}
DOCTOR = {"all_reduce": {"ranks": 4, "bits_per_s": 8e9, "latency_s": 6e-3}, "hosts": {"a": {}, "b": {}}}


def written(tmp_path, found):
    path = tmp_path / "found.json"
    path.write_text(found if isinstance(found, str) else json.dumps(found))
    return path


def compute(toy, step_s: float = 0.5, forward_backward_s: float = 0.4) -> dict:
    """What bench step prints of it."""
    return {
        "configuration": describe_recipe(toy),
        "step_s": step_s,
        "forward_backward_s": forward_backward_s,
        "flops_per_s": step_flops(toy) / step_s,
    }


def test_a_plan_of_one_micro_batch_takes_what_was_measured(tmp_path):
    toy = recipe(4)
    device = measured_device(written(tmp_path, compute(toy)), toy, Device("sheet", 1.0, 0.1, 2e9, 3e9, 0.02))
    assert (device.product_share, device.memory_bytes, device.spread) == (1.0, 2e9, 0.02)
    plan = plan_phase(toy, 0, 1, device, HOP)
    assert plan.forward_backward_s == pytest.approx(0.4)
    assert plan.step_s == pytest.approx(0.5)
    shapes = pretraining_shapes(toy.model, toy.objective.pairs)
    assert device.memory_bytes_per_s == pytest.approx(update_bytes(toy, shapes, 1, 1) / 0.1)


@pytest.mark.parametrize("phases", [[{"num_hidden_layers": 6}, {"grow": "stack"}], [{"trained_layers": 3}]])
def test_a_model_that_grows_or_trains_in_part_takes_in_its_first_phase_what_was_measured(tmp_path, phases):
    toy = recipe(4, phase=phases)
    path = written(tmp_path, compute(toy.of_phase(0)))
    plan = plan_phase(toy, 0, 1, measured_device(path, toy, Device("sheet", 1.0, 0.1, 2e9, 3e9)), HOP)
    assert (plan.forward_backward_s, plan.step_s) == (pytest.approx(0.4), pytest.approx(0.5))


@pytest.mark.parametrize("recompute", ["attention", "layer"])
def test_a_measurement_tells_what_backward_repeats(tmp_path, recompute):
    plain, repeating = (recipe(4, execution={"micro_batch": 4, "recompute": each}) for each in ("none", recompute))
    forward_backward_s = []
    for measured, planned in ((repeating, repeating), (plain, plain), (plain, repeating)):
        device = measured_device(written(tmp_path, compute(measured)), planned, Device("sheet", 1.0))
        forward_backward_s.append(plan_phase(planned, 0, 1, device, HOP).forward_backward_s)
    assert forward_backward_s[:2] == pytest.approx([0.4, 0.4])
    assert 0.4 < forward_backward_s[2] < 0.4 * 4 / 3


def test_an_update_that_noise_hides_keeps_the_sheets_rate(tmp_path):
    toy = recipe(4)
    path = written(tmp_path, compute(toy, 0.5, 0.5))
    assert measured_device(path, toy, Device("sheet", 1.0, 0.1, 2e9, 3e9)).memory_bytes_per_s == 3e9


@pytest.mark.parametrize(
    "sections",
    [{"model": {"num_hidden_layers": 3}}, {"numerics": {"precision": "float16"}}, {"optimizer": {"name": "lamb"}}],
)
def test_a_measurement_of_another_recipe_is_refused(tmp_path, sections):
    with pytest.raises(UserError, match=r"it measured 12 x 768, .*run `bert-horovod bench step --recipe F --json`"):
        measured_device(written(tmp_path, compute(recipe())), recipe(**sections), Device("sheet", 1.0))


@pytest.mark.parametrize("found", ["", "[]", "{}", {"configuration": "", "step_s": 0.0, "flops_per_s": 1}])
def test_what_is_no_measurement_of_computation_is_refused(tmp_path, found):
    with pytest.raises(UserError, match=r"--compute .*: expected what `bert-horovod bench step --json` prints"):
        measured_device(written(tmp_path, found), recipe(), Device("sheet", 1.0))


@pytest.mark.parametrize(
    ("found", "hops"),
    [(COMM, 6), (COMM | {"reduction": "two_step"}, 4), (DOCTOR, 6)],
    ids=["ring", "two_step", "doctor"],
)
def test_a_link_is_what_was_measured(tmp_path, found, hops):
    network = measured_network(written(tmp_path, found), Network(1.0, 0.5, 1.0, 8, 7e9, 1e-6))
    assert network == Network(1e9, 1.0, 6e-3 / hops, 8, 7e9, 1e-6)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ("no", "expected what `bert-horovod doctor --json` prints"),
        ("[]", "with a JSON object"),
        ({"all_reduce": None, "hosts": {}}, "it holds no all-reduce"),
        ({"world_size": 1, "step_s": {}}, "it holds no all-reduce"),
        (COMM | {"link": {"latency_s": 1}}, "with bytes_per_s; found None"),
        (COMM | {"world_size": "4"}, "with world_size; found '4'"),
        (DOCTOR | {"hosts": {"a": {}}}, "doctor looked at one host alone"),
        (DOCTOR | {"all_reduce": {"ranks": 2}}, "with bits_per_s"),
    ],
)
def test_what_is_no_measurement_of_a_link_is_refused(tmp_path, found, message):
    with pytest.raises(UserError, match=message):
        measured_network(written(tmp_path, found), HOP)
