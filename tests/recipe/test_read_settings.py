"""Records which settings a real run reads: what it does not read has a condition, so that it is refused elsewhere."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from bert_horovod.exchange.methods import METHODS
from bert_horovod.optimizers.rules import RULES
from bert_horovod.recipe.fields import ReadIf
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import PRETRAINING
from tests.toy_runs import train_recipe
from tests.toys import more_rows, toy_recipe

# Read later in a run, when it fails, when it is long, when the model grows, or by the command before the run.
LATER = {
    "numerics.loss_jump",
    "numerics.on_divergence",
    "phase.num_hidden_layers",  # refused unless the last phase has them all
    "phase.grow",  # the same
    "phase.global_rope_theta",  # refused for other models by their check
    "execution.threads",
    "data.mixture_temperature",  # of several stores alone
    "execution.probe",
}
# A rule with each method, so that each of both is run once.
PAIRS = {
    "gradients": "muon",
    "powersgd": "lans",
    "largest_chunks": "sgd",
    "onebit_adam": "adamw",
    "onebit_lamb": "lamb",
    "parameters": "stable_adamw",
    "dreamddp": "muon",
    "diloco": "adamw",
    **more_rows("rows.PAIRS"),
}
INTERVALS = {"diloco": {"interval": 2}, "dreamddp": {"full_interval": 2, "interval": 1}}
FULL = ("gradients", "powersgd", *more_rows("rows.FULL_PAIRS"))


def sections(recipe: Recipe) -> dict[str, Any]:
    """The sections by name; the first phase stands for all."""
    named = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe) if field.name != "notes"}
    return named | {"phase": recipe.phase[0]}


def recorded(recipe: Recipe, read: set[str]) -> Recipe:
    """The recipe, whose sections add to `read` what is asked of them outside of recipe/ and recipe_files/."""

    def copy(name: str, section: Any) -> Any:
        def get(self: Any, key: str) -> Any:
            asking = sys._getframe(1).f_code.co_filename
            if not asking.startswith("<") and not {"recipe", "recipe_files", "dataclasses.py"} & set(
                Path(asking).parts
            ):
                read.add(f"{name}.{key}")
            return object.__getattribute__(self, key)

        kind = type(section)
        made = object.__new__(type(kind.__name__, (kind,), {"__getattribute__": get, "__module__": kind.__module__}))
        vars(made).update(vars(section))
        return made

    made = {name: copy(name, section) for name, section in sections(recipe).items()}
    return dataclasses.replace(recipe, **made | {"phase": (made["phase"],)})


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=pytest.mark.full if name in FULL else pytest.mark.slow) for name in PAIRS]
)
def test_each_setting_is_read_or_has_a_condition_that_does_not_hold(store, tmp_path, method):
    exchange = {"method": method} | INTERVALS.get(method, {})
    every = dict.fromkeys(("evaluate_steps", "checkpoint_steps", "consistency_steps"), 2)
    recipe = toy_recipe(optimizer={"name": PAIRS[method]}, exchange=exchange, phase={"steps": 4}, execution=every)
    read: set[str] = set()
    train_recipe(recorded(recipe, read), store, tmp_path / "run")
    ignored = set()
    for name, section in sections(recipe).items():
        for entry in dataclasses.fields(section):
            condition: ReadIf | None = entry.metadata.get("read_if")
            idle = condition and (
                (condition.tasks and PRETRAINING not in condition.tasks)
                or (condition.holds and not condition.holds(recipe))
            )
            if entry.init and not idle and f"{name}.{entry.name}" not in read | LATER and name != "card":
                ignored.add(f"{name}.{entry.name}")
    assert ignored == set()


def test_every_rule_and_every_method_is_run():
    assert set(PAIRS) == set(METHODS)
    assert set(PAIRS.values()) == set(RULES)
