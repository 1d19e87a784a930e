"""The record of what was compared with its checksums."""

import os

from bert_horovod.storage.verified import Verified, identity


def test_a_file_is_known_until_it_changes(tmp_path):
    file, record = tmp_path / "a", Verified(tmp_path / "index" / "verified.jsonl")
    file.write_text("one")
    assert record.names() == {}
    record.remember("a", identity([file]))
    record.remember("b", [1, 2, 3])
    assert Verified(tmp_path / "index" / "verified.jsonl").names() == {"a": identity([file]), "b": [1, 2, 3]}
    facts = file.stat()
    file.write_text("two")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # the time of change cannot be put back
    assert record.names()["a"] != identity([file])
    record.remember("a", identity([file]))
    assert record.names()["a"] == identity([file])


def test_half_a_line_and_a_place_that_cannot_be_written_do_no_harm(tmp_path):
    record = Verified(tmp_path / "verified.jsonl")
    record.remember("a", [1])
    with open(tmp_path / "verified.jsonl", "a", encoding="utf-8") as file:
        file.write('{"name": "b", "ident\n[]\n{}\n')
    record.remember("c", [2])
    assert record.names() == {"a": [1], "c": [2]}
    (tmp_path / "file").touch()
    Verified(tmp_path / "file" / "verified.jsonl").remember("a", [1])
