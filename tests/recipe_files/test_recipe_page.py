"""docs/recipe.md is what the settings and their comments say."""

import dataclasses
import importlib.util
from types import ModuleType

import pytest

from bert_horovod.recipe.fields import OneOf
from bert_horovod.recipe_files.loading import SECTIONS
from tests.horovod_runs import PROJECT

KINDS = [
    kind
    for section in SECTIONS.values()
    for kind in (
        section.kinds.values() if isinstance(section, OneOf) else section if isinstance(section, list) else [section]
    )
]


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_recipe_page", PROJECT / "docs" / "make_recipe_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(maker):
    assert maker.PAGE.read_text(encoding="utf-8") == maker.page(), "run: python docs/make_recipe_page.py"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_setting_says_what_it_means(maker, kind):
    meanings = maker.in_source(kind)
    assert set(meanings) == {entry.name for entry in dataclasses.fields(kind)}
    assert [each.name for each in dataclasses.fields(kind) if each.init and len(meanings[each.name][1]) < 8] == []


def test_values_are_told_with_their_limits(maker):
    page = maker.page()
    assert '| `dense` | `onebit_adam`, `onebit_lamb`, `zero_one_adam` | `0.2` | number from 0 to 1; `"auto"` |' in page
    assert '| `bucket_bytes` | `"auto"` | whole number from 1; `"auto"` |' in page
    assert "| `timeline` | `[]` | list of whole numbers |" in page
    assert '| `pair` | `"next_sentence"` | `"next_sentence"`, `"sentence_order"`, `"none"` |' in page
