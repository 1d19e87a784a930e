"""Direct writes give the bytes that ordinary ones would, on disks and on file systems that have none."""

import hashlib

import numpy as np
import pytest

from bert_horovod.storage import direct
from bert_horovod.storage.direct import BLOCK_BYTES, write_direct


@pytest.mark.parametrize("direct_writes", [True, False])
@pytest.mark.parametrize(
    "sizes",
    [(), (0,), (1,), (511, 1), (4096,), (3, 0, 70_001), (BLOCK_BYTES,), (BLOCK_BYTES - 1, 2), (7, 3 * BLOCK_BYTES, 5)],
)
def test_the_file_holds_all_parts_in_order(tmp_path, monkeypatch, sizes, direct_writes):
    if not direct_writes:
        monkeypatch.setattr(direct.os, "O_DIRECT", 0)
    random = np.random.default_rng(0)
    parts = [random.integers(0, 256, size, np.uint8) for size in sizes]
    path = tmp_path / "file"
    path.write_bytes(b"what was there before, and longer than some" * 3)
    digest = write_direct(path, parts)
    content = path.read_bytes()
    assert content == b"".join(part.tobytes() for part in parts)
    assert digest == hashlib.sha256(content).hexdigest()


def test_a_full_disk_is_an_error_of_the_system():
    with pytest.raises(OSError, match="No space left"):
        write_direct("/dev/full", [np.zeros(BLOCK_BYTES + 1, np.uint8)])
