"""Preparation by several processes, interrupted and continued: always the same bytes."""

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.corpus.preparing.finishing import find_duplicates
from bert_horovod.corpus.preparing.summary import summary
from bert_horovod.corpus.statistics import token_counts
from bert_horovod.corpus.store import verify
from bert_horovod.errors import DamagedData, RunError, UserError
from tests.corpus.preparing.test_preparation import tree, write_json_lines
from tests.horovod_runs import PATIENCE_S, run_python


@pytest.fixture
def many_files(tmp_path):
    """12 files of about 12 KB."""
    directory = tmp_path / "many"
    directory.mkdir()
    for i in range(12):
        text = "\n\n".join(f"Number {i} is here and {j} is there." for j in range(400))
        (directory / f"{i:02d}.txt").write_text(text, encoding="utf-8")
    return directory


def command(source, vocabulary, store, *more):
    words = ["--input", source, "--vocab", vocabulary, "--output_dir", store, "--shard_bytes", "20000", *more]
    return [sys.executable, "-m", "bert_horovod", "prepare", *map(str, words)]


def run(*words, **environment):
    """Run `command` to its end."""
    done = run_python(*command(*words)[1:], **environment)
    assert done.returncode == 0, done.stderr
    return done


def wait_until(process, condition):
    """Wait until something holds while a process runs."""
    while not (value := condition()):
        assert process.poll() is None
        time.sleep(0.005)
    return value


def inodes(store):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in store.glob("shard-*")}


def test_two_workers_write_the_bytes_that_one_writes(many_files, vocabulary, tmp_path):
    for workers in (1, 2):
        done = run(many_files, vocabulary, tmp_path / str(workers), "--workers", workers)
        assert f"by {workers} worker{'s' if workers > 1 else ''}" in done.stdout
    assert len(verify(tmp_path / "1").shards) > 5
    assert tree(tmp_path / "1") == tree(tmp_path / "2")


@pytest.mark.full
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_after_a_kill_the_same_command_goes_on_where_it_was(make_store, many_files, vocabulary, tmp_path, workers):
    store = tmp_path / "killed"
    words = command(many_files, vocabulary, store, "--workers", workers)
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(process, lambda: len(list(store.glob("shard-*"))) >= 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = inodes(store)
    assert before
    assert not (store / "manifest.json").exists()
    prepared = make_store(many_files, output=store, shard_bytes=20_000)
    assert prepared.made.kept_blocks >= 3
    assert set(before.values()) <= set(inodes(store).values())  # renamed, not made again
    make_store(many_files, shard_bytes=20_000)
    assert tree(store) == tree(tmp_path / "store")


def test_an_endless_document_makes_many_shards_and_goes_on_in_its_middle(make_store, tmp_path):
    source = tmp_path / "long.txt"
    source.write_text("\n\n".join(f"Number {i} is here. " * 50 for i in range(600)), encoding="utf-8")
    settings = {"shard_bytes": 100_000, "section_bytes": 64 << 10}
    made = make_store(source, **settings)
    before = tree(made.path)
    assert max(entry["bytes"] for entry in made.manifest["shards"]) < 200_000
    assert made.manifest["totals"]["sentences"] == 30_000
    shards = sorted((tmp_path / "store").glob("shard-*"))
    assert len(shards) > 3
    for damaged in (shards[0], shards[2], shards[-1]):
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)
        prepared = make_store(source, **settings)
        assert prepared.made.kept_blocks == len(shards) - 1
        assert tree(tmp_path / "store") == before


@pytest.mark.full
@pytest.mark.parametrize("after_s", [0.02, *(pytest.param(after_s, marks=pytest.mark.slow) for after_s in (0, 1))])
def test_a_dead_worker_is_one_clear_error(many_files, vocabulary, tmp_path, after_s):
    words = command(many_files, vocabulary, tmp_path / "store", "--workers", "2")
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    [worker, *_] = wait_until(process, lambda: children(process.pid))
    time.sleep(after_s)
    os.kill(worker, signal.SIGKILL)
    error = process.communicate()[1]
    assert process.returncode == 1, error
    assert "a worker has died" in error
    assert "Traceback" not in error


def children(pid):
    """The worker processes of a process: those that spawn started, without its resource tracker."""
    pids = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            status = (directory / "stat").read_text(encoding="utf-8")
            words = (directory / "cmdline").read_text(encoding="utf-8")
        except OSError:  # it has ended
            continue
        if int(status.rpartition(")")[2].split()[1]) == pid and "spawn_main" in words:
            pids.append(int(directory.name))
    return pids


