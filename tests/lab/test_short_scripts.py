"""Short scripts: published plans, serving by two runtimes, stores of hard links, traces, runs with faults."""

import json

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.corpus.store import verify
from bert_horovod.measuring.bench import trace
from lab import size
from lab.cluster import why_not
from lab.operations import operations
from tests.lab.scripts import cells, load_script, run_here, run_script
from tests.toys import write_toy_store


@pytest.mark.slow
def test_published_and_measured_rows_are_reproduced_but_for_those_that_have_a_reason():
    done = run_here("planner", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    far = [row for row in rows if abs(row["deviation"]) > 0.1]
    assert all(row["reason"] and row["reason"] in done.stderr for row in far)
    assert len(rows) > 60
    assert len(far) < len(rows) / 5
    marked = [row for row in rows if row["calibrates"]]
    assert len(marked) == 11
    assert all(abs(row["deviation"]) < 1e-6 for row in marked)


@pytest.mark.slow
def test_a_line_for_each_length_and_batch():
    pytest.importorskip("tf2onnx")
    words = ("--model", "mini", "--threads", 1, "--length", 8, 16, "--batch", 2, "--rounds", 1, "--seconds", 0.1)
    done = run_script("serving", *words)
    assert done.returncode == 0, done.stderr
    title, heading, *lines = done.stdout.splitlines()
    assert title == "BERT-mini, float32, 1 threads"
    assert cells(heading)[1:3] == ["TensorFlow, sentences/s", "onnxruntime, sentences/s"]
    assert [cells(line)[0] for line in lines] == ["8 x 2", "16 x 2"]
    for line in lines:
        tensorflow, onnxruntime, ratio = (float(cell.replace(",", "").rstrip("x ")) for cell in cells(line)[1:])
        assert ratio == pytest.approx(onnxruntime / tensorflow, rel=0.05)
    assert "savedmodel: " in done.stderr


@pytest.mark.parametrize(("most", "shards", "parts"), [(1000, 7, 1), (3, 2, 3)])
def test_a_store_of_links_is_whole_and_repeats_the_text(tmp_path, monkeypatch, most, shards, parts):
    monkeypatch.setattr(size, "MOST_SHARDS", most)
    base = write_toy_store(tmp_path / "base", shards=2)  # whose shards say that they are of one byte of text
    store = verify(size.linked_store(base, tmp_path / "work" / "store", 7e-9))
    assert [len(shard.split()) for shard in store.shards] == [parts] * shards
    assert {entry["bytes"] for entry in store.manifest["shards"]} == {parts}
    assert np.array_equal(store.shards[0].split()[0].tokens, base.shards[0].tokens)
    assert store.manifest["totals"]["tokens"] == sum(len(shard.tokens) for shard in store.shards)


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


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_run_with_faults_ends_as_one_without(tmp_path):
    pytest.importorskip("horovod")
    if lacking := why_not():
        pytest.skip(lacking)
    done = run_script("soak", "--directory", tmp_path, "--minutes", 0.01, "--seed", 3)
    assert done.returncode == 0, done.stdout + done.stderr
    *faults, end = map(json.loads, (tmp_path / "faults.jsonl").read_text().splitlines())
    assert 1 <= len(faults) <= load_script("soak").FAULTS
    assert end == {"run": 0, "problem": ""}
    again = run_script("soak", "--directory", tmp_path, "--table")
    assert again.returncode == 0
    assert again.stdout == done.stdout


def test_differences_are_found():
    soak = load_script("soak")
    expected = ([[("step", 1)], [("step", 2)]], {"model": b"1", "optimizer": b"2"})
    assert soak.differences(expected, expected) == []
    assert soak.differences(([[("step", 1)]], expected[1]), expected) == ["1 of 2 lines of metrics.jsonl"]
    assert soak.differences((expected[0], {"model": b"1", "optimizer": b"3"}), expected) == ["optimizer"]


@pytest.mark.parametrize(("loss", "differ"), [(2.0, []), (2.001, []), (2.1, ["losses"]), (None, ["losses"])])
def test_the_losses_of_a_run_that_a_host_has_left_may_differ_by_rounding(loss, differ):
    soak = load_script("soak")
    with_loss = [
        ([[("step", 1), ("loss", value)]], {"model": bytes(number)}) for number, value in enumerate((loss, 2.0))
    ]
    assert soak.differences(*with_loss, soak.TOLERANCE) == differ


def test_each_kind_of_fault_comes_as_often_in_each_round():
    soak = load_script("soak")
    size = sum(times for times, _ in soak.KINDS.values())
    rounds = [[soak.drawn(5, number * size + each) for each in range(size)] for number in range(3)]
    assert all(kinds.count(kind) == times for kinds in rounds for kind, (times, _) in soak.KINDS.items())
    assert rounds[0] != rounds[1]
