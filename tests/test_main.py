"""The command line: what every command takes, and how it says no."""

import argparse
import errno
import importlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bert_horovod import commands
from bert_horovod.__main__ import dispatch, parse
from bert_horovod.commands import bench
from bert_horovod.commands.shared.parser import command_names
from bert_horovod.errors import DamagedData, RunError, UserError, file_error
from tests.golden import flags
from tests.horovod_runs import PATIENCE_S, clean_environment, run_command, run_python

FLAGS = flags.promised()


def test_commands_and_flags_are_those_that_were_promised():
    assert flags.present() == FLAGS, "added on purpose? python -m tests.golden.flags --renew"


def test_without_a_directory_for_temporary_files_the_message_names_those_that_were_tried(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.txt").write_text("A cat.")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    command = ["vocab", "--input", str(tmp_path / "a.txt"), "--output", str(tmp_path / "vocab.txt")]
    assert dispatch(parse(["bert-horovod", *command])) == 2
    message = capsys.readouterr().err
    assert "no temporary file can be made: no usable temporary directory found in ['/proc']" in message
    assert "export TMPDIR=DIR" in message
    assert str(file_error(FileNotFoundError(2, "No usable temporary directory found"), "cannot write store")) in (
        "no temporary file can be made: no usable temporary directory found; make one of them writable, with room, or "
        "name another directory: export TMPDIR=DIR"
    )


def test_help_of_the_program_and_of_every_command_imports_no_tensorflow():
    done = run_python(
        "-c",
        "import sys\n"
        "from bert_horovod import commands\n"
        "from bert_horovod.__main__ import parse\n"
        "from bert_horovod.commands import bench\n"
        "from bert_horovod.commands.shared.parser import command_names\n"
        "for command in ['', *command_names(commands), *('bench ' + name for name in command_names(bench))]:\n"
        "    try:\n"
        "        parse(['bert-horovod', *command.replace('_', '-').split(), '--help'])\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0, command\n"
        "    heavy = {'tensorflow', 'horovod', 'torch', 'transformers'} & set(sys.modules)\n"
        "    assert not heavy, (command, heavy)\n",
    )
    assert done.returncode == 0, done.stderr
    for command, names in FLAGS.items():
        assert f"usage: bert-horovod {command} " in done.stdout
        assert all(name in done.stdout for name in names)


def test_files_that_help_names_exist(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    project = Path(__file__).resolve().parents[1]
    for command in FLAGS:
        module = flags.module_of(command)
        parser = argparse.ArgumentParser(description=module.__doc__)
        module.add_arguments(parser)
        named = re.findall(r"\b(?:run|docs)/[\w./-]*[\w/]", f"{module.__doc__} {parser.format_help()}")
        assert not [path for path in named if not (project / path).exists()]


@pytest.mark.parametrize(
    ("command", "more", "dest"),
    [("inspect", (), "data_dir"), ("verify", (), "data_dir"), ("evaluate", ("--data_dir", "d"), "checkpoint")],
)
def test_a_path_is_named_alone_or_after_its_flag(command, more, dest):
    for words in (("x",), (f"--{dest}", "x")):
        assert getattr(parse(["bert-horovod", command, *more, *words]), dest) in (Path("x"), [Path("x")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretrian"], "invalid choice: 'pretrian'; did you mean pretrain? expected one of vocab, "),
        (["train"], "did you mean pretrain?"),
        (["tokenize"], "did you mean prepare?"),
        (["zzz"], "invalid choice: 'zzz'; expected one of"),
        (["verify", "--data-dir", "x"], "unrecognized arguments: --data-dir; --data-dir: did you mean --data_dir?"),
        (["verify", "--data_dir", "x", "--dat", "y"], "not allowed with argument --data_dir; --dat: did you mean"),
        (["verify", "--data_dir", ""], "--data_dir: expected a value, found an empty one: is a variable not set?"),
        (["bench", "stp"], "did you mean step?"),
        (["bench", "step", "--wram_up", "8"], "--wram_up: did you mean --warm_up?"),
        (["inspect", "--data_dir", "x", "--split", "heldout"], "did you mean held_out?"),
        ([], "required: COMMAND"),
        (["verify"], "one of the arguments STORE --data_dir is required"),
        (["verify", "x", "--data_dir", "y"], "--data_dir: not allowed with argument STORE"),
        (["evaluate", "--data_dir", "x"], "one of the arguments RUN --checkpoint is required"),
    ],
)
def test_a_command_line_that_cannot_be_read_exits_with_2_and_says_why(capsys, arguments, message):
    with pytest.raises(SystemExit) as end:
        parse(["bert-horovod", *arguments])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


PACKAGES = {"": commands, "bench ": bench}
COMMANDS = [(before, name) for before, package in PACKAGES.items() for name in command_names(package)]


@pytest.mark.parametrize(
    ("before", "name"), [words for words in COMMANDS if words != ("", "bench")], ids=lambda word: word.strip()
)
def test_the_help_of_a_command_has_an_example_that_can_be_typed(before, name):
    help_text = importlib.import_module(f"{PACKAGES[before].__name__}.{name}").__doc__
    help_text = re.sub(r"\n {17}(?=--)", " ", help_text)  # a long command goes on below
    typed = re.compile(r"^(?:[A-Z][\w ]*:\s+|echo .* \| |horovodrun .* )?(bert-horovod .*?)(?:\s{2,}.*| && .*| > .*)?$")
    examples = [found[1] for line in help_text.splitlines() if (found := typed.match(line))]
    whole = [example for example in examples if "..." not in example]
    for example in whole:
        parse(shlex.split(example))
    assert any(example.startswith(f"bert-horovod {before}{name.replace('_', '-')}") for example in whole)


def raiser(error: BaseException) -> argparse.Namespace:
    def fail(arguments: argparse.Namespace) -> int:
        raise error

    return argparse.Namespace(run=fail)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UserError("no such thing; make one"), 2, "no such thing; make one"),
        (RunError("a bit flipped; look at that host"), 1, "a bit flipped; look at that host"),
        (DamagedData("a bit flipped; look at that host"), 1, "a bit flipped; look at that host"),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metrics.jsonl"),
            1,
            "no room on the disk for metrics.jsonl: No space left on device; make room and run the same command again",
        ),
        (
            OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), "text " * 80),
            2,
            f"no such file: the name {'text ' * 12!r}... is too long for one",
        ),
    ],
)
def test_an_error_is_one_message_and_exit_code_2_where_it_is_the_users_mistake(capsys, error, code, words):
    assert dispatch(raiser(error)) == code
    assert capsys.readouterr() == ("", f"bert-horovod: error: {words}\n")


def test_an_interrupt_exits_as_shells_expect_and_a_fault_of_the_program_is_not_hidden(capsys):
    assert dispatch(raiser(KeyboardInterrupt())) == 130
    assert "Traceback" not in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        dispatch(raiser(ZeroDivisionError()))


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (3, 3)])
def test_a_commands_result_is_the_exit_code(returned, code):
    assert dispatch(argparse.Namespace(run=lambda arguments: returned)) == code


@pytest.mark.full
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_no_fault(tmp_path, closed):
    command = f"exec {sys.executable} -m bert_horovod recipes {closed}"
    environment = clean_environment()
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ("quickstart" in ended.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_a_users_mistake_in_a_real_process_is_one_line_without_a_traceback(tmp_path):
    done = run_command("verify", "--data_dir", tmp_path / "absent")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("bert-horovod: error: ")
    assert str(tmp_path / "absent") in done.stderr
    assert done.stderr.count("\n") == 1
