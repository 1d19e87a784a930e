"""execution.layer_norms: norms by part of the model, against NumPy and with every exchange."""

import numpy as np
import pytest

from bert_horovod.exchange.methods import METHODS
from bert_horovod.measuring.synthetic import synthetic_batch, synthetic_step
from bert_horovod.model.parameters import part_of
from bert_horovod.recipe_files.loading import recipe_from_table
from tests.toy_runs import metrics, train
from tests.toys import TOY_STEP

MODEL = {"num_hidden_layers": 1}
OFF = {"model": MODEL, "execution": {"log_steps": 1}, "phase": {"steps": 2}}
ON = OFF | {"execution": {"log_steps": 1, "layer_norms": True}}
PARTS = ("embeddings", "layer_0", "heads")
NAMES = {f"{metric}_{part}" for metric in ("gradient_norm", "update_ratio") for part in PARTS}


def by_part(tensors: dict[str, np.ndarray]) -> dict[str, float]:
    parts: dict[str, list[np.ndarray]] = {}
    for name, tensor in tensors.items():
        parts.setdefault(part_of(name), []).append(tensor.astype(np.float64).ravel())
    return {part: float(np.linalg.norm(np.concatenate(each))) for part, each in parts.items()}


@pytest.mark.parametrize("xla", ["off", pytest.param("layers", marks=pytest.mark.full)])
def test_norms_of_a_step_of_sgd_are_those_of_numpy(xla):
    """With sgd and no decay the gradient is the update over the learning rate, which clipping does not change here."""
    table = TOY_STEP | {
        "optimizer": {"name": "sgd", "max_grad_norm": 0, "weight_decay": 0},
        "execution": TOY_STEP.get("execution", {}) | {"layer_norms": True, "xla": xla},
    }
    recipe = recipe_from_table(table)
    step = synthetic_step(recipe, synthetic_batch(recipe.model, 4, 32, 5, 1))
    before = {name: variable.numpy() for name, variable in step.state.parameters.items()}
    result = step.run()
    moved = {name: variable.numpy() - before[name] for name, variable in step.state.parameters.items()}
    sizes, norms = by_part(before), by_part(moved)
    scalars = result.scalars
    assert {f"update_ratio_{part}" for part in norms} == {name for name in scalars if name.startswith("update_ratio")}
    for part, norm in norms.items():
        assert scalars[f"update_ratio_{part}"] == pytest.approx(norm / sizes[part], rel=1e-3)
    gradients = np.array([scalars[f"gradient_norm_{part}"] for part in norms])
    assert np.sqrt(np.square(gradients).sum()) == pytest.approx(scalars["gradient_norm"], rel=1e-5)
    rates = np.array(list(norms.values())) / gradients
    assert rates == pytest.approx(1e-4, rel=0.01)  # the learning rate in every part; float32 rounds the update


@pytest.mark.full
def test_a_run_has_them_for_each_part_only_if_asked_and_its_losses_are_the_same(store, tmp_path):
    on, off = (metrics(train(store, tmp_path / name, **sections)) for name, sections in (("on", ON), ("off", OFF)))
    assert set(on[0]) - set(off[0]) == NAMES
    assert [line["loss"] for line in on] == [line["loss"] for line in off]


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
def test_every_exchange_has_them(method):
    needed = METHODS[method].optimizer
    table = TOY_STEP | {
        "model": TOY_STEP["model"] | MODEL,
        "exchange": {"method": method} | dict.fromkeys(METHODS[method].intervals, 2),
        "optimizer": {"name": needed} if needed else {},
        "execution": TOY_STEP["execution"] | {"layer_norms": True, "consistency_steps": 0},
    }
    recipe = recipe_from_table(table)
    result = synthetic_step(recipe, synthetic_batch(recipe.model, 4, 32, 5, 1)).run()
    assert all(result.scalars[name] > 0 for name in NAMES)
