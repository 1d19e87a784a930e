"""All else without this room: a copy of the checkout that lacks both folders passes tests, and says what it lacks."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.horovod_runs import PROJECT, clean_environment, run_process

# Those of each room that take little: together less than a minute on one core.
QUICK = (
    "recipe",
    "recipe_files/test_loading.py",
    "recipe_files/test_files.py",
    "optimizers/test_schedule.py",
    "optimizers/test_slots.py",
    "exchange/test_refusals.py",
    "exchange/test_methods.py",
    "exchange/test_local_sgd.py",
    "tasks/test_heads.py",
    "costs/test_planner.py",
    "commands/test_recipes.py",
    "commands/test_flags.py",
    "runs/test_earlier_run.py",
)


@pytest.fixture(scope="module")
def without(tmp_path_factory) -> Path:
    """The copy."""
    copy = tmp_path_factory.mktemp("without")
    for entry in PROJECT.iterdir():
        if entry.name in ("bert_horovod", "tests"):
            shutil.copytree(entry, copy / entry.name, ignore=shutil.ignore_patterns("experiments", "__pycache__"))
        elif not entry.name.startswith("."):
            (copy / entry.name).symlink_to(entry)
    # Without what finds the modules of a checkout that is installed as editable, also those that a copy lacks.
    (copy / "sitecustomize.py").write_text(
        "import sys\nsys.meta_path[:] = [each for each in sys.meta_path if 'editable' not in str(each).lower()]\n"
    )
    return copy


def run(copy: Path, *words: str):
    return run_process([sys.executable, *words], clean_environment(PYTHONPATH=str(copy)), copy)


@pytest.mark.full
def test_quick_tests_pass(without):
    files = [os.path.join("tests", file) for file in QUICK]
    done = run(without, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files)
    assert done.returncode == 0, done.stdout[-3000:]
    where = run(without, "-c", "import bert_horovod; print(bert_horovod.__file__)")
    assert where.stdout.startswith(str(without))


@pytest.mark.full
@pytest.mark.parametrize(
    "setting", ["optimizer.name=came", "exchange.method=mt_dao", "finetuning.head=multiverse", "objective.heads=2"]
)
def test_a_setting_that_names_an_experiment_is_told_where_it_is(without, setting):
    words = ("plan", "--recipe", "bert-base", "--device", "A100", "--set", setting)
    done = run(without, "-m", "bert_horovod", *words)
    assert done.returncode == 2
    assert "others are in bert_horovod.experiments, which this installation lacks" in done.stderr
