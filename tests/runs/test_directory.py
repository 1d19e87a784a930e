"""The output directory: whose it is, and who may write to it."""

import dataclasses
import errno
import fcntl
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from bert_horovod.errors import DamagedData, RunError, UserError
from bert_horovod.recipe_files.loading import load_recipe, recipe_to_toml
from bert_horovod.runs.directory import Start, began_with, claim, refuse_other_things, stop_requested
from bert_horovod.storage.writing import lock, write_atomically
from tests.cluster.launches import LAUNCH, QUICK, launched
from tests.horovod_runs import run_python
from tests.toy_runs import pretrain_arguments
from tests.toys import toy_recipe

RECIPE = toy_recipe()
STORE = "ab" * 32
FRESH = Start()
NESTED = '{"format": 1, "store": ' + "[" * 100 + "]" * 100 + "}"
CLAIM = """
import sys
from pathlib import Path
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.storage.writing import write_atomically
from bert_horovod.errors import UserError
from bert_horovod.runs.directory import claim
directory = Path(sys.argv[1])
try:
    claim(directory, load_recipe(directory / "recipe.toml"), "ab" * 32, patience_s=0.1)
except UserError as error:
    sys.exit(print(error) or 2)
"""


def claim_and_leave(directory, recipe=RECIPE, store=STORE, start=FRESH) -> None:
    os.close(claim(directory, recipe, store, 0.1, start))


def refusal(directory, recipe=RECIPE, store=STORE, start=FRESH, error: type[Exception] = UserError) -> str:
    """Why the directory is refused; it stays as it was."""
    before = contents(directory)
    with pytest.raises(error) as caught:
        claim_and_leave(directory, recipe, store, start)
    assert contents(directory) == before
    assert str(directory) in str(caught.value)
    return str(caught.value)


def contents(directory) -> dict[str, bytes | None]:
    return {path.name: path.read_bytes() if path.is_file() else None for path in directory.glob("*")}


@pytest.fixture
def earlier(tmp_path):
    """The directory of an earlier run that is over."""
    claim_and_leave(tmp_path / "run")
    (tmp_path / "run" / "checkpoints").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    return tmp_path / "run"


def test_a_new_directory_is_made_with_recipe_and_run(tmp_path):
    directory = tmp_path / "deep" / "run"
    claim_and_leave(directory)
    assert load_recipe(directory / "recipe.toml") == RECIPE
    assert json.loads((directory / "run.json").read_text()) == {
        "store": STORE,
        "start": {"flag": "", "checkpoint": "", "weights": ""},
        "format": 1,
    }


def test_an_empty_directory_is_taken_and_a_start_that_was_killed_before_it_was_ours_can_be_repeated(tmp_path):
    (tmp_path / "empty").mkdir()
    claim_and_leave(tmp_path / "empty")
    (tmp_path / "killed").mkdir()
    for name in (".lock", "recipe.toml", ".run.json.partial"):
        (tmp_path / "killed" / name).touch()
    claim_and_leave(tmp_path / "killed")


@pytest.mark.parametrize("name", ["thesis.tex", "checkpoints", "metrics.jsonl", "config.json"])
def test_a_directory_with_other_things_is_refused_by_their_names(tmp_path, name):
    (tmp_path / name).touch()
    assert f"holds other things ({name}); give a new directory" in refusal(tmp_path)


def test_a_recipe_that_no_run_wrote_is_not_replaced(tmp_path):
    mine = f"# mine\n{recipe_to_toml(RECIPE)}"
    (tmp_path / "recipe.toml").write_text(mine)
    assert "holds a recipe.toml that no run wrote and that the run's would replace" in refusal(tmp_path)
    assert (tmp_path / "recipe.toml").read_text() == mine


def test_a_file_and_a_place_below_a_file_are_refused(tmp_path):
    (tmp_path / "file").touch()
    assert "is a file; give a directory" in refusal(tmp_path / "file")
    assert "cannot write to --output_dir" in refusal(tmp_path / "file" / "run")


def test_the_same_run_is_resumed_also_beside_notes_and_a_page_about_it(earlier):
    (earlier / "tensorboard").mkdir()
    for name in ("notes.txt", "report.html"):
        (earlier / name).write_text("tried a smaller rate")
    claim_and_leave(earlier)
    assert (earlier / "notes.txt").read_text() == "tried a smaller rate"
    assert load_recipe(earlier / "recipe.toml") == RECIPE


def test_what_nfs_keeps_of_a_replaced_file_that_is_open_is_nobodys(earlier):
    """`tail -f metrics.jsonl` has the file open that a resume cuts back."""
    (earlier / ".nfs00000000018a3b2c00000007").touch()
    claim_and_leave(earlier)


