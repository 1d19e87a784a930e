"""Ranks with different devices: refused, or warned of with what it costs.

Ranks that are to do different work are told so at the start, with rank, host, key and both values.
"""

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.directory import claim, give_up
from bert_horovod.training import agreement
from bert_horovod.training.agreement import (
    OF_A_HOST,
    check_kinds,
    described,
    device_kind,
    disagreement,
)
from bert_horovod.training.job import Job, pretraining_job
from tests.horovod_runs import PATIENCE_S, clean_environment, kill_tree, run_ranks
from tests.toy_runs import pretrain_arguments
from tests.toys import toy_recipe

A100, V100 = "NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB"
HOSTS = ["node1", "node1", "node2", "node2"]


class Gathered(World):
    """A world of two whose other rank has another device."""

    def __init__(self, rank: int, kind: str | None) -> None:
        self.rank, self.size, self._kind = rank, 2, kind

    def gather(self, values: list, *_: object) -> list:
        [[_, work, mine]] = values
        return [["node1", work, mine], ["node2", work, self._kind]]


@pytest.mark.parametrize("kind", [A100, None])
def test_equal_devices_are_nothing_to_say(kind):
    assert check_kinds(HOSTS, [kind] * 4, "bfloat16") is None


def test_ranks_without_a_gpu_among_others_are_refused_by_number_and_host():
    with pytest.raises(UserError, match=r"rank\(s\) 1-2 on node1, node2 found no GPU, the other ranks have one"):
        check_kinds(HOSTS, [A100, None, None, A100], "bfloat16")


def test_several_kinds_are_named_with_what_waiting_costs():
    warning = check_kinds(HOSTS, [A100, A100, V100, A100], "float16")
    assert f"rank(s) 0-1, 3: {A100}; rank(s) 2: {V100}" in warning
    lost = 1 - 4 * 125 / (3 * 312 + 125)  # data sheets' TFLOP/s; all wait for the V100
    assert f"{lost:.0%} of their data sheets' rates are lost by waiting" in warning


def test_the_cost_is_left_out_where_a_data_sheet_is_unknown():
    assert check_kinds(HOSTS, [A100, A100, "Tesla P100", A100], "float16").endswith("the slowest sets the pace")


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_warns_of_several_kinds(store, monkeypatch, capsys, rank):
    monkeypatch.setattr(agreement, "device_kind", lambda: A100)
    world = Gathered(rank, V100)
    monkeypatch.setattr(agreement, "from_all_ranks", world.gather)
    agreement.require_agreement([pretraining_job(toy_recipe(), store, store.path / "run")], world)
    assert ("GPUs of several kinds" in capsys.readouterr().err) == (rank == 0)


def test_a_rank_on_a_cpu_has_no_kind():
    assert device_kind() is None


END = "Every host needs the same recipe, flags, program and packages; bring that host up to date"


def job(store, recipe: Recipe | None = None, **options) -> Job:
    return pretraining_job(recipe or toy_recipe(), store, options.pop("output_dir", store.path / "run"), **options)


def said(first: list[Job], second: list[Job]) -> str | None:
    """What is said of two hosts with these jobs, as it arrives."""
    return disagreement(json.loads(json.dumps([("node1", described(first)), ("node2", described(second))])))


def test_equal_ranks_agree_also_where_a_host_has_its_own_threads(store):
    assert said([job(store)], [job(store)]) is None
    execution = toy_recipe().execution
    own = dataclasses.replace(execution, threads=7, stall_s=3.0, keep_checkpoints=9, trackers=("wandb",))
    assert said([job(store)], [job(store, dataclasses.replace(toy_recipe(), execution=own))]) is None


@pytest.mark.parametrize(
    ("sections", "difference"),
    [
        ({"phase": {"global_batch": 16}}, "phase.0.global_batch = 16, rank 0 has 32"),
        ({"objective": {"masked_fraction": 0.2}}, "objective.masked_fraction = 0.2, rank 0 has 0.15"),
        ({"phase": {"learning_rate": 0.5}}, "phase.0.learning_rate = 0.5, rank 0 has "),
        ({"execution": {"bucket_bytes": 1000}}, "execution.bucket_bytes = 1000, rank 0 has "),
        ({"execution": {"evaluate_steps": 3}}, "execution.evaluate_steps = 3, rank 0 has "),
    ],
)
def test_another_recipe_is_named_by_rank_host_key_and_values(store, sections, difference):
    message = said([job(store)], [job(store, toy_recipe(**sections))])
    assert message.startswith(f"rank 1 on node2 differs from rank 0 on node1: {difference}")
    assert message.endswith(END)


