"""A layer's programs with kernels: what they hand to each kernel, traced without a GPU."""

import re

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model import encoder
from bert_horovod.model.architectures.modernbert_settings import ModernBertModel
from bert_horovod.model.encoder import encode
from bert_horovod.model.forward import ComputePolicy, DropoutState, Forward
from bert_horovod.model.gpu_kernels import bert_layer, catalogue, modernbert_layer
from bert_horovod.model.gpu_kernels.bert_layer import Kept
from bert_horovod.model.gpu_kernels.call import KernelRows, kernel_rows, sorted_lookups
from bert_horovod.model.gpu_kernels.programs import kernel_programs
from bert_horovod.model.shapes import encoder_shapes
from bert_horovod.model.weights import cast_weights, layer_weights
from bert_horovod.recipe.sections import Model
from bert_horovod.runtime.xla import compiled
from tests.model.gpu_kernels.emulated import Emulated

ROWS = 3
SMALL = {"vocab_size": 10, "num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256}
TYPES = {"*fp32": tf.float32, "*i32": tf.int32, "*i64": tf.uint64}  # keys, rows and sites are uint64 in TensorFlow


def traced(length, heads, capability=(9, 0), dtype=tf.bfloat16, recompute="none", **settings):
    """The graphs of forward and backward, and the layer's weights."""
    model = Model(**SMALL, num_attention_heads=heads, **settings)
    parameters = {name: tf.zeros(shape) for name, shape in encoder_shapes(model, pooler=False).items()}
    weights = layer_weights(cast_weights(parameters, dtype), model)[0]
    programs = kernel_programs(model, ComputePolicy(dtype, "layers", recompute, "triton"), capability)
    dropout = DropoutState(tf.constant([7], tf.uint64), tf.constant(40, tf.uint64))
    sequences = tf.ones([ROWS, length], tf.int32)
    rows = KernelRows(sequences, tf.zeros([ROWS, length // 64, 2], tf.int32))
    x = tf.zeros([ROWS * length, model.hidden_size], dtype)
    arguments = x, weights, dropout, rows, tf.constant(1, tf.uint64), None
    forward = programs.forward.get_concrete_function(*arguments)
    _, kept = forward.structured_outputs
    kept = tuple(tf.zeros(each.shape, each.dtype) for each in kept)
    return forward, programs.backward.get_concrete_function(x, kept, *arguments), weights


def calls(program) -> list[tf.Operation]:
    return [each for each in program.graph.get_operations() if each.type == "XlaCustomCallV2"]


def kernel_of(operation: tf.Operation) -> str:
    return re.match(r'\{name = "(\w+)"', operation.get_attr("backend_config").decode())[1]


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("length", "heads", "capability"), [(128, 2, (9, 0)), (128, 4, (8, 9)), (192, 2, (9, 0))])
def test_each_kernel_gets_its_operands(length, heads, capability, dtype):
    forward, backward, weights = traced(length, heads, capability, dtype)
    whole = "_whole" if length == 128 and capability == (9, 0) else ""
    assert [*map(kernel_of, calls(forward))] == ["attention_forward", "norm_forward", "norm_forward"]
    expected = ["norm_backward", "gelu_backward", "norm_backward", f"attention_backward{whole}"]
    assert [*map(kernel_of, calls(backward))] == expected
    for operation in (*calls(forward), *calls(backward)):
        types = [TYPES.get(kind, dtype) for kind in catalogue.OPERANDS[kernel_of(operation)].values()]
        assert [each.dtype for each in (*operation.inputs, *operation.outputs)] == types
    x, *by_weight = backward.structured_outputs
    assert x.shape == [ROWS * length, 128]
    for gradient, (name, weight) in zip(by_weight, weights.items(), strict=True):
        assert (gradient.shape, gradient.dtype) == (weight.shape, weight.dtype), name


def test_recompute_of_a_layer_keeps_nothing_and_runs_forward_again():
    forward, backward, _ = traced(128, 2, recompute="layer")
    assert forward.structured_outputs[1] == ()
    assert [*map(kernel_of, calls(backward))][:3] == ["attention_forward", "norm_forward", "norm_forward"]


def test_forward_returns_what_is_kept_and_no_argument():
    forward, _, _ = traced(128, 2)
    assert len(forward.structured_outputs[1]) == len(Kept._fields)
    assert not {each.op.type for each in forward.outputs} & {"Placeholder", "Const"}


def test_without_dropout_the_kernels_draw_nothing():
    forward, backward, _ = traced(128, 2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    for operation in (*calls(forward), *calls(backward)):
        assert "mulhiui" not in operation.get_attr("backend_config").decode()
    with_dropout, _, _ = traced(128, 2)
    assert all("mulhiui" in operation.get_attr("backend_config").decode() for operation in calls(with_dropout))


def test_blocks_reach_those_that_may_hold_their_sequences():
    ids = np.zeros((2, 320), np.int32)
    ids[0, :64], ids[0, 64:200], ids[0, 200:300] = 1, 2, 3  # blocks: 1 | 2 | 2 | 2 and 3 | 3 and padding
    ids[1] = 1
    reach = kernel_rows(tf.constant(ids)).reach.numpy()
    np.testing.assert_array_equal(reach[0], [[0, 1], [1, 4], [1, 4], [1, 5], [3, 5]])
    np.testing.assert_array_equal(reach[1], [[0, 5]] * 5)


def test_lookups_are_sorted_by_entry_and_equal_ones_by_place():
    ids = np.random.default_rng(0).integers(0, 30, 100).astype(np.int32)
    ids[ids == 7] = 8
    order, starts = compiled(sorted_lookups)(tf.constant(ids), 30)
    np.testing.assert_array_equal(order, np.argsort(ids, kind="stable"))
    np.testing.assert_array_equal(starts, np.searchsorted(np.sort(ids), np.arange(31)))


TINY = SMALL | {"hidden_size": 64, "intermediate_size": 128}
UNDROPPED = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ENCODERS = {
    "bert": (Model(**TINY, num_attention_heads=2), 128, "none"),
    "bert, tanh, blocks, no dropout": (
        Model(**TINY, num_attention_heads=1, hidden_act="gelu_new", **UNDROPPED),
        192,
        "layer",
    ),
    "modernbert": (
        ModernBertModel(**TINY, num_attention_heads=2, local_attention=64),
        192,
        "none",
    ),
    "modernbert, no dropout": (
        ModernBertModel(**TINY, num_attention_heads=1, local_attention=20, attention_output_dropout_prob=0.0),
        128,
        "layer",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "," in name else pytest.mark.full) for name in ENCODERS]
)
def test_an_encoder_on_kernels_that_are_emulated_is_the_encoder(monkeypatch, name):
    model, length, recompute = ENCODERS[name]
    random, first = np.random.default_rng(0), 70
    ids = np.repeat(np.int32([1, 2]), [first, length - first])[None]
    ids[0, -5:] = 0
    batch = {
        "input_ids": random.integers(0, 10, ids.shape),
        "token_type_ids": np.zeros_like(ids),
        "position_ids": np.concatenate([np.arange(first), np.arange(length - first)])[None],
        "sequence_ids": ids,
    }
    batch = {key: tf.constant(array, tf.int32) for key, array in batch.items()}
    parameters = {
        key: tf.constant(random.normal(size=shape, scale=0.2) + key.endswith("orm.weight"), tf.float32)
        for key, shape in encoder_shapes(model, pooler=False).items()
    }
    weights = cast_weights(parameters, tf.float32)
    dy = tf.constant(random.normal(size=[*ids.shape, model.hidden_size]), tf.float32)
    dropout = DropoutState(tf.constant([7], tf.uint64), tf.constant(40, tf.uint64))
    rates = [getattr(model, f"{each}_dropout_prob", 0.0) for each in ("attention_probs", "hidden", "attention_output")]
    for module in (bert_layer, modernbert_layer):
        monkeypatch.setattr(module, "call", Emulated(*rates))
    monkeypatch.setattr(encoder, "capability", lambda: (9, 0))
    kernel_programs.cache_clear()
    results = {}
    for kernels in ("xla", "triton"):
        policy = ComputePolicy(tf.float32, "layers", recompute, kernels)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            output = encode(Forward(model, weights, policy, dropout), batch)[-1]
        gradients = tape.gradient(output, weights, dy)
        results[kernels] = {"output": output} | {k: tf.convert_to_tensor(each) for k, each in gradients.items()}
    kernel_programs.cache_clear()
    for key, expected in results["xla"].items():
        error = np.linalg.norm(results["triton"][key] - expected) / np.linalg.norm(expected)
        assert error < 1e-4, f"{key}: {error}"
