"""The command line: what every command takes, and how it says no."""

import argparse
import errno
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bert_horovod import commands
from bert_horovod.__main__ import dispatch, parse
from bert_horovod.commands import bench
from bert_horovod.commands.shared.parser import command_names
from bert_horovod.errors import DamagedData, RunError, UserError
from tests.horovod_runs import PATIENCE_S, clean_environment

REQUIRED = object()
# What benchmarks of the step share.
STEP = {"--recipe": None, "--model": None, "--set": [], "--rows": None, "--length": None, "--steps": 10}

# Other people's scripts depend on these: flags are added here, never renamed or taken away.
FLAGS = {
    "bench": {"BENCHMARK": REQUIRED},
    "bench comm": {**STEP, "--trace": None, "--delay": None, "--warm_up": 1, "--json": False},
    "bench compute": {**STEP, "--profile": None, "--json": False},
    "bench memory": {"--recipe": REQUIRED, "--limit": REQUIRED, "--world_size": 1, "--set": [], "--json": False},
    "bench scaling": {
        **STEP,
        "-hostfile": None,
        "-H": None,
        "--ssh_port": None,
        "--network_interfaces": None,
        "--mpi": False,
        "--layout": None,
        "--micro_batches": None,
        "--rounds": 1,
        "--cluster": None,
        "--output": None,
        "--json": False,
    },
    "bench throughput": {
        "--recipe": REQUIRED,
        "--data_dir": REQUIRED,
        "--index_dir": None,
        "--tuned": None,
        "--set": [],
        "--phase": 0,
        "--seconds": 10.0,
        "--give_up_above": None,
        "--memory": None,
        "--json": False,
    },
    "doctor": {
        "-hostfile": None,
        "-H": None,
        "--network_interfaces": None,
        "--ssh_port": None,
        "--expect_gbit": None,
        "--output_dir": None,
        "--json": False,
    },
    "evaluate": {
        "--checkpoint": REQUIRED,
        "--data_dir": REQUIRED,
        "--sequence_length": None,
        "--rows": 1024,
        "--micro_batch": 32,
        "--index_dir": None,
        "--json": False,
    },
    "export": {
        "--checkpoint": REQUIRED,
        "--format": REQUIRED,
        "--output": REQUIRED,
        "--architecture": None,
        "--with_tokenizer": False,
    },
    "fill-mask": {"--checkpoint": REQUIRED, "--top": 5, "TEXT": REQUIRED},
    "finetune": {
        "--task": REQUIRED,
        "--data_dir": None,
        "--train_file": None,
        "--dev_file": [],
        "--test_file": [],
        "--text_columns": "text",
        "--label_column": "label",
        "--checkpoint": REQUIRED,
        "--epochs": None,
        "--seeds": None,
        "--learning_rates": None,
        "--output_dir": REQUIRED,
        "--max_steps": None,
        "--stop_before": None,
        "--tuned": None,
        "--set": [],
        "--doc_stride": None,
        "--null_score_threshold": None,
        "--index_dir": None,
    },
    "hosts": {"--slots": None, "--output": None},
    "import": {"CHECKPOINT": REQUIRED, "DIR": REQUIRED, "--cased": None, "--uncased": None},
    "inspect": {
        "--data_dir": REQUIRED,
        "--row": None,
        "--rows": 1,
        "--epoch": 0,
        "--split": "train",
        "--recipe": None,
        "--phase": 0,
        "--sequence_length": None,
        "--set": [],
        "--index_dir": None,
    },
    "launch": {
        "-np": None,
        "-hostfile": None,
        "-H": None,
        "--network_interfaces": None,
        "--ssh_port": None,
        "--mpi": False,
        "--restarts": 0,
        "--env": [],
        "-- COMMAND ...": REQUIRED,
    },
    "plan": {
        "--recipe": REQUIRED,
        "--set": [],
        "--cluster": None,
        "--compute": None,
        "--world_size": None,
        "--device": None,
        "--tflops": None,
        "--product_share": 0.35,
        "--memory": None,
        "--memory_rate": None,
        "--link": None,
        "--link_share": 0.9,
        "--latency_ms": 0.05,
        "--efficiency": 0.8,
        "--plot": None,
        "--json": False,
    },
    "predict": {
        "--checkpoint": REQUIRED,
        "--input": REQUIRED,
        "--output": None,
        "--text_columns": None,
        "--sequence_length": None,
        "--doc_stride": None,
        "--null_score_threshold": None,
    },
    "prepare": {
        "--input": REQUIRED,
        "--text_field": "text",
        "--bad_lines": None,
        "--cased": False,
        "--documents": "file",
        "--vocab": REQUIRED,
        "--output_dir": REQUIRED,
        "--held_out": 0.01,
        "--shard_bytes": 32 << 20,
        "--workers": None,
    },
    "pretrain": {
        "--recipe": REQUIRED,
        "--data_dir": REQUIRED,
        "--output_dir": REQUIRED,
        "--init_checkpoint": None,
        "--index_dir": None,
        "--probe_dir": None,
        "--max_steps": None,
        "--stop_before": None,
        "--tuned": None,
        "--set": [],
    },
    "probe": {"RUN": REQUIRED, "--task": REQUIRED, "--data_dir": REQUIRED, "--output_dir": None, "--set": []},
    "recipes": {"NAME": None, "--device": "A100", "--json": False},
    "report": {
        "RUN": REQUIRED,
        "--output": None,
        "--cluster": None,
        "--scaling": None,
        "--watch": False,
        "--port": 0,
    },
    "resume": {"RUN": REQUIRED},
    "score": {
        "--task": REQUIRED,
        "--predictions": REQUIRED,
        "--data_dir": None,
        "--dev_file": None,
        "--null_odds": None,
        "--threshold": None,
    },
    "status": {"RUN": REQUIRED, "--json": False},
    "tune": {
        "--recipe": REQUIRED,
        "--data_dir": REQUIRED,
        "--index_dir": None,
        "-np": None,
        "-hostfile": None,
        "-H": None,
        "--ssh_port": None,
        "--set": [],
        "--output": None,
        "--phase": None,
        "--memory": None,
        "--seconds": 5.0,
        "--limit": 600.0,
        "--afresh": False,
        "--json": False,
    },
    "verify": {"--data_dir": REQUIRED},
    "vocab": {
        "--input": REQUIRED,
        "--text_field": "text",
        "--bad_lines": None,
        "--cased": False,
        "--documents": "file",
        "--size": 30522,
        "--output": REQUIRED,
    },
}


