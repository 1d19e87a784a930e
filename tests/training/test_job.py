"""What is refused before a job's ranks join."""

import pytest

from bert_horovod.errors import UserError
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.job import check_size
from tests.toys import toy_recipe

CLIPPED = {"optimizer": {"clipping": "bucket"}, "execution": {"micro_batch": 8}}


@pytest.mark.parametrize(
    ("sections", "ranks", "refused", "match"),
    [
        ({"phase": {"global_batch": 4}}, 4, 8, r"global_batch = 4 .* 8 ranks"),
        (CLIPPED, 4, 3, r"global_batch = 32: .*execution\.micro_batch = 8 rows; expected a multiple of 24"),
    ],
)
def test_a_batch_that_the_ranks_cannot_share_is_refused(sections, ranks, refused, match):
    recipe = toy_recipe(**sections)
    check_size(recipe, Pretraining(True), ranks)
    with pytest.raises(UserError, match=match):
        check_size(recipe, Pretraining(True), refused)
