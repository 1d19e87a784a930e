"""The recipes that come with the program: run/recipes/ in a clone; setup.py installs them as bert_horovod/recipes/."""

from pathlib import Path

from bert_horovod.errors import UserError
from bert_horovod.storage.reading import read_text
from bert_horovod.wording import did_you_mean

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_recipes() -> dict[str, Path]:
    """The recipes' files by name, as in "bert-base"."""
    installed, clone = _PACKAGE / "recipes", _PACKAGE.parent / "run" / "recipes"
    files = sorted((installed if installed.is_dir() else clone).glob("*.toml"))
    if not files:
        raise UserError(f"found no recipes in {installed} and none in {clone}; install the program again")
    return {path.stem: path for path in files}


def shipped_recipe(name: str) -> Path:
    """The file of the recipe of this name, with or without .toml; raises UserError if there is none."""
    recipes = shipped_recipes()
    path = recipes.get(name.removesuffix(".toml"))
    if path is None:
        raise UserError(f"no recipe {name[:200]}; {did_you_mean(name, recipes)}known are: {', '.join(recipes)}")
    return path


def what_for(path: Path) -> str:
    """The purpose of a recipe: the first line of its file, if that is a comment; else ""."""
    first = read_text(path).partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