def test_the_link_to_the_newest_checkpoint_may_stand_there_and_a_directory_of_its_name_may_not(earlier):
    (earlier / "model").symlink_to("checkpoints/step-00000010")
    refuse_other_things(earlier)
    (earlier / "model").unlink()
    (earlier / "model").mkdir()
    with pytest.raises(UserError, match=r"holds other things \(model\)"):
        refuse_other_things(earlier)


def test_execution_may_change_on_resume_and_is_recorded(earlier):
    changed = dataclasses.replace(RECIPE, execution=dataclasses.replace(RECIPE.execution, micro_batch=8))
    claim_and_leave(earlier, changed)
    assert load_recipe(earlier / "recipe.toml") == changed


def test_another_recipe_is_refused_by_the_names_of_its_keys(earlier):
    what = {"data": {"packing": False}, "objective": {"pair": "none"}, "optimizer": {"beta_1": 0.8}}
    changed = toy_recipe(**what, phase={"steps": 21}, execution={"micro_batch": 8})
    text = refusal(earlier, changed)
    assert "data.packing: True -> False; objective.pair: 'next_sentence' -> 'none'; " in text
    assert "optimizer.beta_1: 0.9 -> 0.8; phase.0.steps: 20 -> 21" in text
    assert "micro_batch" not in text


ONE, OTHER = Start("--checkpoint", "/models/one", "1" * 64), Start("--checkpoint", "/models/other", "2" * 64)
INIT = dataclasses.replace(ONE, flag="--init_checkpoint")


BOTH = (
    " belongs to a run that was started from --checkpoint /models/one (weights 111111111111), not from --checkpoint "
    "/models/other (weights 222222222222); give --checkpoint /models/one again, or give a new directory"
)


@pytest.mark.parametrize(
    ("first", "saved", "second", "words"),
    [
        (ONE, True, OTHER, [BOTH]),
        (ONE, True, dataclasses.replace(ONE, checkpoint="/elsewhere/one"), []),
        (ONE, True, FRESH, []),
        (ONE, True, dataclasses.replace(OTHER, checkpoint="OWN"), []),
        (ONE, False, ONE, []),
        (ONE, True, INIT, []),
        (ONE, False, INIT, ["not from --init_checkpoint /models/one (", "give --checkpoint /models/one again"]),
        (ONE, False, FRESH, ["not from fresh parameters; give --checkpoint /models/one again"]),
        (FRESH, False, INIT, ["not from --init_checkpoint /models/one (weights 1", "leave --init_checkpoint out"]),
    ],
)
def test_a_run_goes_on_from_what_it_was_started_from_or_from_its_own(tmp_path, first, saved, second, words):
    directory = tmp_path / "run"
    claim_and_leave(directory, start=first)
    own = directory / "checkpoints" / "step-00000003"
    if saved:
        own.mkdir(parents=True)
    if second.checkpoint == "OWN":
        second = dataclasses.replace(second, checkpoint=str(own))
    if words:
        text = refusal(directory, start=second)
        assert all(each in text for each in words)
    else:
        claim_and_leave(directory, start=second)
    assert json.loads((directory / "run.json").read_text())["start"] == dataclasses.asdict(first)


@pytest.mark.parametrize(
    ("checkpoint", "given", "began"),
    [
        ("/a/checkpoints/step-00000004", "/a", True),
        ("/a/checkpoints/step-00000004", "/a/checkpoints/../checkpoints/step-00000004", True),
        ("/a/checkpoints/step-00000004", "/a/checkpoints/step-00000008", False),
        ("s3://lab/a/checkpoints/step-00000004", "s3://lab/a", True),
        ("/models/one", "/models/one", True),
        ("/models/one", "/models", False),
    ],
)
def test_a_run_with_checkpoints_knows_what_it_began_with_by_its_name(tmp_path, checkpoint, given, began):
    claim_and_leave(tmp_path / "run", start=dataclasses.replace(ONE, checkpoint=checkpoint))
    assert not began_with(tmp_path / "run", "--checkpoint", Path(given))
    (tmp_path / "run" / "checkpoints" / "step-00000003").mkdir(parents=True)
    assert began_with(tmp_path / "run", "--checkpoint", Path(given)) == began
    assert not began_with(tmp_path / "run", "--init_checkpoint", Path(given))


def test_a_url_is_not_a_checkpoint_of_its_own_also_within_its_directory(tmp_path, monkeypatch):
    claim_and_leave(tmp_path / "run", start=ONE)
    (tmp_path / "run" / "checkpoints" / "step-00000003").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "run")
    assert "not from --checkpoint s3://lab/a" in refusal(
        tmp_path / "run", start=dataclasses.replace(OTHER, checkpoint="s3://lab/a")
    )


def test_an_earlier_run_whose_start_was_not_recorded_resumes(earlier):
    (earlier / "run.json").write_text(json.dumps({"store": STORE, "format": 1}))
    claim_and_leave(earlier, start=ONE)
    claim_and_leave(earlier, start=OTHER)


