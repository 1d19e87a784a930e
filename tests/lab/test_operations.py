"""Traces of real steps, plain and compiled."""

import tensorflow as tf

from bert_horovod.measuring.bench import trace
from lab.operations import Operation, operations, table


@tf.function(jit_compile=True, autograph=False)
def squashed(x):
    return tf.nn.softmax(tf.tanh(x) * 2)


@tf.function(autograph=False)
def multiplied(weight):
    x = tf.matmul(weight, weight)
    for _ in range(3):
        x = tf.linalg.matmul(squashed(x), weight)
    return x


def step():
    # Made outside of the graph: there TensorFlow would compute all of it once, when it is traced.
    return multiplied(tf.random.stateless_normal([64, 64], [0, 0]))


def test_a_trace_tells_operations_and_compiled_functions_a_step(tmp_path):
    step()
    traced = operations(trace(lambda: step().numpy(), tmp_path))
    by_name = {operation.name: operation for operation in traced}
    products = [operation for operation in traced if "MatMul" in operation.name]
    assert sum(operation.calls_per_step for operation in products) == 4
    assert any(name.startswith("XLA squashed: ") for name in by_name)
    assert not any("::" in name or name.startswith("Executor") or name.endswith(": call") for name in by_name)
    assert [operation.ms_per_step for operation in traced] == sorted(
        (operation.ms_per_step for operation in traced), reverse=True
    )


def test_the_table_has_a_line_for_each_of_the_longest():
    lines = table([Operation(f"op{i}", 100.0 - i, 2.0) for i in range(40)]).splitlines()
    assert len(lines) == 26
    assert lines[1].split() == ["100.00", "2.0", "op0"]
