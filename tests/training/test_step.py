"""One optimizer step: what reaches the exchange in float16; arrays that go to a device in one tensor."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.exchange.dense.gradients import GradientExchange
from bert_horovod.exchange.dense.reducer import GradientReducer
from bert_horovod.optimizers import loss_scale
from bert_horovod.training.step_results import apart, together
from tests.toy_runs import assert_same_files, metrics, train_rank
from tests.toys import toy_recipe


def train_and_look(world, store, output_dir, recipe, divided_first: bool) -> set[str]:
    """Train; returns the dtypes of gradients that the reducer was given. Where asked, they are divided before."""
    given, reduce = set(), GradientReducer.reduce

    def look(self, gradients, *others):
        given.update(gradient.dtype.name for gradient in gradients.values())
        return reduce(self, gradients, *others)

    never = property(lambda self: False, lambda self, value: None)
    with mock.patch.object(GradientReducer, "reduce", look), mock.patch.object(loss_scale, "INITIAL", 2.0**24):
        if divided_first:
            with mock.patch.object(GradientExchange, "divides_by_loss_scale", never):
                train_rank(world, store, output_dir, recipe)
        else:
            train_rank(world, store, output_dir, recipe)
    return given


@pytest.mark.full
@pytest.mark.parametrize("reduction", ["ring", pytest.param("two_step", marks=pytest.mark.slow)])
def test_gradients_stay_in_float16_until_their_sum_and_lose_the_loss_scale_there(two_ranks, store, tmp_path, reduction):
    recipe = toy_recipe(
        numerics={"precision": "float16", "wire": "float16"},
        execution={"reduction": reduction},
        phase={"steps": 8},
    )
    dtypes = [
        two_ranks.run(train_and_look, store.path, tmp_path / name, recipe, first)[0].value
        for name, first in (("late", False), ("first", True))
    ]
    assert dtypes == [{"float16", "float32"}, {"float32"}]
    late, first = (
        [{name: line[name] for name in ("loss", "gradient_norm", "loss_scale", "skipped_steps")} for line in lines]
        for lines in (metrics(tmp_path / "late"), metrics(tmp_path / "first"))
    )
    assert late == first
    assert 0 < late[-1]["skipped_steps"] < 8
    assert_same_files(tmp_path / "late", tmp_path / "first")


ARRAYS = {
    "ids": np.arange(-3, 18, dtype=np.int32).reshape(3, 7),
    "weights": np.linspace(0, 1, 33, dtype=np.float32),
    "key": np.array([2**64 - 3], np.uint64),
    "place": np.uint64(5),
    "first": np.float32(1.0),
    "bits": np.array([0x7FA00001, 0xFFC00000, 1, 0x80000000], np.uint32).view(np.float32),  # NaNs, a denormal, -0
    "none": np.zeros([0, 4], np.float32),
}


def test_arrays_come_out_bit_for_bit_and_each_begins_where_memory_is_aligned():
    tensor, layout = together(ARRAYS)
    received = tf.function(lambda tensor: apart(tensor, layout), autograph=False)(tensor)
    assert list(received) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert received[name].dtype == array.dtype
        assert received[name].shape == array.shape
        assert received[name].numpy().tobytes() == array.tobytes()
    assert all(field.begin * 4 % 64 == 0 for field in layout.fields)


def test_equal_shapes_have_one_layout_so_that_no_graph_is_traced_twice():
    graph = tf.function(lambda tensor, layout: apart(tensor, layout)["ids"], autograph=False)
    for number in range(3):
        graph(*together(ARRAYS | {"place": np.uint64(number)}))
    assert graph.experimental_get_tracing_count() == 1
    graph(*together(ARRAYS | {"weights": np.zeros(40, np.float32)}))
    assert graph.experimental_get_tracing_count() == 2
