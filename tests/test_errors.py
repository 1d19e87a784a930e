"""docs/failures.md tells the truth.

Each failure of its table is caused, and its class, its exit code and what `launch` makes of that code are compared
with its row.
"""

import argparse
import errno
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from bert_horovod import errors
from bert_horovod.__main__ import dispatch, parse
from bert_horovod.batches.text.index import open_index
from bert_horovod.batches.text.store_dataset import StoreDataset
from bert_horovod.cluster.launching.hostfiles import read_hostfile
from bert_horovod.corpus.manifest import read_manifest
from bert_horovod.corpus.store import verify
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.recipe.settings import Numerics, Phase
from bert_horovod.recipe_files.loading import load_recipe, recipe_from_table
from bert_horovod.runs.checkpoint import path_of
from bert_horovod.runs.directory import Start, claim
from bert_horovod.runs.resuming import load_newest
from bert_horovod.runs.saving import Saver
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.tasks.pretraining import Pretraining
from bert_horovod.training.agreement import described, disagreement
from bert_horovod.training.hooks import divergence, watchdog
from bert_horovod.training.job import pretraining_job
from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment, run_ranks
from tests.rights import few_files, without_rights
from tests.toy_runs import train_recipe
from tests.toys import SMALL_VOCABULARY, prepare, toy_recipe, toy_recipe_table, write_toy_store
from tests.training.faulty_ranks import wrong_device

needs_horovod = pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod")


class Row(NamedTuple):
    """A failure, as the page tells of it."""

    name: str
    error: str  # the class, or "none"
    code: int
    again: bool


