"""Arrays that go to a device in one tensor."""

import numpy as np
import tensorflow as tf

from bert_horovod.training.step_results import apart, together

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