def test_every_setting_of_execution_is_compared_but_those_of_a_host(store):
    compared = {key.removeprefix("execution.") for key in described([job(store)]) if key.startswith("execution.")}
    settings = {field.name for field in dataclasses.fields(toy_recipe().execution)}
    assert compared == settings - set(OF_A_HOST)
    assert set(OF_A_HOST) < settings


def test_other_flags_other_programs_and_other_runs_are_named(store, monkeypatch):
    assert "--max_steps = 5, rank 0 has None" in said([job(store)], [job(store, max_steps=5)])
    assert "runs = 2, rank 0 has 1" in said([job(store)], [job(store), job(store)])
    description = described([job(store)])
    for name in ("program", "Python", "tensorflow", "numpy", "horovod"):
        assert description[name]
        other_description = description | {name: "another"}
        assert f"{name} = 'another', rank 0 has {description[name]!r}" in disagreement(
            [("a", description), ("b", description), ("c", other_description)]
        )


def test_many_ranks_and_many_keys_are_a_short_message():
    everyone = [("a", dict.fromkeys("abcdefgh", 1))] + [("b", dict.fromkeys("abcdefgh", 2))] * 3
    message = disagreement(everyone)
    assert "a = 2, rank 0 has 1; b = 2, rank 0 has 1; " in message
    assert "; and 3 more. So do ranks [2, 3]. " in message


def test_a_run_that_could_not_begin_leaves_the_directory_to_another_recipe(tmp_path, store):
    claim(tmp_path / "run", toy_recipe(), store.hash, 0)
    give_up(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    (tmp_path / "old" / "checkpoints").mkdir(parents=True)
    (tmp_path / "old" / "run.json").touch()
    give_up(tmp_path / "old")
    assert (tmp_path / "old" / "run.json").exists()


PROGRAM = """
import os, sys
from bert_horovod.__main__ import dispatch, parse
own = ["--set", "SETTING"] if os.environ["HOROVOD_RANK"] == "1" else []
sys.exit(dispatch(parse(["bert-horovod", "pretrain", *sys.argv[1:], *own])))
"""


@pytest.mark.slow
def test_a_stale_recipe_on_one_host_ends_the_run_with_one_message(tmp_path, store):
    done = run_ranks(
        2, PROGRAM.replace("SETTING", "phase.0.global_batch=16"), *pretrain_arguments(tmp_path, store, tmp_path / "run")
    )
    errors = [line for line in (done.stdout + done.stderr).splitlines() if "bert-horovod: error:" in line]
    assert len(errors) == 1, done.stdout + done.stderr
    assert "phase.0.global_batch = 16, rank 0 has 32" in errors[0]
    assert "Process 0 exit with status code 2" in done.stdout + done.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


@pytest.mark.slow
def test_ranks_that_horovod_cannot_join_because_recipes_differ_are_told_which_key(tmp_path, store):
    pytest.importorskip("horovod")
    (tmp_path / "rank.py").write_text(PROGRAM.replace("SETTING", "numerics.wire=int8"))
    run = "from bert_horovod.collectives.horovodrun import main; main()"
    hosts = ["--gloo", "-np", "4", "-H", "localhost:2,127.0.0.1:2"]  # two hosts of two ranks each, for Horovod
    arguments = pretrain_arguments(tmp_path, store, tmp_path / "run")
    with (
        open(tmp_path / "said", "w+") as log,
        subprocess.Popen(
            [sys.executable, "-c", run, *hosts, sys.executable, str(tmp_path / "rank.py"), *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=clean_environment(),
            start_new_session=True,
        ) as process,
    ):
        try:
            end = time.monotonic() + PATIENCE_S
            while "Process 1 exit with status code 2" not in (text := Path(log.name).read_text()):
                assert time.monotonic() < end, text
                time.sleep(0.2)
        finally:
            kill_tree(process.pid)
    assert "rank 1 on" in text
    assert "numerics.wire = 'int8', rank 0 has 'float32'" in text
