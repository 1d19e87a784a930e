"""Text on servers gives the bytes that copies on this machine give, also when a server dies in the middle."""

import bz2
import gzip
import os
import shutil
import subprocess
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from bert_horovod.corpus.preparing.planning import Part, Settings
from bert_horovod.corpus.preparing.preparation import Preparation
from bert_horovod.corpus.reading.finding import find_sources
from bert_horovod.corpus.reading.sources import SourceReader
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.corpus.reading.vocabulary import learn_vocabulary
from bert_horovod.errors import RunError, UserError
from bert_horovod.storage import connections, remote
from tests.corpus.preparing.test_preparation import tree, write_json_lines
from tests.corpus.reading.documents import HEAD, TAIL, page
from tests.horovod_runs import PATIENCE_S

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]


def lines(name, count=300):
    return [f"Text {name} has number {i}. It is here, and {i * i} too." for i in range(count)]


@pytest.fixture
def texts(elsewhere, monkeypatch):
    """The servers, with a file of every format, read in small blocks."""
    monkeypatch.setattr(remote, "BLOCK_BYTES", 3000)
    remote._edge_block.cache_clear()
    files = elsewhere.files
    shutil.rmtree(files)
    (files / "sub" / ".hidden").mkdir(parents=True)
    (files / "sub" / "a b.txt").write_text("\n\n".join(lines("plain")))
    (files / "sub" / "b.txt.gz").write_bytes(gzip.compress("\n\n".join(lines("gzip")).encode(), mtime=0))
    (files / "sub" / ".hidden" / "c.txt").write_text("Not read.")
    (files / "LICENSE").write_text("Not read.")
    write_json_lines(files / "c.jsonl", lines("json"))
    write_json_lines(files / "d.jsonl", lines("zstd"))
    (files / "d.jsonl.zst").write_bytes(zstandard.compress((files / "d.jsonl").read_bytes()))
    (files / "d.jsonl").unlink()
    streams = [HEAD, *(page(f"Title {i}", "\n\n".join(lines(f"wiki {i}", 60))) for i in range(6)), TAIL]
    (files / "e.xml.bz2").write_bytes(b"".join(bz2.compress(stream.encode()) for stream in streams))
    pq.write_table(pa.table({"text": lines("parquet"), "n": range(300)}), files / "f.parquet", row_group_size=40)
    for name, new in (("g", pa.ipc.new_stream), ("h", pa.ipc.new_file)):
        table = pa.table({"text": lines(f"arrow {name}")})
        with new(str(files / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table, 50)
    elsewhere.publish()
    return elsewhere


def without_origins(store):
    return {name: content for name, content in tree(store).items() if name != "origins.json"}


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_directory_and_a_glob_elsewhere_give_the_bytes_of_copies_here(texts, make_store, tmp_path, scheme, capsys):
    make_store(texts.files, output=tmp_path / "local", shard_bytes=9000)
    directory = f"{texts.url(scheme)}/"
    make_store(directory, output=tmp_path / "store", shard_bytes=9000)
    assert without_origins(tmp_path / "store") == tree(tmp_path / "local")
    make_store(f"{directory}*.parquet", f"{directory}sub/*.txt", output=tmp_path / "globs", shard_bytes=9000)
    make_store(f"{texts.files}/*.parquet", f"{texts.files}/sub/*.txt", output=tmp_path / "both", shard_bytes=9000)
    assert without_origins(tmp_path / "globs") == tree(tmp_path / "both")
    read = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceReader, "sha256", lambda self: read.append(self.source.name) or "")
        assert not make_store(directory, output=tmp_path / "store", shard_bytes=9000).made
    assert not read  # the server says that they are the same
    path = texts.files / "c.jsonl"
    path.write_bytes(path.read_bytes().replace(b"has", b"HAS"))
    os.utime(path, (1, 1))
    texts.publish()
    with pytest.raises(UserError, match=r"source c\.jsonl has changed"):
        make_store(directory, output=tmp_path / "store", shard_bytes=9000)
    with pytest.raises(UserError, match="no such file"):
        make_store(f"{directory}none*", output=tmp_path / "none")
    told = capsys.readouterr()
    assert "the-secret-key-of-the-test" not in told.out + told.err + str(tree(tmp_path / "store"))


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_after_a_servers_death_the_next_call_goes_on(texts, make_store, tmp_path, scheme, monkeypatch, capsys):
    monkeypatch.setattr(connections, "PATIENCE_S", 0.3)
    store, directory = tmp_path / "store", f"{texts.url(scheme)}/"
    make_store(texts.files, output=tmp_path / "local", shard_bytes=9000)
    reads = []

    def kill_when_parts_are_there(file, number):
        reads.append(number)
        if len(list(store.glob("shard-*"))) >= 3 and not killed.is_set():
            killed.set()
            if scheme == "http":
                texts.http.refusals = 10**6
            else:
                texts.s3.kill()
            connections._filesystems.clear()
        return read_block(file, number)

    read_block, killed = remote._read_block, threading.Event()
    monkeypatch.setattr(remote, "_read_block", kill_when_parts_are_there)
    with pytest.raises(RunError, match=r"cannot read .*run the same command again"):
        make_store(directory, output=store, shard_bytes=9000)
    kept = {path.name: path.stat().st_ino for path in store.glob("shard-*")}
    assert len(kept) >= 3
    assert "kept" in capsys.readouterr().err
    texts.http.refusals = 0
    if scheme == "s3":
        texts.s3.restart()
        texts.publish()
    connections._filesystems.clear()
    assert make_store(directory, output=store, shard_bytes=9000).made
    assert "finished already" in capsys.readouterr().out
    assert without_origins(store) == tree(tmp_path / "local")