@pytest.mark.full
def test_workers_end_with_their_parent(many_files, vocabulary, tmp_path):
    words = command(many_files, vocabulary, tmp_path / "store", "--workers", "2")
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    workers = wait_until(process, lambda: len(pids := children(process.pid)) == 2 and pids)
    process.kill()
    process.wait()
    deadline = time.monotonic() + PATIENCE_S
    while any(os.path.exists(f"/proc/{worker}") for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.full
def test_two_prepares_in_one_directory_at_once_are_refused(make_store, many_files, vocabulary, tmp_path):
    process = subprocess.Popen(command(many_files, vocabulary, tmp_path / "store"), stdout=subprocess.DEVNULL)
    wait_until(process, (tmp_path / "store" / "plan.json").exists)
    process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(UserError, match="another prepare command writes"):
            make_store(many_files, shard_bytes=20_000)
    finally:
        process.send_signal(signal.SIGCONT)
    assert process.wait() == 0
    verify(tmp_path / "store")


def test_an_unfinished_store_made_otherwise_is_refused(make_store, many_files, tmp_path):
    make_store(many_files)
    store = tmp_path / "store"
    manifest = json.loads((store / "manifest.json").read_text(encoding="utf-8"))
    head = {key: manifest[key] for key in ("format", "settings", "vocabulary")}
    (store / "plan.json").write_text(json.dumps({"head": head, "sources": {}}), encoding="utf-8")
    (store / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"unfinished store that was made otherwise \(held_out: 0.01 -> 0.1"):
        make_store(many_files, held_out=0.1)
    assert make_store(many_files).made.kept_blocks == 0  # plan.json has no sources, so any may have changed


def test_exact_duplicates_of_documents_are_dropped_once_and_counted(make_store, tmp_path):
    texts = [f"Number {i} is here." for i in range(50)]
    write_json_lines(tmp_path / "a.jsonl", [*texts, texts[3], texts[4], texts[3]])
    (tmp_path / "b.txt").write_text(texts[7], encoding="utf-8")
    prepared = make_store(tmp_path / "a.jsonl", tmp_path / "b.txt", shard_bytes=200, held_out=0.1)
    store = verify(prepared.path)
    assert len(store.shards) > 3
    assert store.duplicates.tolist() == [50, 51, 52, 53]
    duplicates = prepared.manifest["duplicates"]
    assert duplicates["documents"] == 4
    write_json_lines(tmp_path / "c.jsonl", texts)
    once = make_store(tmp_path / "c.jsonl", output=tmp_path / "once", held_out=0.1)
    assert duplicates["tokens"] == prepared.manifest["totals"]["tokens"] - once.manifest["totals"]["tokens"]
    for counts, expected in zip(token_counts(store), token_counts(verify(once.path)), strict=True):
        assert counts.tolist() == expected.tolist()
    assert once.manifest["duplicates"] == {"documents": 0, "tokens": 0, "sha256": None}


def test_duplicates_are_the_same_in_one_pass_and_in_many(make_store, tmp_path, monkeypatch):
    write_json_lines(tmp_path / "a.jsonl", [f"Number {i % 37} is here." for i in range(100)])
    shards = verify(make_store(tmp_path / "a.jsonl", shard_bytes=300).path).shards
    monkeypatch.setattr("bert_horovod.corpus.preparing.finishing._PASS_DOCUMENTS", 7)
    assert find_duplicates(shards).tolist() == list(range(37, 100))


def test_a_damaged_list_of_duplicates_is_found_and_made_anew(make_store, tmp_path):
    write_json_lines(tmp_path / "a.jsonl", ["One.", "Two.", "One."])
    before = tree(make_store(tmp_path / "a.jsonl").path)
    (tmp_path / "store" / "duplicates.npy").write_bytes(b"")
    with pytest.raises(DamagedData, match=r"duplicates\.npy is missing or damaged"):
        verify(tmp_path / "store")
    assert make_store(tmp_path / "a.jsonl").made.kept_blocks == 1
    assert tree(tmp_path / "store") == before


def test_files_of_one_name_and_size_are_told_apart(make_store, tmp_path):
    for i, word in enumerate(("cat", "dog", "sat")):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "a.txt").write_text(f"The {word}. " * 10, encoding="utf-8")
    store = verify(make_store(*(tmp_path / str(i) / "a.txt" for i in range(3)), shard_bytes=60).path)
    assert len(store.shards) == 3
    assert len({bytes(shard.document_hashes) for shard in store.shards}) == 3


@pytest.mark.full
def test_ranks_of_a_launcher_are_told_of_blocks(many_files, vocabulary, tmp_path):
    for launcher, rank, size in (
        ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"),
        ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ):
        done = run_python(*command(many_files, vocabulary, tmp_path / "store")[1:], **{rank: "0", size: "2"})
        assert done.returncode == 2
        assert f"rank 0 of 2 of {launcher}" in done.stderr
        assert "--part K/N" in done.stderr


