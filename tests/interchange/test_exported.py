"""What the check of an export compares, and how it says no."""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.errors import RunError
from bert_horovod.interchange.exported import Call, check_export, difference, load_export


@pytest.fixture(scope="module")
def doubling(tmp_path_factory):
    """A SavedModel that doubles; its second row is padding but for the first place."""
    module = tf.Module()
    specs = [tf.TensorSpec([None, None], tf.float32, "x")]
    module.double = tf.function(lambda x: {"y": 2 * x}, input_signature=specs, autograph=False)
    path = tmp_path_factory.mktemp("export") / "model"
    tf.saved_model.save(module, str(path), {"serving_default": module.double})
    return path


X = np.array([[1.0, -100.0], [3.0, 4.0]], np.float32)
REAL = np.array([[True, True], [True, False]])


def call(outputs: np.ndarray, **inputs: np.ndarray) -> list[Call]:
    return [Call("serving_default", inputs or {"x": X}, {"y": outputs.astype(np.float32)}, REAL)]


def test_an_export_is_loaded_and_called_by_its_signature(doubling):
    outputs = load_export(doubling)("serving_default", {"x": X})
    np.testing.assert_array_equal(outputs["y"], 2 * X)


def test_differences_count_beside_the_largest_value_and_not_at_padding():
    changed = 2 * X
    changed[0, 0] += 1e-3
    changed[1, 1] += 9
    (asked,) = call(2 * X)
    assert difference(asked, "y", 2 * X) == 0
    assert difference(asked, "y", changed) == pytest.approx(1e-3 / 200, rel=0.1)


def test_another_number_and_another_shape_are_refused():
    changed = 2 * X
    changed[0, 0] += 1e-2
    for expected, message in (
        (changed, r"other numbers than the checkpoint: serving_default: y differs by 5\.0e-05 of its largest value"),
        (changed * np.nan, "other numbers than the checkpoint"),
        (changed[:, :1], r"y has shape \[2, 2\], expected \[2, 1\]"),
    ):
        with pytest.raises(RunError, match=message):
            difference(*call(expected), "y", 2 * X)


@pytest.mark.slow
def test_in_a_fresh_process_it_is_loaded_and_called_or_refused(doubling, tmp_path):
    assert check_export(doubling, call(2 * X)) == 0
    with pytest.raises(RunError, match=r"cannot be loaded and called in a fresh process: .*SavedModel file"):
        check_export(tmp_path, call(2 * X))
    with pytest.raises(RunError, match="cannot be loaded and called in a fresh process"):
        check_export(doubling, call(2 * X, z=X))
