"""An ONNX file with weights of 8 bits: onnxruntime's dynamic quantisation, which rounds activations as they come."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.interchange.exported import ONNX_FILE, Arrays, Call, load_export


def quantise(directory: Path, calls: list[Call]) -> float:
    """Replace a directory's model.onnx, exported in float32; returns the largest difference of its calls' outputs.

    A difference is relative to the largest value of an output, or to 1 if that is smaller.
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
    apart = 0.0
    for call, expected in zip(calls, before, strict=True):
        returned = _called(directory, call)
        for name, array in expected.items():
            wide, narrow = array, returned[name]
            if call.real is not None and array.shape[:2] == call.real.shape:
                wide, narrow = array[call.real], narrow[call.real]
            apart = max(apart, float(np.abs(narrow - wide).max() / max(1.0, np.abs(wide).max())))
    return apart


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