def test_a_changed_file_is_read_anew_though_another_has_its_name(make_store, tmp_path):
    files = [tmp_path / str(i) / "a.txt" for i in range(2)]
    for i, word in enumerate(("cat", "dog")):
        files[i].parent.mkdir()
        files[i].write_text(f"The {word}. " * 10, encoding="utf-8")
    bad = tmp_path / "b.jsonl"
    bad.write_text('{"text": "One."}\n' + "{" * 100, encoding="utf-8")  # its beginning is read before all else
    with pytest.raises(UserError, match="not JSON"):
        make_store(*files, bad, shard_bytes=95)
    assert len(list((tmp_path / "store").glob("shard-*"))) == 2
    files[0].write_text("The sat. " * 10, encoding="utf-8")
    os.utime(files[0], ns=(1, 1))
    write_json_lines(bad, ["One. " * 20])
    assert make_store(*files, bad, shard_bytes=95).made.kept_blocks == 1
    make_store(*files, bad, shard_bytes=95, output=tmp_path / "fresh")
    assert tree(tmp_path / "store") == tree(tmp_path / "fresh")


@pytest.fixture
def few_shards(monkeypatch):
    """A store has at most three shards."""
    monkeypatch.setattr("bert_horovod.corpus.preparing.planning._MOST_SHARDS", 3)


def test_shards_of_many_parts_hold_what_shards_of_one_hold(make_store, many_files, tmp_path, few_shards, monkeypatch):
    joined = verify(make_store(many_files, shard_bytes=20_000, held_out=0.1).path)
    parts = [entry["parts"] for entry in joined.manifest["shards"]]
    assert len(parts) <= 3 < sum(parts)
    monkeypatch.undo()
    many = verify(make_store(many_files, shard_bytes=20_000, held_out=0.1, output=tmp_path / "single").path)
    assert len(many.shards) == sum(parts)
    split = [part for shard in joined.shards for part in shard.split()]
    for part, shard in zip(split, many.shards, strict=True):
        for name in ("tokens", "sentences", "sections", "documents", "held_out", "document_hashes", "titles"):
            assert np.array_equal(getattr(part, name), getattr(shard, name)), name


def test_a_damaged_shard_of_many_parts_is_made_anew_and_the_others_stay(make_store, many_files, tmp_path, few_shards):
    before = tree(make_store(many_files, shard_bytes=20_000).path)
    first = inodes(tmp_path / "store")
    damaged = tmp_path / "store" / "shard-00001.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    made = make_store(many_files, shard_bytes=20_000)
    assert made.made.kept_blocks == sum(entry["parts"] for i, entry in enumerate(made.manifest["shards"]) if i != 1)
    assert f"; finished before: {made.made.kept_blocks} blocks; " in summary(made)
    assert tree(tmp_path / "store") == before
    assert [name for name, inode in inodes(tmp_path / "store").items() if first[name] != inode] == [damaged.name]


@pytest.mark.parametrize("deleted", [False, True])
def test_after_an_end_while_joining_the_call_goes_on(
    make_store, many_files, tmp_path, few_shards, monkeypatch, deleted
):
    from bert_horovod.corpus.preparing import blocks

    write = blocks.write_blocks

    def fail(store, of_blocks, shards):
        if len(of_blocks) > 1 and list(store.glob("shard-*+*")):
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(store, of_blocks, shards)
        if len(of_blocks) > 1 and not deleted:
            raise OSError(errno.ENOSPC, "No space left on device")  # before the files of its parts are deleted
        return written

    monkeypatch.setattr(blocks, "write_blocks", fail)
    with pytest.raises(RunError, match="no room left for"):
        make_store(many_files, shard_bytes=20_000)
    monkeypatch.setattr(blocks, "write_blocks", write)
    resumed = make_store(many_files, shard_bytes=20_000)
    assert resumed.made.kept_blocks == sum(entry["parts"] for entry in resumed.manifest["shards"])
    make_store(many_files, shard_bytes=20_000, output=tmp_path / "fresh")
    assert tree(tmp_path / "store") == tree(tmp_path / "fresh")


@pytest.mark.full
def test_a_store_is_prepared_without_tensorflow(many_files, vocabulary, tmp_path):
    done = run(many_files, vocabulary, tmp_path / "store", PYTHONPROFILEIMPORTTIME="1")
    assert " tokenizers\n" in done.stderr
    assert " tensorflow\n" not in done.stderr


@pytest.mark.full
def test_many_parts_are_prepared_with_few_files(many_files, vocabulary, tmp_path):
    more = ("--documents", "blank_line", "--shard_bytes", "500")
    words = shlex.join(command(many_files, vocabulary, tmp_path / "store", *more))
    done = subprocess.run(["bash", "-c", f"ulimit -n 64; {words}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(verify(tmp_path / "store").shards) > 200
