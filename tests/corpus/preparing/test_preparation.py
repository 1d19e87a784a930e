"""Preparation: the content of a store, that it is complete or absent, and how bad input is refused."""

import errno
import gzip
import json
import math
import os
import shutil
import subprocess

import numpy as np
import pytest

from bert_horovod.corpus.preparing import finishing
from bert_horovod.corpus.preparing.planning import Settings
from bert_horovod.corpus.preparing.summary import summary
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED, Added, TokenizerSettings
from bert_horovod.corpus.shard import shard_problem
from bert_horovod.corpus.statistics import unigram_cross_entropy
from bert_horovod.corpus.store import open_store, verify, write_manifest
from bert_horovod.errors import DamagedData, RunError, UserError
from tests.rights import small_file_system
from tests.toys import prepare


def sentences_of(store):
    return [
        shard.tokens[begin:end].tolist()
        for shard in store.shards
        for begin, end in zip(shard.sentences[:-1], shard.sentences[1:], strict=True)
    ]


def tree(path):
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def write_json_lines(path, texts):
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")


def test_the_store_holds_the_text_as_ids(make_store, text):
    prepared = make_store(text)
    store = verify(prepared.path)
    words = ["The cat sat.", "Mr. Fox saw it!", '"Was it here?" said he.', "A dog ran on."]
    ids, lengths = Tokenizer(store.vocabulary, UNCASED)([*words, *words, "One more.", "And another one."])
    assert sentences_of(store) == [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    totals = prepared.manifest["totals"]
    expected = {"documents": 2, "sections": 2, "sentences": 10, "tokens": len(ids), "unknown_tokens": 0}
    assert expected.items() <= totals.items()
    assert [source["name"] for source in store.sources()] == ["a.txt", "sub/b.txt"]
    assert "next: bert-horovod pretrain" in summary(prepared)


def test_cased_keeps_case_and_uncased_does_not(make_store, text, tmp_path):
    cased = open_store(make_store(text, lowercase=False, output=tmp_path / "cased").path)
    assert cased.vocabulary.index("T") in sentences_of(cased)[0]
    assert sentences_of(open_store(make_store(text).path))[0][0] == cased.vocabulary.index("the")


def test_the_same_input_gives_the_same_bytes_wherever_it_lies(make_store, text, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(text, moved)
    make_store(text, output=tmp_path / "one")
    make_store(moved, output=tmp_path / "two")
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert str(tmp_path) not in (tmp_path / "one" / "manifest.json").read_text(encoding="utf-8")


def test_shards_change_neither_documents_nor_sentences(make_store, tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("\n\n".join(f"Number {i} is here. It sat.\nDog {i}." for i in range(200)), encoding="utf-8")
    one = verify(make_store(path, documents="blank_line", output=tmp_path / "one").path)
    many = verify(make_store(path, documents="blank_line", output=tmp_path / "two", shard_bytes=1000).path)
    assert (len(one.shards), len(many.shards) > 3) == (1, True)
    assert sentences_of(one) == sentences_of(many)
    hashes = np.concatenate([shard.document_hashes for shard in many.shards])
    assert np.array_equal(one.shards[0].document_hashes, hashes)
    assert len(sentences_of(one)) == 400  # with blank_line, a line is a sentence


def test_held_out_sections_are_those_of_their_text(make_store, tmp_path):
    texts = [f"Number {i} is here. It sat." for i in range(1000)]
    for name, order in (("one", texts), ("two", texts[::-1])):
        write_json_lines(tmp_path / f"{name}.jsonl", order)
    one = open_store(make_store(tmp_path / "one.jsonl", output=tmp_path / "one", held_out=0.1).path)
    two = open_store(make_store(tmp_path / "two.jsonl", output=tmp_path / "two", held_out=0.1).path)
    assert one.shards[0].held_out.tolist() == two.shards[0].held_out.tolist()[::-1]
    assert 50 < one.shards[0].held_out.sum() == one.manifest["totals"]["held_out_sections"] < 150
    none = make_store(tmp_path / "one.jsonl", output=tmp_path / "none", held_out=0)
    assert none.manifest["totals"]["held_out_tokens"] == 0
    with pytest.raises(UserError, match="no held-out tokens"):
        unigram_cross_entropy(open_store(none.path))


def test_unigram_cross_entropy_is_the_textbooks(make_store, tmp_path):
    write_json_lines(tmp_path / "a.jsonl", [f"cat {'dog ' * (i % 7)}{i}" for i in range(300)])
    store = open_store(make_store(tmp_path / "a.jsonl", held_out=0.2).path)
    [shard] = store.shards
    training, held = [], []
    for i in range(len(shard.held_out)):
        (held if shard.held_out[i] else training).extend(
            shard.tokens[shard.sentences[shard.sections[i]] : shard.sentences[shard.sections[i + 1]]].tolist()
        )
    total = sum(-np.log((training.count(token) + 1) / (len(training) + len(store.vocabulary))) for token in held)
    assert unigram_cross_entropy(store) == pytest.approx(total / len(held), rel=1e-12)


def test_documents_without_tokens_are_dropped_and_counted_and_files_without_text_named(make_store, tmp_path):
    write_json_lines(tmp_path / "a.jsonl", ["One.", "", "\u200b", "Two.", "\u0001"])
    (tmp_path / "c.txt").write_text("\u200b", encoding="utf-8")
    made = make_store(tmp_path / "a.jsonl", tmp_path / "c.txt")
    totals = made.manifest["totals"]
    assert (totals["documents"], totals["dropped_documents"]) == (2, 4)
    assert "1 of 2 files gave no text: c.txt" in summary(made)
    verify(tmp_path / "store")


def test_again_on_a_finished_store_finds_it_finished(make_store, text, tmp_path):
    make_store(text)
    before = tree(tmp_path / "store")
    prepared = make_store(text)
    assert not prepared.made
    assert "finished already" in summary(prepared)
    assert tree(tmp_path / "store") == before


@pytest.mark.parametrize("name", ["shard-00000.safetensors", "sources.jsonl", "vocab.txt", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_store_is_found_and_made_anew(make_store, text, tmp_path, name, damage):
    make_store(text)
    before = tree(tmp_path / "store")
    file = tmp_path / "store" / name
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    if damage == "remove":
        file.unlink()
    else:
        file.write_bytes(data if damage == "flip" else data[:-3])
    missing = (name, damage) == ("manifest.json", "remove")  # then the path may be no store
    message = "damaged shards: shard-00000" if name.startswith("shard") else "store"
    with pytest.raises(UserError if missing else DamagedData, match=message):
        verify(tmp_path / "store")
    assert make_store(text).made
    assert tree(tmp_path / "store") == before


def test_an_unfinished_store_is_started_again(make_store, text, tmp_path):
    make_store(text)
    before = tree(tmp_path / "store")
    (tmp_path / "store" / "manifest.json").unlink()
    (tmp_path / "store" / ".shard-00008.safetensors.partial").write_bytes(b"half")
    assert make_store(text).made
    assert tree(tmp_path / "store") == before


def test_other_settings_sources_or_vocabulary_on_a_finished_store_are_refused(make_store, text, tmp_path, vocabulary):
    make_store(text)
    before = tree(tmp_path / "store")
    with pytest.raises(UserError, match=r"held_out: 0\.01 -> 0\.02"):
        make_store(text, held_out=0.02)
    with pytest.raises(UserError, match="lowercase: True -> False"):
        make_store(text, lowercase=False)
    with pytest.raises(UserError, match="-> 1 file,"):
        make_store(text / "a.txt")
    vocabulary.write_text(vocabulary.read_text(encoding="utf-8") + "more\n", encoding="utf-8")
    with pytest.raises(UserError, match="sha256"):
        make_store(text)
    vocabulary.write_text(vocabulary.read_text(encoding="utf-8").removesuffix("more\n"), encoding="utf-8")
    (text / "a.txt").write_text((text / "a.txt").read_text(encoding="utf-8").replace("cat", "dog"), encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.txt has changed"):
        make_store(text)
    assert tree(tmp_path / "store") == before


def test_a_directory_with_other_things_is_refused_and_left_alone(make_store, text, tmp_path, vocabulary):
    other = tmp_path / "home"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(UserError, match=r"thesis\.tex"):
        make_store(text, output=other)
    assert os.listdir(other) == ["thesis.tex"]
    for name in ("vocab.txt", "tokenizer.json"):
        mine = tmp_path / f"my {name}"
        mine.mkdir()
        (mine / name).write_text("my only copy", encoding="utf-8")
        with pytest.raises(UserError, match=rf"holds other things \({name}\)"):
            make_store(text, output=mine)
        assert (os.listdir(mine), (mine / name).read_text()) == ([name], "my only copy")
    with pytest.raises(UserError, match="lies in --output_dir"):
        make_store(text, output=vocabulary.parent, vocabulary_path=vocabulary)
    assert vocabulary.exists()
    with pytest.raises(UserError, match="is a file"):
        make_store(text, output=other / "thesis.tex")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "yields no tokens"),
        (" \n\n \n", "yields no tokens"),
        ("日本 語文 中字 のか", "of the tokens are"),
        ("Good.\n\nBad \0.", "NUL"),
    ],
)
@pytest.mark.parametrize("existing", [True, False])
def test_bad_input_leaves_nothing_behind(make_store, tmp_path, content, message, existing):
    (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    if existing:
        (tmp_path / "store").mkdir()
    with pytest.raises(UserError, match=message):
        make_store(tmp_path / "a.txt", shard_bytes=4)
    assert (tmp_path / "store").exists() == existing
    assert not existing or not os.listdir(tmp_path / "store")


def test_bad_input_after_finished_shards_keeps_those_and_the_mended_file_makes_the_store(make_store, tmp_path, capsys):
    data = gzip.compress("\n\n".join(f"Number {i} is here. " * 8 for i in range(20_000)).encode())
    (tmp_path / "a.txt.gz").write_bytes(data[:-1000])
    with pytest.raises(DamagedData, match="truncated"):
        make_store(tmp_path / "a.txt.gz", documents="blank_line", shard_bytes=1_000_000)
    assert "the same command goes on from there" in capsys.readouterr().err
    assert not (tmp_path / "store" / "manifest.json").exists()
    (tmp_path / "a.txt.gz").write_bytes(data)
    mended = make_store(tmp_path / "a.txt.gz", documents="blank_line", shard_bytes=1_000_000)
    assert mended.made.kept_blocks == 0  # the shards that were there are of another file
    make_store(tmp_path / "a.txt.gz", documents="blank_line", shard_bytes=1_000_000, output=tmp_path / "fresh")
    assert tree(tmp_path / "store") == tree(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("name", "value"), [("held_out", -0.1), ("held_out", 0.9), ("held_out", math.nan), ("shard_bytes", 0)]
)
def test_senseless_settings_are_refused(make_store, text, name, value):
    with pytest.raises(UserError, match=name):
        make_store(text, **{name: value})


def test_the_manifest_failing_to_be_written_keeps_the_shards(make_store, text, tmp_path, monkeypatch):
    def fail(store, manifest):
        (store / ".manifest.json.partial").write_text("{", encoding="utf-8")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(finishing, "write_manifest", fail)
    with pytest.raises(RunError, match="no room left for"):
        make_store(text)
    monkeypatch.undo()
    assert not (tmp_path / "store" / "manifest.json").exists()
    assert make_store(text).made.kept_blocks == 1
    make_store(text, output=tmp_path / "fresh")
    assert tree(tmp_path / "store") == tree(tmp_path / "fresh")


def test_a_file_that_is_removed_while_it_is_read_is_named(make_store, text, monkeypatch):
    monkeypatch.setattr(finishing, "refuse_unknown", lambda *_: (text / "a.txt").unlink())
    with pytest.raises(RunError, match=r"^a\.txt changed while being read; run the same command again$"):
        make_store(text)


@pytest.fixture
def small_disk(tmp_path):
    with small_file_system(tmp_path / "disk", 256 << 10) as path:
        yield path


@pytest.mark.full
def test_after_a_full_disk_the_same_command_goes_on(make_store, small_disk, tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(f"Number {i} is here." for i in range(50_000)), encoding="utf-8")
    settings = {"documents": "blank_line", "shard_bytes": 20_000}
    with pytest.raises(RunError, match="no room left for"):
        make_store(tmp_path / "a.txt", output=small_disk / "store", **settings)
    assert not (small_disk / "store" / "manifest.json").exists()
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    assert make_store(tmp_path / "a.txt", output=small_disk / "store", **settings).made.kept_blocks > 0
    make_store(tmp_path / "a.txt", **settings)
    assert tree(small_disk / "store") == tree(tmp_path / "store")


@pytest.mark.full
def test_memory_does_not_grow_with_the_corpus(make_store, tmp_path):
    import resource

    paragraph = "Some words and then a few more of them make a sentence. " * 20 + "\n\n"

    def peak(megabytes):
        with gzip.open(tmp_path / "a.txt.gz", "wt", encoding="utf-8", compresslevel=1) as file:
            for _ in range(megabytes):
                file.write(paragraph * (10**6 // len(paragraph)))
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        make_store(tmp_path / "a.txt.gz", shard_bytes=1_000_000)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    first = peak(10)  # by then all modules are imported
    assert peak(40) - first < 20e6


def test_every_check_of_a_shard_fires(make_store, text):
    from dataclasses import replace

    store = open_store(make_store(text).path)
    [shard] = store.shards
    assert shard_problem(shard) is None
    bad = np.array(shard.sentences)
    bad[1:3] = bad[2:0:-1]
    for other, message in [
        (replace(shard, sentences=bad), "sentences do not rise"),
        (replace(shard, sections=np.array(shard.sections) + np.uint32(1)), "sections do not rise"),
        (replace(shard, documents=shard.documents[:-1]), "documents do not rise"),
        (replace(shard, titles=shard.titles[:-1]), "one title a document"),
        (replace(shard, held_out=np.full(len(shard.held_out), 2, np.uint8)), "other than true and false"),
    ]:
        assert message in shard_problem(other)


def test_a_store_that_a_run_has_used_is_still_ours(make_store, text):
    store = make_store(text)
    (store.path / "index" / "0123").mkdir(parents=True)
    assert make_store(text).path == store.path
    assert (store.path / "index" / "0123").is_dir()


def test_the_store_remembers_how_text_was_cut(tmp_path, text, vocabulary):
    settings = TokenizerSettings(True, strip_accents=False, chinese_apart=False, added=(Added("cat", True),))
    made = prepare([str(text)], vocabulary, tmp_path / "store", settings=Settings(tokenizer=settings))
    store = open_store(made.path)
    assert store.tokenizer_settings == settings
    ids, _ = Tokenizer(store.vocabulary, settings)(["The cat sat."])
    assert ids.tolist() == np.asarray(store.shards[0].tokens[: len(ids)]).tolist()
    with pytest.raises(UserError, match="strip_accents: False -> None"):
        prepare([str(text)], vocabulary, tmp_path / "store")


def test_a_store_of_another_version_is_refused_and_stays_as_it_is(make_store, text, tmp_path):
    store = open_store(make_store(text).path)
    write_manifest(store.path, store.manifest | {"format": 2})
    before = tree(store.path)
    for use in (lambda: make_store(text), lambda: open_store(store.path), lambda: verify(store.path)):
        with pytest.raises(UserError, match=r"of format 2, .*expected format 3: prepare its text anew, into another"):
            use()
    assert tree(store.path) == before
