"""The verify command, as it is typed."""

import numpy as np
import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.corpus.shard import Shard
from tests.toys import write_store


@pytest.mark.parametrize("earlier", [False, True])
def test_damage_is_named_and_the_exit_code_is_1(tmp_path, capsys, earlier):
    one = np.array([0, 1], np.uint32)
    shard = Shard(
        tokens=np.array([15, 16, 17], np.uint16),
        sentences=np.array([0, 3], np.uint32),
        sections=one,
        documents=one,
        held_out=np.zeros(1, bool),
        document_hashes=np.zeros((1, 2), np.uint64),
        titles=np.frombuffer(b"\n", np.uint8),
    )
    write_store(tmp_path / "store", [shard], earlier=earlier)
    arguments = parse(["bert-horovod", "verify", "--data_dir", str(tmp_path / "store")])
    assert dispatch(arguments) == 0
    assert "tokens" in capsys.readouterr().out
    file = tmp_path / "store" / ("shard-00000/tokens.npy" if earlier else "shard-00000.safetensors")
    data = file.read_bytes()
    for changed in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], b""):
        file.write_bytes(changed)
        assert dispatch(arguments) == 1
        assert "damaged shards: shard-00000" in capsys.readouterr().err
    file.unlink()
    assert dispatch(arguments) == 1
    assert dispatch(parse(["bert-horovod", "verify", "--data_dir", str(tmp_path / "none")])) == 2
    assert "is not a token store" in capsys.readouterr().err
