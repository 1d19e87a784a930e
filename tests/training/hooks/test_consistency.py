"""A bit that differs between ranks is found and named."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.errors import RunError
from bert_horovod.training.hooks.consistency import Consistency
from bert_horovod.training.step_results import checksum
from tests.toy_runs import metrics
from tests.toys import toy_recipe
from tests.training.faulty_ranks import train_with_fault

EXECUTION = {"micro_batch": 8, "checkpoint_steps": 5, "consistency_steps": 4}
WORDS = (
    "step 8: ranks no longer hold the same state: bert.encoder.layer.0.output.dense.weight of rank 1 is not that "
    "of rank 0. "
)


def assert_stopped_before_saving(output_dir: Path) -> None:
    assert metrics(output_dir)[-1]["step"] == 8
    assert [path.name for path in (output_dir / "checkpoints").iterdir()] == ["step-00000005"]


@pytest.mark.full
def test_a_flipped_bit_on_one_rank_stops_the_run_and_is_named(store, two_ranks, tmp_path):
    recipe = toy_recipe(execution=EXECUTION)
    for answer in two_ranks.run(train_with_fault, store.path, tmp_path, recipe, "bit", 6, 0):
        assert WORDS in answer.value
    assert_stopped_before_saving(tmp_path)


@pytest.mark.parametrize(
    ("numbers", "odd", "right"),
    [("577", "0", 1), ("757", "1", 0), ("57", "1", 0), ("5577", "2, 3", 0), ("5767", "2, 0", 1)],
)
def test_the_ranks_that_fewest_agree_with_are_named_and_of_as_many_those_without_rank_0(numbers, odd, right):
    variables = [tf.Variable([float(number), 1.0]) for number in numbers]
    everyone = tf.stack([checksum(variable) for variable in variables])[:, None]
    world = mock.Mock(size=len(numbers))
    world.all_gather.return_value = everyone
    world.all_reduce_max.return_value = tf.reduce_max(tf.concat([everyone, -everyone], 1), 0)
    state = mock.Mock(**{"variables.return_value": {"x": variables[0]}})
    with pytest.raises(RunError, match=f"hold the same state: x of rank {odd} is not that of rank {right}. "):
        Consistency(state, world).check(8)


@pytest.mark.parametrize("shape", [(2,), (3,), (5, 7), (4, 4)])
def test_any_flipped_bit_changes_the_checksum(shape):
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    right = int(checksum(tf.constant(values)))
    for place in range(values.size):
        for bit in range(32):
            flipped = values.copy()
            flipped.view(np.uint32).flat[place] ^= np.uint32(1 << bit)
            assert int(checksum(tf.constant(flipped))) != right
