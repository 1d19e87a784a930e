"""TensorFlow by its first use."""

import pytest
import tensorflow

from bert_horovod.runtime import lazy_tensorflow as tf


def test_a_name_is_looked_up_once_and_is_tensorflows():
    vars(tf).pop("constant", None)
    assert tf.constant is tensorflow.constant
    assert vars(tf)["constant"] is tensorflow.constant
    assert tf.__version__ == tensorflow.__version__


def test_names_that_there_are_not_are_errors_as_of_any_module():
    for name in ("no_such_name", "__wrapped__"):
        with pytest.raises(AttributeError, match=name):
            getattr(tf, name)


def test_a_gradient_of_ones_own_is_made_at_the_first_call():
    calls = []

    @tf.custom_gradient
    def halved(x, factor=1.0):
        """Doc."""
        calls.append(factor)
        return x / 2, lambda dy: 3 * dy

    assert not calls
    assert halved.__doc__ == "Doc."
    x = tf.constant(4.0)
    with tensorflow.GradientTape() as tape:
        tape.watch(x)
        y = halved(x)
    assert (float(y), float(tape.gradient(y, x))) == (2.0, 3.0)
