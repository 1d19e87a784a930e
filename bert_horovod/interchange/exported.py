"""Loads an exported model as its users do, with TensorFlow or onnxruntime alone, and checks it in a separate process.

    python -m bert_horovod.interchange.exported DIRECTORY INPUTS.npz OUTPUTS.npz

The two files hold inputs and outputs of calls; their arrays are named SIGNATURE/NUMBER/NAME.
"""

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_horovod.errors import RunError
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.children import end_with_parent, python_settings
from bert_horovod.runtime.quiet import import_tensorflow

ONNX_FILE = "model.onnx"
TOLERANCE = 1e-5  # largest difference, relative to the largest value of an output (or to 1, if that is smaller)
Arrays = dict[str, np.ndarray]


class Call(NamedTuple):
    """A call with its expected outputs."""

    signature: str
    inputs: Arrays
    outputs: Arrays  # expected outputs, to be compared
    real: np.ndarray | None = None  # bool [rows, length]: outputs [rows, length, ...] are compared where it is true


def check_export(directory: Path, calls: list[Call]) -> float:
    """Make the calls in a new process; returns the largest relative difference; RunError if it is above TOLERANCE."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | python_settings()
    with tempfile.TemporaryDirectory() as place:
        inputs, outputs = Path(place) / "inputs.npz", Path(place) / "outputs.npz"
        arrays = {
            f"{call.signature}/{i}/{name}": array for i, call in enumerate(calls) for name, array in call.inputs.items()
        }
        np.savez(inputs, **arrays)
        words = [sys.executable, "-m", "bert_horovod.interchange.exported", str(directory), str(inputs), str(outputs)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it was killed"])[-1]
            raise RunError(f"the export cannot be loaded and called in a fresh process: {last[:500]}")
        with np.load(outputs) as returned:
            return max(
                difference(call, name, returned[f"{call.signature}/{i}/{name}"])
                for i, call in enumerate(calls)
                for name in call.outputs
            )


def load_export(directory: Path, threads: int = 0) -> Callable[[str, Arrays], Arrays]:
    """The exported model as a function of a signature's name and inputs; an ONNX file has one signature without a name.

    `threads`: onnxruntime's threads per operation; 0: one per core. For TensorFlow, set its own setting instead.
    """
    if (directory / ONNX_FILE).is_file():
        import onnx
        import onnxruntime

        onnx.checker.check_model(str(directory / ONNX_FILE))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(directory / ONNX_FILE), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return lambda _, inputs: dict(zip(names, session.run(names, inputs), strict=True))
    import_tensorflow()
    import tensorflow_text  # noqa: F401  # registers operations that a tokenizer needs

    loaded = tf.saved_model.load(str(directory))

    def call(signature: str, inputs: Arrays) -> Arrays:
        tensors = {
            name: tf.constant(array.tolist() if array.dtype.kind == "U" else array) for name, array in inputs.items()
        }
        outputs = loaded.signatures[signature](**tensors)
        return {name: array.numpy() for name, array in outputs.items()}

    call.loaded = loaded  # keep this object: TensorFlow frees the variables together with it
    return call


def distance(call: Call, expected: np.ndarray, returned: np.ndarray) -> float:
    """The largest difference of two outputs of a call, without padding, relative to the largest value, or to 1."""
    if call.real is not None and expected.shape[:2] == call.real.shape:
        expected, returned = expected[call.real], returned[call.real]
    return float(np.abs(returned - expected).max() / max(1.0, np.abs(expected).max()))


def difference(call: Call, name: str, returned: np.ndarray) -> float:
    """The relative difference of an output from the expected one; raises RunError if it is above TOLERANCE."""
    expected = call.outputs[name]
    if returned.shape != expected.shape:
        raise RunError(f"{call.signature}: {name} has shape {list(returned.shape)}, expected {list(expected.shape)}")
    apart = distance(call, expected, returned)
    if not apart <= TOLERANCE:  # true for nan too
        raise RunError(
            f"the export computes other numbers than the checkpoint: {call.signature}: {name} differs by "
            f"{apart:.1e} of its largest value, expected at most {TOLERANCE:g}"
        )
    return apart


def main(directory: str, inputs: str, outputs: str) -> None:
    """Call the export with the inputs in file `inputs`, and write the results to file `outputs`."""
    model, calls, returned = load_export(Path(directory)), defaultdict[str, Arrays](dict), {}
    with np.load(inputs) as arrays:
        for place, array in arrays.items():
            key, _, name = place.rpartition("/")
            calls[key][name] = array
    for key, arguments in calls.items():
        for name, output in model(key.split("/")[0], arguments).items():
            if output.dtype.kind != "O":  # strings are not compared
                returned[f"{key}/{name}"] = output
    np.savez(outputs, **returned)


if __name__ == "__main__":
    end_with_parent(os.getppid())
    main(*sys.argv[1:])
