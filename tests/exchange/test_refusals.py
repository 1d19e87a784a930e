"""Settings of exchanges that are out of range, unknown to the method, or at odds with other sections."""

import pytest

from bert_horovod.errors import UserError
from bert_horovod.recipe_files.loading import recipe_from_table
from tests.toy_runs import train
from tests.toys import more_rows, toy_recipe_table


def recipe(settings: str):
    """The toy recipe with settings of [exchange], or of another section that is named."""
    overrides = [word if "." in word.partition("=")[0] else f"exchange.{word}" for word in settings.split()]
    return recipe_from_table(toy_recipe_table(execution={"checkpoint_steps": 20}), overrides)


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("letters", ""),
        ("parameters", "interval=0"),
        ("diloco", "interval=0 outer_rate=0.0 outer_momentum=1.0 fragments=0 delay=-1"),
        ("dreamddp", "full_interval=0"),
        ("largest_chunks", "dense=1.5"),
        ("powersgd", "rank=0 dense=1.5 dense_wire='signs' words='dense'"),
        ("powersgd", "rank=65 dense='auto'"),
        ("onebit_adam", "dense=1.5"),
        ("onebit_adam", "dense='never'"),
        *more_rows("rows.OUT_OF_RANGE"),
    ],
)
def test_each_value_out_of_range_is_refused_by_its_key(method, values):
    with pytest.raises(UserError) as refused:
        recipe(f"method={method} {values}")
    for value in values.split() or [f"method='{method}'"]:
        assert f"exchange.{value.replace('=', ' = ')}: expected " in str(refused.value)


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("gradients", "interval = 2"),
        ("gradients", "rank = 2"),
        ("dreamddp", "outer_rate = 0.5"),
        ("largest_chunks", "interval = 4"),
        ("powersgd", "interval = 4"),
        ("onebit_adam", "interval = 2"),
        ("onebit_lamb", "interval = 2"),
        *more_rows("rows.OF_ANOTHER"),
    ],
)
def test_a_setting_of_another_method_is_refused(method, value):
    message = rf"exchange\.{value}: .*exchange\.method = '{method}' has no such setting"
    with pytest.raises(UserError, match=message):
        recipe(
            f"method={method} optimizer.name={'lamb' if method == 'onebit_lamb' else 'adamw'} {value.replace(' ', '')}"
        )


ADAM = "method=onebit_adam"
LAMB = "method=onebit_lamb optimizer.name=lamb"
CHUNKS = "method=largest_chunks"
POWERSGD = "method=powersgd"
DREAM = "method=dreamddp interval=5 full_interval=20"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("execution.reduction=two_step", r"execution\.reduction = 'two_step': .*'float32' goes by ring alone"),
        ("execution.reduction=ring numerics.wire=int8", r"'ring': .*'int8' goes by two_step alone; expected auto"),
        (f"{CHUNKS} numerics.wire=int8", r"'int8': .*'largest_chunks' sums its chunks by ring; expected float32 or"),
        (f"{POWERSGD} numerics.wire=float16 execution.reduction=two_step", r"'powersgd' sums float16 numbers by ring"),
        ("method=parameters numerics.wire=float16", r"numerics\.wire = 'float16': .*'parameters'.*expected float32"),
        (f"{DREAM} numerics.wire=float16", r"numerics\.wire = 'float16': .*'dreamddp'.*expected float32"),
        (f"{ADAM} optimizer.name=lamb", r"optimizer\.name = 'lamb'.*expected adamw"),
        ("method=onebit_lamb", r"optimizer\.name = 'adamw'.*expected lamb"),
        (
            "method=parameters interval=3",
            r"phase\.0\.steps = 20: .*every 3 steps \(exchange\.interval = 3\); expected a multiple",
        ),
        ("method=parameters interval=4 execution.checkpoint_steps=10", r"execution\.checkpoint_steps = 10: .*multiple"),
        (f"{DREAM} execution.evaluate_steps=6", r"execution\.evaluate_steps = 6: .*exchange\.full_interval = 20"),
        (f"{DREAM} interval=3", r"exchange\.full_interval = 20: .*exchange\.interval = 3 steps; expected a mult"),
        ("method=diloco fragments=7", r"fragments = 7: .*exchange\.interval = 30 steps; expected a divisor of it"),
        ("method=diloco fragments=6 delay=6", r"exchange\.delay = 6: .* 5 steps later .*expected at most that"),
        (f"{ADAM} dense=0.05", r"exchange\.dense = 0\.05.*phase\.0\.warmup = 0\.1"),
        (f"{ADAM} encoding=none", r"encoding = 'none': there is no such setting any more"),
        (f"{LAMB} largest_ratio=1.0", r"largest_ratio = 1\.0: there is no such setting any more"),
        (f"{ADAM} form='published'", r"form = 'published': there is no such setting any more"),
        *more_rows("rows.NOT_TOGETHER"),
    ],
)
def test_what_does_not_go_together_is_refused_by_its_key(settings, message):
    with pytest.raises(UserError, match=message):
        recipe(settings)


def test_what_goes_together_is_not_refused():
    for settings in (f"{POWERSGD} numerics.wire=int8 execution.reduction=two_step", DREAM):
        recipe(settings)


def test_max_steps_where_ranks_differ_are_refused(store, tmp_path):
    sections = {"exchange": {"method": "parameters", "interval": 4}, "execution": {"consistency_steps": 0}}
    with pytest.raises(UserError, match=r"--max_steps 6: .*every 4 steps"):
        train(store, tmp_path, 6, optimizer={"name": "sgd"}, **sections)