def _rows() -> list[Row]:
    text = (PROJECT / "docs" / "failures.md").read_text(encoding="utf-8")
    table = re.search(r"^\| failure \| class, exit code .*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)[1]
    rows = []
    for line in table.splitlines():
        name, kind, again, mends = (cell.strip() for cell in line.strip("|").split("|"))
        error, code = kind.replace("`", "").split(", ")
        assert re.match("(yes|no)\\b", again)
        assert mends
        rows.append(Row(name, error, int(code), again.startswith("yes")))
    return rows


ROWS = _rows()


def _flag(place: Path) -> None:
    arguments = parse(["bert-horovod", "hosts", "--slots", "0"])
    arguments.run(arguments)


def _store(place: Path):
    return write_toy_store(place / "store", vocabulary=SMALL_VOCABULARY)


def _flip(path: Path) -> None:
    """Change a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def _recipe(place: Path) -> None:
    (place / "recipe.toml").write_text("[numerics]\nprecison = 'float32'\n")
    load_recipe(place / "recipe.toml")


def _hostfile(place: Path) -> None:
    (place / "hosts").write_text("node1 slots=many\n")
    read_hostfile(place / "hosts")


def _absent(place: Path) -> None:
    arguments = parse(["bert-horovod", "verify", "--data_dir", str(place / "absent")])
    arguments.run(arguments)


def _second_run(place: Path) -> None:
    held = claim(place / "run", toy_recipe(), "ab" * 32)
    try:
        claim(place / "run", toy_recipe(), "ab" * 32, patience_s=0.1)
    finally:
        os.close(held)


def _another_start(place: Path) -> None:
    one, other = (Start("--checkpoint", f"/models/{number}", str(number) * 64) for number in (1, 2))
    os.close(claim(place / "run", toy_recipe(), "ab" * 32, start=one))
    claim(place / "run", toy_recipe(), "ab" * 32, start=other)


def _divergence(place: Path) -> None:
    progress = Progress(step=40, updates=40, mean_loss=4.0, jumped_in_a_row=9)
    divergence.check(progress, Numerics(), Phase(), loss=40.0, finite=True, loss_scale=1.0)


def _checkpoint_not_written(place: Path) -> None:
    (place / "run").mkdir()
    (place / "run" / "checkpoints").touch()  # a file, where a directory should be
    recipe = recipe_from_table(toy_recipe_table())
    state = TrainingState({"a": np.zeros(2, np.float32)}, {"m": {"a": (2,)}, "v": {"a": (2,)}}, Progress(step=1))
    task, dataset = Pretraining(recipe.objective.pairs), StoreDataset(_store(place), recipe)
    saver = Saver(state, place / "run", recipe, task, dataset, print)
    saver.save(state, {})
    saver.finish(lambda: None, must_end=lambda: True)


def _full_disk(place: Path) -> None:
    Path("/dev/full").write_text("much")


def _token_store(place: Path) -> None:
    store = _store(place)
    _flip(store.path / "shard-00001.safetensors")
    arguments = parse(["bert-horovod", "verify", "--data_dir", str(store.path)])
    arguments.run(arguments)


def _denied(place: Path) -> None:
    store = _store(place)
    with without_rights(store.path / "manifest.json"):
        verify(store.path)


def _too_many(place: Path) -> None:
    store = _store(place)
    with few_files():
        read_manifest(store.path)


def _disk(place: Path) -> None:
    with open("/proc/self/mem", "rb") as file:  # whose first page cannot be read
        file.read(1)


def _other_work(place: Path) -> None:
    job = pretraining_job(toy_recipe(), _store(place), place / "run")
    other = pretraining_job(toy_recipe(phase={"global_batch": 16}), job.dataset.store, place / "run")
    raise errors.UserError(disagreement([("node1", described([job])), ("node2", described([other]))]))


def _row_index(place: Path) -> None:
    store = _store(place)
    _flip(open_index(store, 32, "none", True).path / "train" / "classes.npy")
    open_index(store, 32, "none", True)


def _checkpoints(place: Path) -> None:
    path_of(place, 5).mkdir(parents=True)
    load_newest(place, Pretraining(pairs=True))


def _pretrained(place: Path) -> None:
    (place / "config.json").write_text('{"model_type": ')
    read_directory(place)


def _input(place: Path) -> None:
    (place / "vocab.txt").write_text("\n".join(SMALL_VOCABULARY))
    (place / "a.txt.gz").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\0 no such thing")
    prepare([str(place / "a.txt.gz")], place / "vocab.txt", place / "store", workers=1)


def _wrong_device(place: Path) -> None:
    store = write_toy_store(place / "store", held_out=0.1, vocabulary=SMALL_VOCABULARY)
    with wrong_device("tile", 2, 2):
        train_recipe(toy_recipe(phase={"steps": 2}, execution={"replay_steps": 2}), store, place / "run")


CAUSES: dict[str, Callable[[Path], None]] = {
    "a wrong flag": _flag,
    "a wrong recipe": _recipe,
    "a wrong hostfile": _hostfile,
    "a directory that is not there": _absent,
    "a second run on the same": _second_run,
    "a run is resumed with another": _another_start,
    "the run diverges": _divergence,
    "no checkpoint could be written": _checkpoint_not_written,
    "the disk is full where something else": _full_disk,
    "the token store is damaged": _token_store,
    "a row index is damaged": _row_index,
    "this user may not read": _denied,
    "more files are open": _too_many,
    "a disk or a network fails": _disk,
    "ranks are to do different work": _other_work,
    "all checkpoints are damaged": _checkpoints,
    "a Hugging Face directory is damaged": _pretrained,
    "an input of `prepare` is damaged": _input,
    "a device computes wrongly": _wrong_device,
}
RANKS = {"a bit flips on one rank": "bit", "a rank was stopped for minutes": "lost"}
PROCESSES = {"a mapped file is cut short": 128 + signal.SIGBUS, "a rank is killed": 128 + 9}
PROCESSES |= {"a rank hangs": watchdog.EXIT_CODE, "a fault of the program": 1}


def row(beginning: str) -> Row:
    """The one row whose failure begins so."""
    (documented,) = [entry for entry in ROWS if entry.name.startswith(beginning)]
    return documented


def test_each_failure_of_the_page_is_caused_here():
    causes = [*CAUSES, *RANKS, *PROCESSES]
    assert sorted(row(beginning) for beginning in causes) == sorted(ROWS)


@pytest.mark.parametrize(
    "failure", [pytest.param(each, marks=[pytest.mark.full] * (CAUSES[each] is _wrong_device)) for each in CAUSES]
)
def test_a_failure_ends_the_command_as_the_page_says(failure, tmp_path, capsys):
    raised: list[BaseException] = []

    def command(arguments: argparse.Namespace) -> None:
        try:
            CAUSES[failure](tmp_path)
        except Exception as error:
            raised.append(error)
            raise

    code = dispatch(argparse.Namespace(run=command))
    assert code == row(failure).code
    assert isinstance(raised[0], OSError if row(failure).error == "OSError" else getattr(errors, row(failure).error))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bert-horovod: error: ")]
    assert "Traceback" not in line


TWO_RANKS = """
import argparse, os, sys
import numpy as np, tensorflow as tf
from bert_horovod.__main__ import dispatch
from bert_horovod.collectives.launched import launch
from bert_horovod.collectives.starting import connect
from bert_horovod.commands.shared import ranks
from bert_horovod.runs.state import Progress, TrainingState
from bert_horovod.training.agreement import described, disagreement
from bert_horovod.training.job import pretraining_job
from bert_horovod.training.hooks.consistency import Consistency

def compare(arguments):
    state = TrainingState({"a": np.float32([1, 1 + world.rank * 2**-23])}, {}, Progress())
    Consistency(state, world).check(8)

def outlive(*arguments):
    if world.rank == 1:
        os._exit(0)
    world.all_reduce(tf.constant(1.0), "one")

def say(name, command):
    def tell(arguments):
        try:
            command(arguments)
        except Exception as error:
            print(f"{name}: {type(error).__name__}, ", end="")
            raise
    code = dispatch(argparse.Namespace(run=tell))
    if world.rank == 0:
        print(code, flush=True)

world = connect(launch())
say("bit", compare)
ranks._look, ranks._train, ranks._PATIENCE_S = lambda arguments, rank: None, outlive, 0
say("lost", lambda arguments: ranks.train_as_rank(arguments, None))
os._exit(0)
"""


@pytest.mark.full
@needs_horovod
def test_failures_of_several_ranks_end_them_as_the_page_says():
    done = run_ranks(2, TWO_RANKS)
    for failure, name in RANKS.items():
        assert f"{name}: {row(failure).error}, {row(failure).code}" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("failure", PROCESSES)
def test_what_no_exception_ends_has_the_code_of_the_page(failure):
    assert (row(failure).error, row(failure).code) == ("none", PROCESSES[failure])


DECISION = """
import sys
from bert_horovod.cluster.launching.launcher import LaunchPlan, run_ranks
outcome = run_ranks(LaunchPlan(1, {"localhost": 1}, ["hosts"], None), "test")
print("outcome", outcome.code, outcome.again)
"""


@pytest.mark.full
@needs_horovod
@pytest.mark.parametrize("code", sorted({entry.code for entry in ROWS}))
def test_the_launcher_decides_by_the_code_as_the_page_says(code, tmp_path):
    (again,) = {entry.again for entry in ROWS if entry.code == code}
    end = f"os._exit({code})" if code < 128 else f"os.kill(os.getpid(), {code - 128})"
    (tmp_path / "sitecustomize.py").write_text(f"import os\nif 'HOROVOD_RANK' in os.environ: {end}\n")
    done = subprocess.run(
        [sys.executable, "-c", DECISION],
        capture_output=True,
        text=True,
        env=clean_environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(PROJECT)])),
        timeout=PATIENCE_S,
        check=False,
    )
    assert f"outcome {code if code in (2, 4) else 1} {again}" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
def test_a_disk_that_fails_is_not_the_users_mistake(number):
    assert type(errors.file_error(OSError(number, "no"), "text")) is errors.RunError


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.EROFS, None])
def test_a_path_that_is_wrong_is(number):
    error = errors.file_error(OSError(number, "no"), "text")
    assert (type(error), str(error)) == (errors.UserError, "text")
