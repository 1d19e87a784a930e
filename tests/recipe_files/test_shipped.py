"""The recipes that come with the program: found in a clone and installed, and what their comments say is so."""

import re
from pathlib import Path

import pytest

from bert_horovod.costs.derived import derive
from bert_horovod.errors import UserError
from bert_horovod.recipe_files import loading
from bert_horovod.recipe_files.loading import load_recipe, recipe_file, shipped_recipe, shipped_recipes, what_for

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
        with pytest.raises(
            UserError, match=r"cannot read the recipe .*No such file.*`bert-horovod recipes` lists those"
        ):
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
    assert re.fullmatch(r"[A-Z].{30,180}[.]", what_for(path)), (
        "expected one sentence on the file's first line, as a comment"
    )


def test_most_comments_state_numbers():
    texts = [comment(path) for path in FILES]
    assert (
        sum(_PARAMETERS.search(text) is not None for text in texts) >= 11
    )  # the grown ones name the model they grow to
    assert sum(_PHASE.search(text) is not None for text in texts) >= 8


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
