"""The packages of bert_horovod; pyproject.toml has everything else.

run/recipes is installed as bert_horovod/recipes, where recipe_files/loading.py looks for it.
"""

from pathlib import Path

from setuptools import find_packages, setup

RECIPES = Path(__file__).with_name("run") / "recipes"  # absent while an image installs what only versions decide on

setup(
    packages=find_packages(include=["bert_horovod", "bert_horovod.*"])
    + (["bert_horovod.recipes"] if RECIPES.is_dir() else []),
    package_dir={"bert_horovod.recipes": "run/recipes"},
)
