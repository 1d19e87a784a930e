"""Writes a checkpoint as an ONNX file, for onnxruntime and others; tf2onnx converts the graph of serving_graph.py.

Weights of 8 bits are by onnxruntime's dynamic quantisation, which rounds activations as they come.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.errors import UserError
from bert_horovod.interchange.exported import ONNX_FILE, Arrays, Call, distance, load_export
from bert_horovod.interchange.sentence_transformers import VECTOR
from bert_horovod.interchange.serving_graph import Served
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.quiet import native_messages_held_back
from bert_horovod.tasks.embedding import normalised

OPSET = 17  # the first with LayerNormalization; tf2onnx 1.17 refuses opsets above 18
_PACKAGES = ("tf2onnx", "onnx", "onnxruntime")
_LARGEST_BYTES = 2_000_000_000  # protobuf messages have at most 2 GiB
_AXES = ("batch", "length")


def require_onnx() -> None:
    """Raise UserError if packages of the extra `onnx` are not installed."""
    missing = []
    for package in _PACKAGES:
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    if missing:
        raise UserError(f"--format onnx needs {', '.join(missing)}; install the extra: pip install '.[onnx]'")


def write_onnx(directory: Path, served: Served) -> None:
    """Write model.onnx with the free dimensions batch and length; raises UserError if it is too large."""
    require_onnx()
    size = sum(4 * variable.shape.num_elements() for variable in served.parameters.values())
    if size > _LARGEST_BYTES:
        raise UserError(
            f"--format onnx: the model has {size / 1e9:.1f} GB of parameters, an ONNX file holds 2 GB; export a "
            "savedmodel"
        )
    import onnx
    import tf2onnx

    # Convert the graph with the parameters as inputs, and turn these into initializers afterwards: with parameters as
    # constants tf2onnx needs 30 times their size in memory.
    names = {f"parameter_{i}": name for i, name in enumerate(served.parameters)}
    specs = [
        tf.TensorSpec(tensor.shape, tensor.dtype, key)
        for key, tensor in zip(names, served.parameters.values(), strict=True)
    ]

    @tf.function(input_signature=[*served.signature, *specs], autograph=False)
    def function(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        count = len(served.signature)
        parameters = dict(zip(served.parameters, tensors[count:], strict=True))
        return served.outputs(*tensors[:count], parameters=parameters)

    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    with native_messages_held_back(), contextlib.redirect_stdout(None):
        model, _ = tf2onnx.convert.from_function(function, input_signature=function.input_signature, opset=OPSET)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    inputs = [tensor for tensor in model.graph.input if tensor.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    for name, variable in served.parameters.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(variable.numpy(), name))
    for tensor in (*model.graph.input, *model.graph.output):
        for axis, dimension in zip(_AXES, tensor.type.tensor_type.shape.dim, strict=False):
            if not dimension.HasField("dim_value"):
                dimension.dim_param = axis
    (directory / ONNX_FILE).write_bytes(model.SerializeToString())


def quantise(directory: Path, calls: list[Call]) -> tuple[float, str]:
    """Replace a directory's model.onnx, exported in float32; returns the largest difference of its calls' outputs.

    A difference is relative to the largest value of an output, or to 1 if that is smaller. Of sentence vectors it is 1
    - the smallest cosine, and no other output counts. The text says it in words.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = directory / ONNX_FILE
    before = [_called(directory, call) for call in calls]
    model = onnx.load(str(path))
    _transpose_weights(onnx, model)
    folded = path.with_name("transposed.onnx")
    onnx.save(model, str(folded))
    logging.getLogger().setLevel(logging.ERROR)  # onnxruntime advises a step that changes nothing here
    with contextlib.redirect_stdout(None):
        quantize_dynamic(str(folded), str(path), weight_type=QuantType.QInt8, per_channel=True)
    folded.unlink()
    after = [_called(directory, call) for call in calls]
    if VECTOR in before[0]:
        vectors = ([normalised(each[VECTOR]).numpy() for each in outputs] for outputs in (before, after))
        least = min(float((one * other).sum(-1).min()) for one, other in zip(*vectors, strict=True))
        return 1 - least, f"vectors have a cosine of at least {least:.4f} with those before"
    apart = max(
        distance(call, array, returned[name])
        for call, expected, returned in zip(calls, before, after, strict=True)
        for name, array in expected.items()
    )
    return apart, f"outputs differ by at most {apart:.2g} of their largest value"


def _called(directory: Path, call: Call) -> Arrays:
    return load_export(directory, threads=1)(call.signature, call.inputs)


def _transpose_weights(onnx: Any, model: Any) -> None:
    """Store weights as products take them: [in, out]; only then quantize_dynamic sees that they are weights."""
    weights = {each.name: each for each in model.graph.initializer}
    uses = Counter(name for node in model.graph.node for name in node.input)
    kept = []
    for node in model.graph.node:
        name = node.input[0] if node.input else ""
        if node.op_type != "Transpose" or name not in weights or uses[name] > 1:
            kept.append(node)
            continue
        turned = onnx.numpy_helper.to_array(weights[name]).transpose(list(node.attribute[0].ints))
        weights[name].CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(turned), node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
