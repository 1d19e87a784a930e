"""Fragments of a recipe that hold settings of [execution] alone."""

import re

import pytest

from bert_horovod.errors import UserError
from bert_horovod.recipe.settings import Execution
from bert_horovod.recipe_files.loading import execution_overrides, fragment, recipe_from_table, tuned_overrides

SETTINGS = {"micro_batch": 16, "xla": "off", "log_steps": 5, "tensorboard": False, "profile_steps": [2, 3]}


def test_what_is_written_is_what_a_recipe_gets_and_set_wins(tmp_path):
    path = tmp_path / "tuned.toml"
    path.write_text(fragment(SETTINGS, ["for a machine", "1.2 times the rows/s"]), encoding="utf-8")
    assert path.read_text().startswith("# for a machine\n# 1.2 times the rows/s\n[execution]\nmicro_batch = 16\n")
    overrides = tuned_overrides(path)
    assert overrides == execution_overrides(SETTINGS)
    recipe = recipe_from_table({"execution": {"micro_batch": 1, "threads": 2}}, [*overrides, "execution.xla=layers"])
    assert recipe.execution == Execution(
        micro_batch=16, xla="layers", threads=2, log_steps=5, tensorboard=False, profile_steps=(2, 3)
    )


def test_a_fragment_of_an_earlier_version_may_list_a_removed_setting_with_its_default(tmp_path):
    path = tmp_path / "tuned.toml"
    path.write_text("[execution]\nmicro_batch = 16\ncycle_time_ms = 1.0\n")
    assert recipe_from_table({}, tuned_overrides(path)).execution == Execution(micro_batch=16)
    path.write_text("[execution]\ncycle_time_ms = 0.5\n")
    with pytest.raises(UserError, match="no such setting any more; set the variable HOROVOD_CYCLE_TIME"):
        tuned_overrides(path)


def test_without_a_fragment_nothing_is_set(tmp_path):
    assert tuned_overrides(None) == []
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    assert tuned_overrides(empty) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[numerics]\nprecision = 'float16'", "unknown key numerics; known are: execution. Expected settings of"),
        ("[execution]\nmicro_bach = 1", "unknown key execution.micro_bach; did you mean micro_batch?"),
        ("[execution]\nmicro_batch = 0", "execution.micro_batch = 0: expected at least 1. Expected settings of"),
        ("[execution]\nxla = 3", "execution.xla = 3: expected a string, found a whole number"),
        ("execution = 1", "execution = 1: expected a table [execution]"),
        ("micro_batch = 8", "unknown key micro_batch; known are: execution"),
        ("[execution", "is not valid TOML"),
    ],
)
def test_anything_else_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "tuned.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(f"--tuned {path}") + ".*" + re.escape(message)):
        tuned_overrides(path)
