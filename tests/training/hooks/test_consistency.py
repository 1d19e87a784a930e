"""A bit that differs between ranks is found and named."""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.training.hooks.consistency import checksum
from tests.horovod_runs import run_ranks
from tests.toy_runs import metrics, pretrain_arguments
from tests.training.hooks.test_divergence import EXECUTION, FAULTY


def test_a_flipped_bit_on_one_rank_stops_the_run_and_is_named(store, tmp_path):
    output_dir = tmp_path / "run"
    execution = EXECUTION | {"consistency_steps": 4}
    _, recipe, _, data_dir, *_ = pretrain_arguments(tmp_path, store, output_dir, execution=execution)
    done = run_ranks(3, FAULTY, recipe, data_dir, str(output_dir), "bit", "6", "0")
    assert done.returncode != 0
    assert (
        "step 8: ranks no longer hold the same state: bert.encoder.layer.1.output.dense.weight of rank 1 is not that "
        "of rank 0. " in done.stderr
    ), done.stderr
    assert metrics(output_dir)[-1]["step"] == 8
    assert [path.name for path in (output_dir / "checkpoints").iterdir()] == ["step-00000005"]


@pytest.mark.parametrize("shape", [(2,), (3,), (5, 7), (4, 4)])
def test_any_flipped_bit_changes_the_checksum(shape):
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    right = int(checksum(tf.constant(values)))
    for place in range(values.size):
        for bit in range(32):
            flipped = values.copy()
            flipped.view(np.uint32).flat[place] ^= np.uint32(1 << bit)
            assert int(checksum(tf.constant(flipped))) != right
