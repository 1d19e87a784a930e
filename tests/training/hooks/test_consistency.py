"""A bit that differs between ranks is found and named."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

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


@pytest.mark.parametrize("shape", [(2,), (3,), (5, 7), (4, 4)])
def test_any_flipped_bit_changes_the_checksum(shape):
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    right = int(checksum(tf.constant(values)))
    for place in range(values.size):
        for bit in range(32):
            flipped = values.copy()
            flipped.view(np.uint32).flat[place] ^= np.uint32(1 << bit)
            assert int(checksum(tf.constant(flipped))) != right
