"""A run that continues another is what one run of both recipes' phases would be."""

import shutil
from pathlib import Path

import pytest

from bert_horovod.collectives.world import World
from bert_horovod.commands import pretrain
from bert_horovod.corpus.store import Store, open_store
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_toml
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.runs.state import Progress
from bert_horovod.training.initial import CONTINUE, Initial
from bert_horovod.training.job import pretraining_job
from tests.commands.test_pretrain import opened
from tests.toy_runs import assert_same_files, losses, newest, train_recipe
from tests.toys import toy_recipe_table

TABLE = toy_recipe_table(model={"num_hidden_layers": 1}, execution={"checkpoint_steps": 4, "evaluate_steps": 4})
(PHASE,) = TABLE.pop("phase")
FIRST, THEN = PHASE | {"steps": 4}, PHASE | {"steps": 4, "masked_fraction": 0.3}
BOTH, A, B = (recipe_from_table(TABLE | {"phase": phases}) for phases in ([FIRST, THEN], [FIRST], [THEN]))


def run_both_ways(world: World, store: Path, directory: Path) -> None:
    """One run of both phases; one of the first; one of the second that continues it, stopped and resumed."""
    opened_store = open_store(store)
    train_recipe(BOTH, opened_store, directory / "both", world)
    train_recipe(A, opened_store, directory / "a", world)
    initial = Initial(find_checkpoint(directory / "a", CONTINUE))
    train_recipe(B, opened_store, directory / "b", world, initial=initial, max_steps=2)
    train_recipe(B, opened_store, directory / "b", world)


def assert_the_same(directory: Path) -> None:
    assert losses(directory / "b") == losses(directory / "both")[-len(losses(directory / "b")) :]
    assert_same_files(directory / "b", directory / "both")


@pytest.mark.full
def test_so_it_is_on_two_ranks(store, two_ranks, tmp_path):
    two_ranks.run(run_both_ways, store.path, tmp_path)
    assert_the_same(tmp_path)


def test_a_copy_of_a_checkpoint_is_continued_unless_its_optimizer_state_is_damaged(store: Store, tmp_path):
    """`--init_checkpoint` does not read that state, and takes such a checkpoint."""
    run = train_recipe(A, store, tmp_path / "a")
    copy = tmp_path / "kept" / "best"
    shutil.copytree(newest(run), copy)
    (tmp_path / "recipe.toml").write_text("of = 'another program'", encoding="utf-8")

    def begun(path: Path) -> Progress:
        job = pretraining_job(B, store, tmp_path / "b")
        return Initial(find_checkpoint(path, CONTINUE)).begun(B, job.task, job.dataset).progress

    assert begun(copy) == begun(run / "model") == begun(run)
    progress = begun(run)
    assert (progress.updates, progress.phases_before, progress.steps_before) == (4, 1, 4)
    assert (progress.mean_loss, progress.plan) == (None, {})  # of other rows
    optimizer = copy / "training" / "optimizer.safetensors"
    optimizer.write_bytes(optimizer.read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedData, match=r"best is damaged: training/optimizer\.safetensors; take another"):
        begun(copy)


def test_what_cannot_be_continued_is_refused(store: Store, tmp_path):
    train_recipe(A, store, tmp_path / "a")
    recipe = tmp_path / "recipe.toml"

    def refuse(other: Recipe, words: str, *more: str) -> None:
        recipe.write_text(recipe_to_toml(other), encoding="utf-8")
        files = {
            "recipe": recipe,
            "data_dir": store.path,
            "output_dir": tmp_path / "b",
            "continue_from": tmp_path / "a",
        }
        with pytest.raises(UserError, match=words):
            pretrain.run(opened(files | {"continue_from": tmp_path / "a"}, *more))
        assert not (tmp_path / "b").exists()

    refuse(B, "optimizer.name = 'adamw', the recipe has 'lamb'", "--set", "optimizer.name=lamb")
    other = ("--set", "exchange.method=powersgd", "--set", "numerics.wire=float16")
    refuse(B, "exchange.method = 'powersgd', numerics.wire = 'float16': each rank keeps a state of its own", *other)
    refuse(B, "has shape .* the recipe's", "--set", "model.intermediate_size=32")
