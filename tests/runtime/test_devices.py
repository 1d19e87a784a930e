"""What a device says of itself.

XLA's choices of algorithms: kept as files of a directory that XLA_FLAGS names.
"""

import os

import pytest

from bert_horovod.runtime import devices
from bert_horovod.runtime.devices import peak_memory_bytes


def test_peak_memory_is_in_bytes():
    assert 50 << 20 < peak_memory_bytes() < 1 << 40


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(devices, "_directory", None)
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4")


def test_xla_gets_a_directory_beside_the_users_own_flags(fresh):
    devices.keep_choices()
    user, *ours = os.environ["XLA_FLAGS"].split()
    assert user == "--xla_gpu_autotune_level=4"
    assert len({flag.split("=")[1] for flag in ours}) == 1
    assert devices.choices() == {}
    devices.add({"a.textproto": "version: 3", "b+1=.textproto": "x"})
    assert devices.choices() == {"a.textproto": "version: 3", "b+1=.textproto": "x"}


def test_a_users_own_directory_stays(fresh, monkeypatch):
    flags = "--xla_gpu_per_fusion_autotune_cache_dir=/data/mine"
    monkeypatch.setenv("XLA_FLAGS", flags)
    devices.keep_choices()
    assert os.environ["XLA_FLAGS"] == flags
    devices.add({"a.textproto": ""})
    assert devices.choices() == {}


@pytest.mark.parametrize("name", ["../a.textproto", "/a", "", ".a", "a/b"])
def test_a_name_that_leads_elsewhere_is_refused(fresh, name):
    devices.keep_choices()
    with pytest.raises(ValueError, match="is not the name of a choice"):
        devices.add({name: ""})
