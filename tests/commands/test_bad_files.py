"""Bad files given to the commands: one line that says what is wrong, an exit code, no traceback, no hanging.

That a process prints that line and ends with that code: tests/test_main.py.
"""

import json
import os
from pathlib import Path

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.recipe_files.loading import recipe_to_toml
from tests.mutations import nested
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store


@pytest.fixture
def refused(capsys):
    """A function that runs a command and returns the one line that it prints before it exits; code 1: damaged files."""

    def run(*words: object, code: int = 1) -> str:
        assert dispatch(parse(["bert-horovod", *map(str, words)])) == code
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return run


@pytest.fixture
def store(tmp_path) -> Path:
    """A toy store."""
    return write_toy_store(tmp_path / "store", held_out=0.3, vocabulary=SMALL_VOCABULARY).path


def outside(manifest: dict) -> None:
    for entry in manifest["shards"]:
        entry["name"] = "../../x"


def longer(manifest: dict) -> None:
    manifest["shards"][0]["arrays"]["sentences"][1] = 10**15


@pytest.mark.parametrize(
    ("change", "program", "code", "message"),
    [
        (outside, "verify", 1, "shards.0.name is '../../x', expected that of a shard"),
        (None, "verify", 2, "cannot read manifest.json (it is not a regular file)"),
        (
            lambda manifest: manifest.update(totals="many"),
            "inspect",
            1,
            "manifest.totals is 'many', expected an object",
        ),
        (longer, "inspect", 1, "arrays.sentences has 1000000000000000 bytes, expected ("),
    ],
)
def test_a_bad_manifest_is_refused(refused, store, change, program, code, message):
    path = store / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    if change:
        change(manifest)
        path.write_text(json.dumps(manifest), encoding="utf-8")
    else:
        os.mkfifo(path)
    assert message in refused(program, "--data_dir", store, code=code)


def test_evaluate_refuses_a_config_nested_without_end(refused, store, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("[" * 100_000, encoding="utf-8")
    line = refused("evaluate", "--checkpoint", tmp_path / "model", "--data_dir", store)
    assert "config.json is damaged: expected JSON: it is nested too deeply" in line


def test_pretrain_refuses_an_output_directory_with_a_hostile_run_json(refused, store, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe_to_toml(toy_recipe()), encoding="utf-8")
    output = tmp_path / "output"
    output.mkdir()
    (output / "run.json").write_text(json.dumps({"store": nested(100), "format": 1}), encoding="utf-8")
    line = refused("pretrain", "--recipe", recipe, "--data_dir", store, "--output_dir", output)
    assert "run.json is missing or damaged (it.store is [[[" in line
