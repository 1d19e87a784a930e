"""The verify command, as it is typed."""

import numpy as np

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.corpus.manifest import FORMAT
from bert_horovod.corpus.reading.vocabulary import vocabulary_hash
from bert_horovod.corpus.store import Shard, write_manifest, write_shard


def test_damage_is_named_and_the_exit_code_is_1(tmp_path, capsys):
    one = np.array([0, 1], np.uint32)
    shard = Shard(
        tokens=np.array([5, 6, 7], np.uint16),
        sentences=np.array([0, 3], np.uint32),
        sections=one,
        documents=one,
        held_out=np.zeros(1, bool),
        document_hashes=np.zeros((1, 2), np.uint64),
        titles=np.frombuffer(b"\n", np.uint8),
    )
    entry = write_shard(tmp_path / "shard-00000", shard, 9)
    text = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n"
    (tmp_path / "vocab.txt").write_text(text, encoding="utf-8")
    totals = dict.fromkeys(("held_out_sections", "held_out_tokens", "unknown_tokens", "dropped_documents"), 0)
    totals |= {name: entry[name] for name in ("documents", "sections", "sentences", "tokens", "bytes")}
    write_manifest(
        tmp_path,
        {
            "format": FORMAT,
            "settings": {},
            "sources": [],
            "shards": [entry],
            "totals": totals,
            "passed_over": {},
            "duplicates": {"documents": 0, "tokens": 0, "sha256": None},
            "vocabulary": {"sha256": vocabulary_hash(text.split()), "size": 8, "lowercase": True},
        },
    )
    arguments = parse(["bert-horovod", "verify", "--data_dir", str(tmp_path)])
    assert dispatch(arguments) == 0
    assert "tokens" in capsys.readouterr().out
    file = tmp_path / "shard-00000" / "tokens.npy"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert dispatch(arguments) == 1
    assert "damaged shards: shard-00000" in capsys.readouterr().err
    file.unlink()
    assert dispatch(arguments) == 1
    assert dispatch(parse(["bert-horovod", "verify", "--data_dir", str(tmp_path / "none")])) == 2
    assert "is not a token store" in capsys.readouterr().err
