"""What a device says of itself."""

from bert_horovod.runtime.devices import peak_memory_bytes


def test_peak_memory_is_in_bytes():
    assert 50 << 20 < peak_memory_bytes() < 1 << 40
