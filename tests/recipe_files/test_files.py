"""Recipes that come with the program and what their comments say; fragments with settings of [execution] alone."""

import re
from pathlib import Path

import pytest

from bert_horovod.costs.derived import derive
from bert_horovod.errors import UserError
from bert_horovod.recipe.settings import Execution
from bert_horovod.recipe_files import loading
from bert_horovod.recipe_files.loading import (
    execution_overrides,
    fragment,
    load_recipe,
    recipe_file,
    recipe_from_table,
    shipped_recipe,
    shipped_recipes,
    tuned_overrides,
    what_for,
)

CLONE = Path(__file__).resolve().parents[2] / "run" / "recipes"
FILES = sorted(CLONE.glob("*.toml"))
ALL = pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
_PHASE = re.compile(r"([\d,]+) x ([\d,]+) x (\d+) = ([\d.]+) G tokens")
_PARAMETERS = re.compile(r"([\d.,]+)( M)? parameters|parameters ([\d.,]+)( M)?")


def comment(path: Path) -> str:
    """The comment with which a recipe begins."""
    return path.read_text(encoding="utf-8").partition("\n\n")[0]


def number(text: str) -> float:
    return float(text.replace(",", "").rstrip("."))


def test_in_a_clone_they_are_those_of_run_recipes():
    assert list(shipped_recipes().values()) == FILES
    assert len(FILES) >= 8


def test_a_recipe_is_a_file_or_the_name_of_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("bert-base", "bert-base.toml"):
        assert recipe_file(name) == recipe_file(Path(name)) == CLONE / "bert-base.toml"
        assert load_recipe(name) == load_recipe(CLONE / "bert-base.toml")
    (tmp_path / "quickstart").mkdir()
    assert recipe_file("quickstart") == CLONE / "quickstart.toml"
    (tmp_path / "bert-base").write_text("")
    assert recipe_file("bert-base") == Path("bert-base"), "a file comes first"
    with pytest.raises(UserError, match=r"no recipe quickstrt; did you mean quickstart\? expected a file, or one"):
        load_recipe("quickstrt")
    for missing in ("./quickstrt", "mine.toml", tmp_path / "bert-large"):
        with pytest.raises(UserError, match=r"cannot read the recipe .*No such file.*`bert-horovod recipes` lists"):
            load_recipe(missing)


def test_a_mistake_in_a_recipe_is_told_with_its_file(tmp_path):
    (tmp_path / "recipe.toml").write_text("[model]\nold_key = 1\n[[phase]]\nsteps = 9\n")
    with pytest.raises(UserError, match=rf"^the recipe {tmp_path}/recipe.toml: unknown key model.old_key"):
        load_recipe(tmp_path / "recipe.toml")
    with pytest.raises(UserError, match=rf"^the recipe {CLONE}/bert-base.toml with --set: model.hidden_size = 0: exp"):
        load_recipe("bert-base", ["model.hidden_size=0"])
    with pytest.raises(UserError, match=r"^--set nonsense: expected section.key=value"):
        load_recipe("bert-base", ["nonsense"])


def test_an_installed_package_has_its_own(tmp_path, monkeypatch):
    (tmp_path / "package" / "recipes").mkdir(parents=True)
    (tmp_path / "package" / "recipes" / "mine.toml").write_text("# Mine.\n", encoding="utf-8")
    monkeypatch.setattr(loading, "_PACKAGE", tmp_path / "package")
    assert what_for(shipped_recipe("mine.toml")) == "Mine."
    (tmp_path / "package" / "recipes" / "mine.toml").unlink()
    with pytest.raises(UserError, match=r"found no recipes in .*install the program again"):
        shipped_recipes()


@ALL
def test_a_recipe_begins_with_what_it_reproduces(path):
    assert re.fullmatch(r"[A-Z].{30,180}[.]", what_for(path)), "expected a sentence on the first line"


@ALL
def test_the_numbers_of_a_comment_are_those_of_the_recipe(path):
    recipe, text = load_recipe(path), comment(path)
    parameters = derive(recipe, recipe.phase[-1], 1).parameters
    for match in _PARAMETERS.finditer(text):
        count, millions = (match[1], match[2]) if match[1] else (match[3], match[4])
        assert number(count) == pytest.approx(parameters / (1e6 if millions else 1), rel=0.005)
    stated = [tuple(map(number, match.groups())) for match in _PHASE.finditer(text)]
    phases = [(phase.steps, phase.global_batch, phase.sequence_length) for phase in recipe.phase]
    assert [each[:3] for each in stated] in ([], phases)  # small ones may say it in words
    for steps, rows, length, tokens in stated:
        assert tokens == pytest.approx(steps * rows * length / 1e9, rel=0.01)


SETTINGS = {"micro_batch": 16, "xla": "off", "log_steps": 5, "trackers": ["wandb"]}


def test_what_is_written_is_what_a_recipe_gets_and_set_wins(tmp_path):
    path = tmp_path / "tuned.toml"
    path.write_text(fragment(SETTINGS, ["for a machine", "1.2 times the rows/s"]), encoding="utf-8")
    assert path.read_text().startswith("# for a machine\n# 1.2 times the rows/s\n[execution]\nmicro_batch = 16\n")
    overrides = tuned_overrides(path)
    assert overrides == execution_overrides(SETTINGS)
    recipe = recipe_from_table({"execution": {"micro_batch": 1, "threads": 2}}, [*overrides, "execution.xla=layers"])
    assert recipe.execution == Execution(micro_batch=16, xla="layers", threads=2, log_steps=5, trackers=("wandb",))


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