def module_of(command: str):
    path = command.replace("bench ", "bench.").replace("-", "_")
    return importlib.import_module(f"bert_horovod.commands.{path}")


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=clean_environment(),
    )


def test_the_commands_are_those_that_were_promised():
    names = [*command_names(commands), *(f"bench {name}" for name in command_names(bench))]
    assert {name.replace("_", "-") for name in names} == set(FLAGS)


@pytest.mark.parametrize("command", FLAGS)
def test_a_command_takes_the_flags_that_were_promised(command):
    parser = argparse.ArgumentParser(add_help=False)
    module_of(command).add_arguments(parser)
    flags = {
        (action.option_strings or [action.metavar or action.dest])[0]: REQUIRED if action.required else action.default
        for action in parser._actions
    }
    assert flags == FLAGS[command]


def test_help_of_the_program_and_of_every_command_imports_no_tensorflow():
    done = run(
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
    for command, flags in FLAGS.items():
        assert f"usage: bert-horovod {command} " in done.stdout
        assert all(flag in done.stdout for flag in flags)


def test_files_that_help_names_exist(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    project = Path(__file__).resolve().parents[1]
    for command in FLAGS:
        module = module_of(command)
        parser = argparse.ArgumentParser(description=module.__doc__)
        module.add_arguments(parser)
        named = re.findall(r"\b(?:run|docs)/[\w./-]*[\w/]", f"{module.__doc__} {parser.format_help()}")
        assert not [path for path in named if not (project / path).exists()]


def test_help_names_every_command_with_its_purpose():
    done = run("-m", "bert_horovod", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for command in FLAGS:
        if " " in command:  # in the help of the command that it is part of
            continue
        assert command in done.stdout
        assert module_of(command).__doc__.strip().splitlines()[0].split()[0] in done.stdout


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as end:
        parse(["bert-horovod", "--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.strip() == importlib.import_module("bert_horovod").__version__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretrian"], "invalid choice: 'pretrian'; did you mean pretrain? expected one of bench, "),
        (["train"], "did you mean pretrain?"),
        (["tokenize"], "did you mean prepare?"),
        (["zzz"], "invalid choice: 'zzz'; expected one of"),
        (["verify", "--data-dir", "x"], "required: --data_dir; --data-dir: did you mean --data_dir?"),
        (["verify", "--data", "x"], "--data: did you mean --data_dir?"),
        (
            ["verify", "--data_dir", "x", "--dat", "y"],
            "unrecognized arguments: --dat y; --dat: did you mean --data_dir?",
        ),
        (["verify", "--data_dir", ""], "--data_dir: expected a value, found an empty one: is a variable not set?"),
        (["verify", "--data_dir="], "--data_dir: expected a value, found an empty one"),
        (["bench", "compte"], "did you mean compute?"),
        (["bench", "compute", "--lenght", "8"], "--lenght: did you mean --length?"),
        (["inspect", "--data_dir", "x", "--split", "heldout"], "did you mean held_out?"),
        ([], "required: COMMAND"),
        (["verify"], "required: --data_dir"),
        (["verify", "--data_dir", "x", "--nonsense"], "unrecognized arguments: --nonsense"),
        (
            ["pretrain", "--recipe", "r", "--data_dir", "d", "--output_dir", "o", "--max_steps", "many"],
            "invalid int value",
        ),
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


def test_a_users_mistake_is_one_message_and_exit_code_2(capsys):
    assert dispatch(raiser(UserError("no such thing; make one"))) == 2
    assert capsys.readouterr() == ("", "bert-horovod: error: no such thing; make one\n")


@pytest.mark.parametrize("kind", [RunError, DamagedData])
def test_what_fails_by_no_fault_of_the_user_is_one_message_and_exit_code_1(capsys, kind):
    assert dispatch(raiser(kind("a bit flipped; look at that host"))) == 1
    assert capsys.readouterr() == ("", "bert-horovod: error: a bit flipped; look at that host\n")


def test_a_full_disk_is_one_message_and_exit_code_1(capsys):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metrics.jsonl")
    assert dispatch(raiser(error)) == 1
    assert capsys.readouterr().err == (
        "bert-horovod: error: no room on the disk for metrics.jsonl: No space left on device; make room and run the "
        "same command again\n"
    )


def test_an_interrupt_exits_as_shells_expect(capsys):
    assert dispatch(raiser(KeyboardInterrupt())) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_fault_of_the_program_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        dispatch(raiser(ZeroDivisionError()))


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (3, 3)])
def test_a_commands_result_is_the_exit_code(returned, code):
    assert dispatch(argparse.Namespace(run=lambda arguments: returned)) == code


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_no_fault(tmp_path, closed):
    command = f"exec {sys.executable} -m bert_horovod recipes {closed}"
    environment = clean_environment()
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ("quickstart" in ended.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_a_users_mistake_in_a_real_process_is_one_line_without_a_traceback(tmp_path):
    done = run("-m", "bert_horovod", "verify", "--data_dir", str(tmp_path / "absent"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("bert-horovod: error: ")
    assert str(tmp_path / "absent") in done.stderr
    assert done.stderr.count("\n") == 1
