"""What is refused before a job's ranks join."""

import pytest

from bert_horovod.errors import UserError
from bert_horovod.recipe_files.loading import recipe_from_table
from bert_horovod.training.job import check_recipe
from tests.toys import toy_recipe, toy_recipe_table, write_toy_store


def test_a_recipe_that_fits_the_store_is_accepted_and_others_are_refused(store):
    check_recipe(toy_recipe(), store, world_size=2)
    for size in (63, 65):
        match = rf"model\.vocab_size = {size}.*vocabulary of 64; set model\.vocab_size = 64"
        with pytest.raises(UserError, match=match):
            check_recipe(toy_recipe(model={"vocab_size": size}), store, world_size=1)
    table = toy_recipe_table()
    table["phase"].append({"sequence_length": 32, "global_batch": 4})
    with pytest.raises(UserError, match=r"global_batch = 4 .* 8 ranks"):
        check_recipe(recipe_from_table(table), store, world_size=8)


def test_micro_batches_that_are_clipped_alone_must_be_of_one_size(store):
    recipe = toy_recipe(optimizer={"clipping": "bucket"}, execution={"micro_batch": 8})
    check_recipe(recipe, store, world_size=4)
    with pytest.raises(
        UserError, match=r"global_batch = 32: .*execution\.micro_batch = 8 rows; expected a multiple of 24"
    ):
        check_recipe(recipe, store, world_size=3)


def test_a_vocabulary_without_special_tokens_is_refused_by_their_names(tmp_path):
    vocabulary = [f"word{i}" for i in range(64)]
    with pytest.raises(UserError, match=r"\[MASK\]"):
        check_recipe(toy_recipe(), write_toy_store(tmp_path / "store", vocabulary=vocabulary), world_size=1)
