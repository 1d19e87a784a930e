"""The vocabulary that rows are laid out with."""

import pytest

from bert_horovod.batches.layout import check_vocabulary
from bert_horovod.errors import UserError
from tests.toys import toy_recipe


def test_a_recipe_has_as_many_entries_as_the_store(store):
    check_vocabulary(toy_recipe(), store)
    for size in (63, 65):
        match = rf"model\.vocab_size = {size}.*vocabulary of 64; set model\.vocab_size = 64"
        with pytest.raises(UserError, match=match):
            check_vocabulary(toy_recipe(model={"vocab_size": size}), store)
