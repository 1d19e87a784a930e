"""Each checkpoint has a model card: metadata for the Hub, what was trained on what, losses, the recipe."""

import json
import re
from pathlib import Path

import pytest
import yaml

from bert_horovod.errors import UserError
from bert_horovod.recipe.fields import parse_toml
from bert_horovod.recipe.sections import WHAT_SECTIONS
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_table
from bert_horovod.runs.model_card import CARD
from bert_horovod.runs.resuming import load_newest
from bert_horovod.tasks.pretraining import Pretraining
from tests.runs.test_checkpoint import POSITION, random_state
from tests.toy_runs import metrics, save, train
from tests.toys import toy_recipe

WORDS = {"language": ["no", "en"], "license": "cc-by-4.0"}


def metadata(card: str) -> dict:
    """The YAML at the card's beginning."""
    return yaml.safe_load(re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)[1])


def table(card: str) -> dict[str, str]:
    """The card's tables of two columns."""
    return dict(re.findall(r"^\| ([^|]+) \| (.+) \|$", card, re.MULTILINE))


@pytest.fixture(scope="module")
def run(tmp_path_factory, store) -> Path:
    """A run of six steps with held-out losses, and a checkpoint every two steps."""
    execution = {"checkpoint_steps": 2, "evaluate_steps": 3}
    return train(store, tmp_path_factory.mktemp("run") / "my-bert", 6, execution=execution, card=WORDS)


def card(run: Path, step: int) -> str:
    return (run / "checkpoints" / f"step-{step:08d}" / CARD).read_text(encoding="utf-8")


def test_the_hub_reads_language_licence_library_and_pipeline(run):
    about = metadata(card(run, 6))
    assert about == WORDS | {"library_name": "transformers", "pipeline_tag": "fill-mask", "tags": ["bert_horovod"]}


def test_the_card_tells_model_steps_tokens_and_data(run, store):
    text = card(run, 6)
    facts = table(text)
    recipe = toy_recipe()
    rows = 6 * recipe.phase[0].global_batch
    assert text.splitlines()[8] == "# my-bert, step 6"
    assert facts["steps"] == f"6 of {recipe.total_steps}"
    assert facts["tokens seen"] == f"{rows * recipe.phase[0].sequence_length:,}, padding included"
    assert facts["data"] == f"`store`, {store.manifest['totals']['tokens']:,} tokens, SHA-256 `{store.hash}`"
    parameters = load_newest(run, Pretraining(recipe.objective.pairs)).parameters
    assert f"{sum(array.size for array in parameters.values()):,} parameters" in facts["model"]
    assert "started from" not in facts


def test_losses_are_those_of_the_checkpoints_step_or_the_last_before_it(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    held_out = {line["step"]: line["held_out_mlm_loss"] for line in lines if "held_out_mlm_loss" in line}
    losses = {line["step"]: line["loss"] for line in metrics(run)}
    for step, evaluated in ((4, 3), (6, 6)):
        facts = table(card(run, step))
        assert facts["loss"] == f"{losses[step]:.4f}"
        assert facts["held out mlm loss"] == f"{held_out[evaluated]:.4f}"
    assert not {"learning rate", "step s", "time"} & facts.keys()


def test_the_recipe_is_what_was_trained(run):
    text = re.search(r"```toml\n(.*?)```", card(run, 6), re.DOTALL)[1]
    table = recipe_to_table(toy_recipe())
    assert parse_toml(text) == {section: table[section] for section in WHAT_SECTIONS}


def test_a_run_that_began_with_a_checkpoint_names_it_without_its_directory(tmp_path, store):
    start = {"flag": "--init_checkpoint", "checkpoint": "/secret/place/bert-base", "weights": "ab" * 32}
    (tmp_path / "run.json").write_text(json.dumps({"store": store.hash, "start": start, "format": 1}))
    path = save(tmp_path, random_state(10), toy_recipe(), store, POSITION)
    text = (path / CARD).read_text(encoding="utf-8")
    assert table(text)["started from"] == "`bert-base`, weights SHA-256 `abababababab`"
    assert "secret" not in text


@pytest.mark.parametrize(
    ("key", "value"),
    [("language", ["English"]), ("language", ["EN"]), ("language", "en"), ("license", "MIT License"), ("license", "-")],
)
def test_words_that_the_hub_cannot_know_are_refused_by_the_name_of_the_key(key, value):
    with pytest.raises(UserError, match=rf"card\.{key} = .*expected"):
        recipe_from_table({"card": {key: value}})
