"""What cannot be read, but may be whole, is not called damaged; what a crash emptied is made anew."""

import errno
import os
import shutil

import pytest

from bert_horovod.batches.text.index import open_index
from bert_horovod.corpus.store import verify
from bert_horovod.errors import RunError, UserError, printable, unreadable
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.runs.directory import claim
from bert_horovod.runs.resuming import load_newest
from bert_horovod.tasks.pretraining import Pretraining
from tests.rights import few_files, without_rights
from tests.runs.test_checkpoint import POSITION, random_state
from tests.toy_runs import save
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store

TASK, RECIPE = Pretraining(pairs=True), toy_recipe()
RIGHT = r"cannot read .*{}: Permission denied; this user needs the right to read it"
FILES = r"cannot read .*: Too many open files; allow more of them, as with: ulimit -n 65536"


@pytest.fixture
def own_store(tmp_path):
    return write_toy_store(tmp_path / "store", held_out=0.3, vocabulary=SMALL_VOCABULARY)


@pytest.mark.parametrize("name", ["manifest.json", "vocab.txt", "shard-00001.safetensors"])
def test_a_store_that_this_user_may_not_read_is_not_called_damaged(own_store, name):
    with without_rights(own_store.path / name), pytest.raises(UserError, match=RIGHT.format(name)):
        verify(own_store.path)
    with few_files(), pytest.raises(UserError, match=FILES):
        verify(own_store.path)


def test_an_index_that_this_user_may_not_read_is_not_to_be_removed(own_store):
    file = open_index(own_store, 32, "none", True).path / "train" / "first.npy"
    with without_rights(file), pytest.raises(UserError, match=RIGHT.format("first.npy")) as caught:
        open_index(own_store, 32, "none", True)
    assert "remove" not in str(caught.value)


@pytest.mark.parametrize("name", ["training/hashes.json", "model.safetensors", "training/state.json"])
def test_a_checkpoint_that_this_user_may_not_read_does_not_send_the_run_back(tmp_path, store, name):
    for step in (10, 20):
        newest = save(tmp_path, random_state(step), RECIPE, store, POSITION)
    with without_rights(newest / name), pytest.raises(UserError, match=RIGHT.format(name)):
        load_newest(tmp_path, TASK)
    assert load_newest(tmp_path, TASK).progress.step == 20


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOMEM])
def test_a_disk_that_fails_is_named_as_such(number):
    error = unreadable(OSError(number, os.strerror(number)), "/store/tokens.npy")
    assert type(error) is RunError
    assert str(error).startswith(f"cannot read /store/tokens.npy: {os.strerror(number)}. Its disk or network fails")


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "none"), OSError(errno.EINVAL, "a FIFO"), ValueError("no")])
def test_what_is_missing_or_something_else_is_damage(error):
    assert unreadable(error, "file") is None


@pytest.mark.parametrize("content", ["", "\n", "\0" * 100, None])
def test_a_recipe_that_a_crash_has_emptied_is_taken_from_the_checkpoint(tmp_path, store, content, capsys):
    os.close(claim(tmp_path / "run", RECIPE, store.hash))
    save(tmp_path / "run", random_state(10), RECIPE, store, POSITION)
    recipe = tmp_path / "run" / "recipe.toml"
    empty = recipe.unlink if content is None else lambda: recipe.write_text(content)
    empty()
    with pytest.raises(UserError, match=r"belongs to a run with another recipe: phase.0.steps: 20 -> 9"):
        claim(tmp_path / "run", toy_recipe(phase={"steps": 9}), store.hash)
    assert "recipe.toml is missing or empty, as a crash may leave it; it is written anew" in capsys.readouterr().err
    os.close(claim(tmp_path / "run", RECIPE, store.hash))
    assert load_recipe(recipe) == RECIPE
    assert load_newest(tmp_path / "run", TASK).progress.step == 10


def test_without_a_checkpoint_an_emptied_recipe_has_nothing_to_protect(tmp_path, store):
    os.close(claim(tmp_path / "run", RECIPE, store.hash))
    (tmp_path / "run" / "recipe.toml").write_text("")
    shutil.rmtree(tmp_path / "run" / "checkpoints", ignore_errors=True)
    os.close(claim(tmp_path / "run", toy_recipe(phase={"steps": 9}), store.hash))


def test_a_terminal_gets_no_commands():
    assert printable("key \x1b[2J\x07 ü\n日本 \u202e\udc80") == "key \\x1b[2J\\x07 ü\n日本 \\u202e\\udc80"
