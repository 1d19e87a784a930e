"""The prepare command, as it is typed."""

import dataclasses
import errno
import gzip
import io
import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest

from bert_horovod.__main__ import parse
from bert_horovod.batches.text.rows import open_rows
from bert_horovod.corpus.store import open_store
from bert_horovod.corpus.stores import open_stores
from bert_horovod.recipe_files.loading import load_recipe, recipe_to_toml
from tests.commands.conftest import command
from tests.horovod_runs import clean_environment
from tests.toy_glue import write_checkpoint
from tests.toys import toy_recipe

LETTERS = "abcdefghijklmnopqrstuvwxyz.0123456789"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Text and a vocabulary in the working directory."""
    monkeypatch.chdir(tmp_path)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    (tmp_path / "a.txt").write_text("A cat. A dog.\n\nThe end.", encoding="utf-8")
    return tmp_path


def test_prepare_verify_and_again(files, capsys):
    words = ("prepare", "--input", "a.txt", "--vocab", "vocab.txt", "--output_dir", "store")
    assert command(*words) == 0
    out = capsys.readouterr().out
    assert "1 document, 3 sentences" in out
    recipe = "quickstart --set model.vocab_size=79"
    assert f"next: bert-horovod pretrain --recipe {recipe} --data_dir {files / 'store'} --output_dir RUN" in out
    assert command("verify", "--data_dir", "store") == 0
    assert "all as they were written" in capsys.readouterr().out
    assert command(*words) == 0
    assert "finished already" in capsys.readouterr().out


def test_with_a_checkpoints_vocabulary_the_next_command_goes_on_from_it(files, capsys):
    vocabulary = (files / "vocab.txt").read_text(encoding="utf-8").split()
    model = dataclasses.replace(toy_recipe().model, vocab_size=len(vocabulary))
    write_checkpoint(files / "a model", model=model, words=vocabulary)
    assert command("prepare", "--input", "a.txt", "--vocab", "a model", "--output_dir", "store") == 0
    out = capsys.readouterr().out
    assert f"next: bert-horovod pretrain --recipe domain --init_checkpoint '{files}/a model' --data_dir {files}" in out


def test_the_next_command_has_the_recipe_whose_rows_were_made(files, capsys):
    (files / "toy.toml").write_text(recipe_to_toml(toy_recipe(model={"vocab_size": 79})))
    given = ("--recipe", "toy.toml", "--set", "objective.pair=none")
    assert command("prepare", "--input", "a.txt", "--vocab", "vocab.txt", "--output_dir", "store", *given) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert f"next: bert-horovod pretrain --recipe {files}/toy.toml --set objective.pair=none --data_dir " in line


def test_the_next_command_runs_from_any_directory(files, capsys, monkeypatch):
    words = "prepare", "--input", "a.txt", "--vocab", "vocab.txt", "--output_dir", "a store"
    assert command(*words) == 0
    words = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("next: bert-horovod "))
    (files / "elsewhere").mkdir()
    monkeypatch.chdir(files / "elsewhere")
    arguments = parse(["bert-horovod", *words])
    [store] = open_stores(arguments.data_dir).values()
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    assert recipe.model.vocab_size == len(store.vocabulary)


def test_an_unquoted_glob_gives_several_inputs(files, capsys):
    (files / "b.txt").write_text("A pen.")
    words = "--vocab", "vocab.txt", "--output_dir"
    assert command("prepare", "--input", "a.txt", "b.txt", *words, "store") == 0
    assert command("prepare", "--input", "*.txt", "--input", "a.txt", *words, "quoted") == 0
    assert command("prepare", "--input", "b.txt", "--input", "a.txt", *words, "turned") == 0
    assert "2 documents, 4 sentences" in capsys.readouterr().out
    names = [[source["name"] for source in open_store(store).sources()] for store in ("store", "turned")]
    assert names == [["a.txt", "b.txt"], ["b.txt", "a.txt"]]


@pytest.mark.parametrize(("number", "code"), [(errno.EROFS, 2), (errno.ENOSPC, 1)])
def test_a_dev_shm_that_cannot_be_written_is_named_and_not_the_output(files, capsys, monkeypatch, number, code):
    def no_semaphore(*_arguments, **_options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", no_semaphore)
    words = ("--input", "a.txt", "--vocab", "vocab.txt", "--output_dir", "store", "--workers", "2")
    assert command("prepare", *words) == code
    message = capsys.readouterr().err
    assert f"in /dev/shm: {os.strerror(number)}" in message
    assert "--workers 1" in message
    assert "--output_dir" not in message


def test_standard_input_makes_the_store_that_the_file_makes_and_leaves_no_copy(files, capsys, monkeypatch):
    def prepare(content, store):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        return command("prepare", "--input", "-", "--vocab", "vocab.txt", "--output_dir", store)

    for name, content in (("standard_input.txt", b"A cat.\n\nA dog."), ("standard_input.jsonl", b'{"text": "A cat."}')):
        assert prepare(content, "store") == 0
        (files / name).write_bytes(content)
        assert command("prepare", "--input", name, "--vocab", "vocab.txt", "--output_dir", "whole") == 0
        assert sorted(os.listdir("store")) == sorted(os.listdir("whole"))
        assert (files / "store" / "manifest.json").read_bytes() == (files / "whole" / "manifest.json").read_bytes()
        shutil.rmtree("store")
        shutil.rmtree("whole")
    assert prepare(gzip.compress(b"A cat."), "store") == 2
    assert "or decompress it" in capsys.readouterr().err
    assert not os.path.exists("store")


@pytest.mark.full
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_names_of_any_bytes_and_characters_are_written_in_any_locale(files, locale):
    os.rename("a.txt", b"caf\xe9.txt")
    words = [b"--input", b"caf\xe9.txt", b"--vocab", b"vocab.txt", b"--output_dir", "l\u00e4den".encode() + b"\xe9"]
    environment = clean_environment(LC_ALL=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="")
    for _ in range(2):  # made, and found finished
        done = subprocess.run(
            [sys.executable, "-m", "bert_horovod", "prepare", *words], capture_output=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert b"finished" in done.stdout


def test_bad_lines_are_counted_in_the_manifest_and_warned_about(files, capsys):
    good = '{"body": "A cat. A dog."}\n'
    (files / "a.jsonl").write_text(good * 1200 + "{\n" + '{"body": 3}\n' + good, encoding="utf-8")
    words = ("prepare", "--input", "a.jsonl", "--text_field", "body", "--vocab", "vocab.txt", "--output_dir", "store")
    assert command(*words) == 0
    out = capsys.readouterr().out
    assert "warning: 2 bad lines or rows were passed over; --bad_lines stop names the first" in out
    manifest = json.loads((files / "store" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["passed_over"] == {"lines that are not JSON objects": 1, "lines without text": 1}
    assert manifest["settings"]["text_field"] == "body"
    assert command("inspect", "--data_dir", "store") == 0
    assert "passed over     1 lines that are not JSON objects, 1 lines without text" in capsys.readouterr().out
    assert command(*words, "--bad_lines", "stop") == 2
    assert "bad_lines: None -> stop" in capsys.readouterr().err
    assert command(*words[:-1], "other", "--bad_lines", "stop") == 2
    assert "a.jsonl, line 1201: not JSON" in capsys.readouterr().err


def test_a_document_without_a_full_stop_is_cut_with_a_warning(files, capsys):
    (files / "a.txt").write_text("A cat.\n\n" + "dog " * 30_000, encoding="utf-8")
    assert command("prepare", "--input", "a.txt", "--vocab", "vocab.txt", "--output_dir", "store") == 0
    assert "warning: sentences without an end (. ! ?) within 64 KiB were cut" in capsys.readouterr().out


def test_with_a_recipe_the_row_index_is_made_by_the_workers_and_pretrain_only_opens_it(files, capsys):
    (files / "b.jsonl").write_text("".join(f'{{"text": "A cat {i}. The dog {i}."}}\n' for i in range(300)))
    words = ["prepare", "--input", "b.jsonl", "--vocab", "vocab.txt", "--output_dir", "store", "--held_out", "0.2"]
    recipe = ["--recipe", "quickstart", "--set", "model.vocab_size=79", "--set", "phase.0.sequence_length=32"]
    assert command(*words, "--shard_bytes", "2000", "--workers", "2", *recipe) == 0
    store = open_store("store")
    assert len(store.shards) > 2
    loaded = load_recipe("quickstart", recipe[3::2])
    for split in ("train", "held_out"):
        assert open_rows(store, loaded, 0, split, build=False).count
    assert len(list((files / "store" / "index").iterdir())) == 1


@pytest.mark.parametrize("given", [["--part"], ["--part", "/2"]], ids=" ".join)
def test_a_schedulers_tasks_make_the_parts(files, given, monkeypatch, capsys):
    words = ("prepare", "--input", "a.txt", "--vocab", "vocab.txt", "--output_dir")
    assert command(*words, "whole") == 0
    assert command(*words, "store", *given) == 2  # outside of a job
    for name, value in {"MIN": "1", "MAX": "2", "STEP": "1", "COUNT": "2"}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    for task in (1, 2):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(task))
        monkeypatch.setenv("JOB_COMPLETION_INDEX", str(task - 1))
        assert command(*words, "store", *given) == 0
    assert (files / "store" / "manifest.json").read_bytes() == (files / "whole" / "manifest.json").read_bytes()
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID")
    with pytest.raises(SystemExit):
        command(*words, "more", "--part", "")
    assert "expected a value, found an empty one" in capsys.readouterr().err