def test_a_run_that_began_while_this_one_waited_for_the_lock_is_found(tmp_path):
    """Both found an empty directory; the checks count that are made under the lock."""
    held = lock(tmp_path / ".lock", "", 0)

    def other_run() -> None:
        for name, text in (("recipe.toml", recipe_to_toml(RECIPE)), ("run.json", json.dumps({"store": "cd" * 32}))):
            (tmp_path / name).write_text(text, encoding="utf-8")
        os.close(held)

    timer = threading.Timer(0.5, other_run)
    timer.start()
    with pytest.raises(UserError, match=r"belongs to a run on other data .*; resume with the data that it began with"):
        claim(tmp_path, RECIPE, STORE, patience_s=30)
    timer.join()
    assert json.loads((tmp_path / "run.json").read_text()) == {"store": "cd" * 32}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(
            ("run.json", content, "run.json is missing or damaged")
            for content in ("", "{", "[]", "null", "{}", '{"store": 3}', '{"store": "x", "hue": 1}', "\xff", NESTED)
        ),
        ("run.json", '{"store": "x", "start": 1}', "run.json is missing or damaged"),
        ("run.json", json.dumps({"store": STORE, "format": 2}), "a run of format 2, this program writes format 1"),
        *(
            ("run.json", json.dumps({"store": "cd" * 32, "format": 1}), words)
            for words in ("other data", "abababababab", "cdcdcdcdcdcd")
        ),
        ("recipe.toml", None, "cannot read the recipe"),
        ("thesis.tex", "", "holds other things (thesis.tex)"),
    ],
)
def test_what_is_damaged_or_of_another_run_is_refused(earlier, name, content, message):
    if content is None:
        (earlier / name).unlink()
    else:
        (earlier / name).write_text(content, encoding="latin-1")
    assert message in refusal(earlier, error=DamagedData if "damaged" in message else UserError)


def test_a_second_writer_is_refused_until_the_first_has_ended(tmp_path):
    directory = tmp_path / "run"
    lock = claim(directory, RECIPE, STORE)
    second = run_python("-c", CLAIM, directory)
    assert second.returncode == 2, second.stderr
    assert f"another run writes to --output_dir {directory}" in second.stdout
    assert str(directory / "stop") in second.stdout
    os.close(lock)
    third = run_python("-c", CLAIM, directory)
    assert third.returncode == 0, third.stdout + third.stderr


def test_a_refused_second_writer_leaves_the_request_to_stop(tmp_path):
    lock = claim(tmp_path / "run", RECIPE, STORE)
    (tmp_path / "run" / "stop").touch()
    assert "another run writes" in refusal(tmp_path / "run")
    assert stop_requested(tmp_path / "run")
    os.close(lock)


def test_a_request_to_stop_is_seen_and_is_over_with_the_next_start(earlier):
    assert not stop_requested(earlier)
    (earlier / "stop").touch()
    assert stop_requested(earlier)
    claim_and_leave(earlier)
    assert not stop_requested(earlier)


def test_a_disk_that_does_not_answer_for_a_moment_neither_stops_nor_ends_a_run(tmp_path):
    assert not stop_requested(tmp_path / ("x" * 300))  # an error that is not "no such file"


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "first\n")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RunError, match=r"cannot write .*file: No space left on device"):
        write_atomically(path, "second\n")
    assert contents(tmp_path) == {"file": b"first\n"}


def test_a_file_system_without_locks_is_told_as_one(tmp_path, monkeypatch):
    def flock(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match=r"cannot write to --output_dir .* its file system has no file locks"):
        claim_and_leave(tmp_path / "run")


def test_the_next_run_waits_for_the_ranks_of_the_last_to_end(tmp_path):
    lock = claim(tmp_path / "run", RECIPE, STORE)
    timer = threading.Timer(0.5, os.close, [lock])
    timer.start()
    os.close(claim(tmp_path / "run", RECIPE, STORE, patience_s=30))
    timer.join()


@pytest.mark.full
def test_the_lock_outlives_the_launcher_and_falls_with_the_last_rank(store, tmp_path):
    pytest.importorskip("horovod")
    output_dir = tmp_path / "run"
    arguments = pretrain_arguments(tmp_path, store, output_dir, phase={"steps": 100_000}, execution=QUICK)
    recipe = load_recipe(arguments[1])
    with launched([*LAUNCH, "-np", "2", "--", "pretrain", *arguments], tmp_path, str(output_dir)) as run:
        run.await_output("step 1/")
        ranks = [run.stop(0), run.stop(1)]  # else they end with their launcher
        for process in run.processes():
            if process not in ranks:
                os.kill(process, signal.SIGKILL)
        run.process.wait()
        for rank in ranks:
            assert "or ranks of it still live" in refusal(output_dir, recipe, store.hash)
            os.kill(rank, signal.SIGKILL)
    os.close(claim(output_dir, recipe, store.hash, patience_s=60))  # a killed process does not end at once