def test_a_file_that_changes_while_it_is_read_is_noticed(texts, make_store, tmp_path, monkeypatch, capsys):
    directory, path = f"{texts.url('s3')}/", texts.files / "c.jsonl"
    read_block = remote._read_block

    def change(file, number):
        if file.place.name == "h.arrow" and b"has" in path.read_bytes():
            path.write_bytes(path.read_bytes().replace(b"has", b"had"))
            texts.publish()
        return read_block(file, number)

    monkeypatch.setattr(remote, "_read_block", change)
    monkeypatch.setattr(remote, "_edge_block", change)
    with pytest.raises(RunError, match=r"c\.jsonl changed while being read; run the same command again"):
        make_store(directory, shard_bytes=9000)
    monkeypatch.undo()
    for name, value in texts.variables.items():
        monkeypatch.setenv(name, value)
    make_store(directory, shard_bytes=9000)
    assert "finished already" in capsys.readouterr().out
    make_store(texts.files, output=tmp_path / "local", shard_bytes=9000)
    assert without_origins(tmp_path / "store") == tree(tmp_path / "local")


def test_parts_of_the_work_are_made_from_text_elsewhere(texts, make_store, vocabulary, tmp_path):
    make_store(texts.files, output=tmp_path / "local", shard_bytes=9000)
    tokens = vocabulary.read_text(encoding="utf-8").split()
    settings = Settings(tokenizer=TokenizerSettings(True), shard_bytes=9000)
    inputs = [f"{texts.url('s3')}/"]
    for number in (2, 1):
        Preparation(inputs, vocabulary, tmp_path / "store", tokens, settings, 1).make_part(Part(number, 2), "CALL")
    assert without_origins(tmp_path / "store") == tree(tmp_path / "local")


def test_the_commands_take_urls_by_two_workers_and_no_library_speaks(texts, make_store, vocabulary, tmp_path):
    def run(*words):
        command = [sys.executable, "-m", "bert_horovod", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done

    url = texts.url("s3")
    more = ("--vocab", vocabulary, "--shard_bytes", 9000, "--workers", 2)
    done = run("prepare", "--input", f"{url}/", *more, "--output_dir", "store")
    assert not any(word in done.stderr for word in ("Traceback", "Unclosed", "credentials"))
    make_store(texts.files, output=tmp_path / "local", shard_bytes=9000)
    assert without_origins(tmp_path / "store") == tree(tmp_path / "local")
    done = run("vocab", "--input", f"{url}/sub", "--size", 600, "--output", "v.txt")
    assert done.stderr.count("\n") <= 1, done.stderr
    assert f"--input {url}/sub" in done.stdout
    here = learn_vocabulary(find_sources([str(texts.files / "sub")]), 600, True, "file", "text", None)
    assert (tmp_path / "v.txt").read_text().splitlines() == here
