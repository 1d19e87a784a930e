"""What a device says of itself; TensorFlow by its first use.

XLA's choices of algorithms: kept as files of a directory that XLA_FLAGS names.
"""

import os

import pytest
import tensorflow

from bert_horovod.runtime import devices
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import peak_memory_bytes


def test_peak_memory_is_in_bytes():
    assert 50 << 20 < peak_memory_bytes() < 1 << 40


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(devices, "_directory", None)
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4")


def test_xla_gets_a_directory_beside_the_users_own_flags(fresh):
    devices.keep_xla_choices()
    user, *ours = os.environ["XLA_FLAGS"].split()
    assert user == "--xla_gpu_autotune_level=4"
    assert len({flag.split("=")[1] for flag in ours}) == 1
    assert devices.choices() == {}
    devices.add_choices({"a.textproto": "version: 3", "b+1=.textproto": "x"})
    assert devices.choices() == {"a.textproto": "version: 3", "b+1=.textproto": "x"}


def test_a_users_own_directory_stays(fresh, monkeypatch):
    flags = "--xla_gpu_per_fusion_autotune_cache_dir=/data/mine"
    monkeypatch.setenv("XLA_FLAGS", flags)
    devices.keep_xla_choices()
    assert os.environ["XLA_FLAGS"] == flags
    devices.add_choices({"a.textproto": ""})
    assert devices.choices() == {}


@pytest.mark.parametrize("name", ["../a.textproto", "/a", "", ".a", "a/b"])
def test_a_name_that_leads_elsewhere_is_refused(fresh, name):
    devices.keep_xla_choices()
    with pytest.raises(ValueError, match="is not the name of a choice"):
        devices.add_choices({name: ""})


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
