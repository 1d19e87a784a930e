"""Any recipe is one that can be written and read again, or a UserError."""

import math
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recipe, recipe_from_table, recipe_to_table, recipe_to_toml
from tests.mutations import HOSTILE_VALUES, Change, apply, bounded, change_json, sandbox
from tests.toys import recipe_of, toy_recipe, toy_recipe_table

NAMES = sorted({name for value in recipe_to_table(recipe_of()).values() if isinstance(value, dict) for name in value})
SECTIONS = [*recipe_to_table(recipe_of()), "phases", "", "model.data"]
NUMBERS = ["8", "-1", "0", "nan", "-inf", "1e999", "9" * 5000, "0x" + "f" * 9000, "0.1", "1979-05-27", "1_000", "٣"]
TEXTS = ["", "true", '"adamw"', "adamw", "[", "[" * 5000, "{a = 1}", "[1, 2]", '"\\u0000"', "\n[model]", "'", "#"]
HOSTILE_TOML = [
    *("[" * 20_000, "a = " + "[" * 20_000, "a = " + "{a = " * 20_000, "a = " + "9" * 5000, "[a" + ".a" * 9000 + "]"),
    *("model" + ".a" * 900 + " = 1", "model." + "a" * 9000 + " = 1", "[model]\nvocab_size = 0x" + "f" * 9000),
    *("[[model]]", "[phase]", "phase = 1", "phase = []", "phase = [[]]", "[[phase]]\n" * 9),
    *("\0", "\ufeff", "model = nan"),
    *("[model]\nvocab_size = 1979-05-27", "[model]\nvocab_size = 07:32:00", "[execution]\ntimeline = [nan, 1]"),
    *("[data]\nseed = " + "[" * 90 + "]" * 90, "[model]\nnum_hidden_layers = 1000000000000"),
]

values = st.one_of(
    st.sampled_from(HOSTILE_VALUES),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        max_leaves=6,
    ),
)
tables = st.one_of(
    st.builds(Change, st.sampled_from(["set", "delete", "add", "move"]), st.integers(0, 1 << 20), values).map(
        lambda change: change_json(toy_recipe_table(), change)
    ),
    st.dictionaries(
        st.sampled_from(SECTIONS), st.one_of(values, st.dictionaries(st.sampled_from(NAMES), values, max_size=4))
    ),
)
overrides = st.one_of(
    st.builds(
        "{}.{}={}".format,
        st.one_of(
            st.sampled_from(SECTIONS), st.sampled_from(["phase.0", "phase.-1", "phase.٣", "phase." + "9" * 5000])
        ),
        st.sampled_from(NAMES),
        st.sampled_from(NUMBERS + TEXTS),
    ),
    st.text(alphabet="abc.=[]{}\"'0x-\n\0", max_size=12),
)


def assert_is_a_recipe(recipe: Recipe) -> None:
    """It is typed, bounded and finite, and comes back from its text."""
    table = recipe_to_table(recipe)
    for section in (*table["phase"], *(table[name] for name in table if name != "phase")):
        for value in section.values():
            assert not isinstance(value, float) or math.isfinite(value)
            assert not isinstance(value, int) or abs(value) < 1 << 63
    assert recipe_from_table(table) == recipe


@bounded(30)
@given(tables, st.lists(overrides, max_size=2))
def test_any_table_is_a_recipe_or_a_users_error(tmp_path_factory, table, changed):
    with sandbox_of_recipe(tmp_path_factory) as box:
        recipe = box.read(recipe_from_table, table, changed)
        if not isinstance(recipe, UserError):
            assert_is_a_recipe(recipe)


@bounded(20)
@given(
    st.one_of(
        st.builds(Change, st.sampled_from(["flip"]), st.integers(0, 1 << 20), st.integers(0, 7)),
        st.builds(Change, st.just("truncate"), st.integers(0, 1 << 20), st.none()),
        st.builds(Change, st.just("content"), st.just(0), st.sampled_from([text.encode() for text in HOSTILE_TOML])),
        st.sampled_from([Change(kind) for kind in ("remove", "directory", "fifo", "link_loop", "sparse")]),
    ),
    st.lists(overrides, max_size=1),
)
def test_any_file_is_a_recipe_or_a_users_error(tmp_path_factory, change, changed):
    with sandbox_of_recipe(tmp_path_factory) as box:
        path = box.directory / "recipe.toml"
        apply(path, change, box.outside)
        recipe = box.read(load_recipe, path, changed)
        if not isinstance(recipe, UserError):
            assert_is_a_recipe(recipe)
            path.unlink()
            path.write_text(recipe_to_toml(recipe), encoding="utf-8")
            assert load_recipe(path) == recipe


def sandbox_of_recipe(tmp_path_factory):
    """A sandbox that holds the toy recipe."""
    original = tmp_path_factory.getbasetemp() / "recipe"
    if not original.is_dir():
        original.mkdir()
        (original / "recipe.toml").write_text(recipe_to_toml(toy_recipe()), encoding="utf-8")
    return sandbox(original, tmp_path_factory.getbasetemp() / "recipe_box")


def test_a_message_does_not_repeat_a_value_of_any_length(tmp_path: Path):
    path = tmp_path / "recipe.toml"
    path.write_text(tomli_w.dumps({"optimizer": {"name": "x" * 100_000}}), encoding="utf-8")
    with pytest.raises(UserError, match=r"optimizer\.name = 'xxx.*expected one of adamw"):
        load_recipe(path)


@pytest.mark.parametrize("name", ["num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings"])
def test_a_size_that_no_machine_holds_is_refused(name):
    with pytest.raises(UserError, match=rf"model\.{name} = 1000000000000: expected .*at most"):
        recipe_from_table({"model": {name: 10**12}})
