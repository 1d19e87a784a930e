"""The keys of a store: its hash, of every byte, and its text's, of what is learned."""

import hashlib
import json

import pytest

from bert_horovod.corpus.store import open_store, verify, write_manifest
from bert_horovod.errors import DamagedData
from bert_horovod.storage.reading import TEXT_BYTES
from tests.corpus.preparing.test_preparation import write_json_lines

TEXTS = [f"Number {i} is here." for i in range(60)]


def test_the_key_of_a_text_is_the_same_in_other_files_orders_and_shards(make_store, tmp_path):
    def store(name, texts=TEXTS, **settings):
        write_json_lines(tmp_path / f"{name}.jsonl", texts)
        made = make_store(tmp_path / f"{name}.jsonl", output=tmp_path / name, **{"held_out": 0.1} | settings)
        return open_store(made.path)

    one, other = store("one"), store("other", TEXTS[::-1], shard_bytes=300)
    total = sum(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little") for text in TEXTS)
    assert one.manifest["text"] == other.manifest["text"] == f"{total % 2**128:032x}"
    assert (len(one.shards), len(other.shards) > 1, one.hash == other.hash) == (1, True, False)
    others = [store("more", [*TEXTS, "More."]), store("held", held_out=0.2), store("cased", lowercase=False)]
    assert one.text_key == other.text_key
    assert len({one.text_key, *(each.text_key for each in others)}) == 4
    # A store that was made before manifests had the sum: its hash is the same, so that its runs go on.
    write_manifest(one.path, {key: value for key, value in one.manifest.items() if key != "text"})
    assert (verify(one.path).hash, open_store(one.path).text_key) == (one.hash, one.text_key)
    write_manifest(one.path, one.manifest | {"text": "0" * 32})
    with pytest.raises(DamagedData, match="`text` is not the sum of the hashes"):
        verify(one.path)
    (one.path / "manifest.json").write_text(json.dumps(one.manifest | {"text": "x"}), encoding="utf-8")
    with pytest.raises(DamagedData, match="text is 'x', expected 32 hexadecimal digits"):
        open_store(one.path)


def test_a_store_of_any_vocabulary_that_prepare_takes_is_opened(make_store, tmp_path, text, vocabulary):
    more = "".join(f"{'x' * 240}{number}\n" for number in range(140_000))
    large = tmp_path / "large.txt"
    large.write_text(vocabulary.read_text(encoding="utf-8") + more, encoding="utf-8")
    assert large.stat().st_size > TEXT_BYTES
    made = make_store(text, vocabulary_path=large)
    assert len(open_store(made.path).vocabulary) == made.manifest["vocabulary"]["size"]
