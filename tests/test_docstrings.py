"""The examples in docstrings do what they say, and the files that they name are there."""

import doctest
import importlib
import re

import pytest

from tests.horovod_runs import PROJECT, run_python

MODULES = [
    ".".join(path.relative_to(PROJECT).with_suffix("").parts)
    for path in sorted((PROJECT / "bert_horovod").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_give_what_they_show(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted
    assert not results.failed


@pytest.mark.full
def test_the_arithmetic_with_examples_needs_no_tensorflow():
    program = f"import sys, {', '.join(MODULES)}; sys.exit('tensorflow' in sys.modules)"
    assert run_python("-c", program).returncode == 0


def test_files_that_the_package_names_are_there():
    for source in sorted((PROJECT / "bert_horovod").rglob("*.py")):
        for name in re.findall(r"(?<![\w/.])[a-z_]+(?:/[a-z_0-9]+)+\.py\b", source.read_text(encoding="utf-8")):
            places = (*source.parents[:2], PROJECT / "bert_horovod", PROJECT)
            assert any((place / name).exists() for place in places), f"{source} names {name}"
