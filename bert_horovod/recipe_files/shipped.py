"""The recipes that come with the program: run/recipes/ in a clone; installed ones are in bert_horovod/recipes/."""

from pathlib import Path

from bert_horovod.errors import UserError
from bert_horovod.storage.reading import read_text
from bert_horovod.wording import did_you_mean

# Which recipe to take, with its purpose; the others reproduce a published training, or serve a purpose of their own.
TAKE = {
    "quickstart": "to see a run in minutes, without a GPU",
    "bert-mini-fast": "for a first model of a small corpus, on CPU cores",
    "bert-base-2026": "for a BERT-base of one's own; bert-base where it must be the published training",
    "modernbert-base": "for long texts, where all that reads the model knows ModernBERT",
    "domain": "to go on from a published checkpoint on a domain's text",
}
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
        raise UserError(
            f"no recipe {name[:200]}; {did_you_mean(name, recipes)}expected a file, or one of {', '.join(recipes)}"
        )
    return path


def recipe_file(name: str | Path) -> Path:
    """The file that --recipe means: one of this path, else the shipped recipe of this name, with or without .toml.

    Raises UserError for a name, without a directory or a suffix, that is neither.
    """
    path = Path(name)
    if path.name != str(name) or path.is_file():
        return path
    if path.suffix == ".toml":
        return shipped_recipes().get(path.stem, path)
    return shipped_recipe(str(name))


def what_for(path: Path) -> str:
    """The purpose of a recipe: the first line of its file, if that is a comment; else ""."""
    first = read_text(path).partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
