"""README keeps its promises: every command runs, and every figure is a measured or a computed one."""

import dataclasses
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bert_horovod import commands
from bert_horovod.__main__ import dispatch, parse
from bert_horovod.commands.shared.parser import command_names
from bert_horovod.costs.clusters import DeviceSheet, device_of
from bert_horovod.costs.gpus import PRODUCT_SHARE
from bert_horovod.costs.planner import Network, plan_phase
from bert_horovod.recipe_files.loading import load_recipe
from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment

README = (PROJECT / "README.md").read_text(encoding="utf-8")
# What a command of README is run as here: a run is short, hosts are this one, and no file is outside of the test.
SHORT = "--set phase.0.steps=2 --set execution.log_steps=1 --set execution.xla=off --set model.num_hidden_layers=1"
REPLACED = {
    "source .venv/bin/activate": "true",
    "run/quickstart.sh": "run/quickstart.sh --help",
    "--recipe quickstart": f"--recipe quickstart {SHORT}",
    "launch -np 32": "launch -np 2",
    "pretrain --recipe bert-base-2026": f"pretrain --recipe quickstart {SHORT}",
    "/data/store": "store",
    "/shared/run": "shared",
}


def blocks() -> list[list[str]]:
    """The indented blocks of README, without their indentation."""
    found, before = [], ""
    for line in re.sub(r"\\\n +", "", README).splitlines():
        if line.startswith("    "):
            if not before.startswith("    "):
                found.append([])
            found[-1].append(line[4:])
        before = line
    return found


def command_lines() -> list[str]:
    """What a reader types, in its order: in a block with `$` the lines that begin so, else whole blocks of commands."""
    found = []
    for block in blocks():
        typed = [line[2:] for line in block if line.startswith("$ ")]
        if not typed and re.match(r"(source|bert-horovod|run/)\b", block[0]):
            typed = block
        found += [line.partition("  #")[0].strip() for line in typed]
    return found


def test_one_step_is_read_in_as_many_lines_as_it_says():
    listed = re.findall(r"\((bert_horovod/[\w/]+\.py)\) (\d+)", README)
    lines = {name: len((PROJECT / name).read_text(encoding="utf-8").splitlines()) for name, _ in listed}
    assert [name for name, said in listed if abs(int(said) - lines[name]) > 10] == []
    said = int(re.search(r"One optimizer step in ([\d,]+) lines:", README)[1].replace(",", ""))
    assert said == sum(int(length) for _, length in listed)
    assert sum(lines.values()) <= 1650
    assert {f"bert_horovod/training/{name}.py" for name in ("loop", "ahead", "step")} <= set(lines)


def test_every_command_is_named_and_every_line_parses():
    assert [name for name in command_names(commands) if f"`{name.replace('_', '-')}`" not in README] == []
    lines = [line for line in command_lines() if line.startswith("bert-horovod")]
    assert lines
    for line in lines:
        parse(shlex.split(line.partition(" | ")[0]))


def test_figures_of_the_table_are_those_of_the_pages_of_results():
    pages = [PROJECT / "docs" / "results.md", *(PROJECT / "docs" / "results").glob("*.md")]
    measured = set(re.findall(r"[\d.]*\d", "\n".join(page.read_text(encoding="utf-8") for page in pages)))
    rows = [line.split("|")[2:4] for line in README.splitlines() if line.startswith("| BERT")]
    assert len(rows) == 6
    for row in rows:
        for figure in re.findall(r"\d+\.\d+", " ".join(row)):
            assert figure in measured, figure


@pytest.mark.parametrize(("share", "days"), [(PRODUCT_SHARE, "2.5 days"), (0.26, "3.3 days")])
def test_days_of_bert_base_follow_from_the_shares_of_the_peak_that_it_names(share, days):
    recipe = load_recipe("bert-base")
    device = device_of(DeviceSheet("A100"), "--", recipe.numerics.precision, "device")
    device = dataclasses.replace(device, product_share=share)
    computed = sum(plan_phase(recipe, i, 1, device, Network(math.inf)).days for i in range(len(recipe.phase)))
    assert f"{computed:.1f} days" == days
    told = re.search(r"BERT-base as published.*?shape\.", README, re.DOTALL)[0]
    assert days in told
    assert f"{share:.0%}".replace("%", " %") in told


def test_the_plan_prints_what_it_shows(capsys):
    block = next(block for block in blocks() if "bert-horovod plan" in block[0])
    plans = [i for i, line in enumerate(block) if "bert-horovod plan" in line]
    assert len(plans) == 2
    for i in plans:
        assert dispatch(parse(shlex.split(block[i].removeprefix("$ ").partition(" | ")[0]))) == 0
        assert capsys.readouterr().out.endswith(f"{block[i + 1]}\n")


@pytest.mark.full
@pytest.mark.xdist_group("README")
def test_every_command_runs(tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "bert-horovod").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bert_horovod "$@"\n')
    (programs / "bert-horovod").chmod(0o755)
    python = Path(sys.executable).parent
    places = {"cwd": tmp_path, "env": clean_environment(PATH=f"{programs}:{python}:{os.environ['PATH']}")}
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    shutil.copytree(PROJECT / "run", tmp_path / "run")  # where a clone has it

    def run(line: str) -> str:
        words = ["bash", "-o", "pipefail", "-c", line]
        done = subprocess.run(words, **places, capture_output=True, text=True, timeout=PATIENCE_S)
        if not line.startswith("bert-horovod doctor"):  # it may find a fault of this host
            assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    run(f"python {PROJECT}/run/quickstart.py corpus quickstart_output/corpus.jsonl")
    corpus = tmp_path / "quickstart_output" / "corpus.jsonl"
    text = corpus.read_text(encoding="utf-8").splitlines(keepends=True)
    corpus.write_text("".join(text[::5]), encoding="utf-8")  # a fifth is enough
    said = {}
    for line in command_lines():
        replaced = line
        for words, instead in REPLACED.items():
            replaced = replaced.replace(words, instead)
        said[line] = run(replaced)
    by_name = {line.split()[1]: text for line, text in said.items() if line.startswith("bert-horovod")}
    assert "unigram" in by_name["evaluate"]
    assert "%" in by_name["fill-mask"]
    assert "finished" in by_name["status"]
    assert (tmp_path / "shared" / "checkpoints" / "step-00000002" / "config.json").is_file()
