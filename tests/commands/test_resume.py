"""bert-horovod status and resume, of runs that are killed, stopped and started again."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert_horovod.runs.status_files import COMMAND, Command, read_command
from tests.cluster.launches import LAUNCH, QUICK, launched
from tests.horovod_runs import clean_environment, run_command
from tests.toy_runs import pretrain_arguments
from tests.toys import SMALL_VOCABULARY, write_toy_store

PROGRAM = [sys.executable, "-m", "bert_horovod"]


def status(run: Path) -> dict:
    done = run_command("status", run, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def flags(place: Path, output_dir: str) -> list[str]:
    store = write_toy_store(place / "store", shards=1, held_out=0.1, vocabulary=SMALL_VOCABULARY)
    return pretrain_arguments(place, store, Path(output_dir), phase={"steps": 100_000}, execution=QUICK)


@pytest.mark.full
def test_a_run_is_seen_running_killed_and_stopped_and_resume_is_the_same_command(tmp_path):
    words = ["pretrain", *flags(tmp_path, "run"), "--set", "execution.checkpoint_steps=5"]  # a relative directory
    run = tmp_path / "run"

    def start(command, **options):
        return subprocess.Popen(command, start_new_session=True, env=clean_environment(), cwd=tmp_path, **options)

    with launched([*PROGRAM, *words], tmp_path, str(tmp_path / "recipe.toml"), start) as process:
        process.await_output("step 9/")
        report = status(run)
        assert (report["state"], report["sign"]["last_step"], report["sign"]["ranks"]) == ("running", 100_000, 1)
        refused = run_command("resume", run)
        assert (refused.returncode, "is running on" in refused.stderr) == (2, True)
        process.process.kill()
        process.process.wait()
        assert status(run)["state"] == "dead"
    with launched([*PROGRAM, "resume", str(run)], tmp_path, str(tmp_path / "recipe.toml")) as process:
        process.await_output("resuming from run/checkpoints/step-", "step ")
        (run / "stop").touch()
        _, errors = process.end()
    assert "bert-horovod pretrain --recipe" in errors
    assert status(run)["state"] == "stopped, as it was asked to"


@pytest.mark.slow
def test_resume_of_a_launched_run_launches_it_again(tmp_path):
    pytest.importorskip("horovod")
    words = ["-np", "2", "--", "pretrain", *flags(tmp_path, tmp_path / "run")]
    for command in ([*LAUNCH, *words], [*PROGRAM, "resume", str(tmp_path / "run")]):
        with launched(command, tmp_path, str(tmp_path / "run")) as process:
            process.await_output("world: 2 rank(s)", "step 1" if command[3] == "launch" else "resuming")
            os.kill(process._find("launch", set()), signal.SIGTERM)
            process.end()
        assert read_command(tmp_path / "run").words == ["launch", *words]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"launcher": "srun", "ranks": 4}, "was started by srun with 4 ranks.*srun ... bert-horovod pretrain"),
        ({"output_dir": "/elsewhere/run"}, "was moved since; run the command again with its new place"),
        ({"directory": "/no/such/place"}, "was started in /no/such/place, which cannot be entered"),
    ],
)
def test_what_cannot_be_run_again_is_shown(tmp_path, change, message):
    from bert_horovod.__main__ import parse
    from bert_horovod.errors import UserError

    known = {"words": ["pretrain"], "directory": "/", "output_dir": str(tmp_path), "launcher": None, "ranks": 1}
    Command(**known | change).write(tmp_path)
    arguments = parse(["bert-horovod", "resume", str(tmp_path)])
    with pytest.raises(UserError, match=message):
        arguments.run(arguments)
    (tmp_path / COMMAND).unlink()
    with pytest.raises(UserError, match="does not tell how it was started"):
        arguments.run(arguments)


@pytest.mark.full
def test_no_module_in_the_recorded_directory_is_run(tmp_path):
    for name in ("json", "bert_horovod", "absl"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of another')\n")
    Command(["recipes"], str(tmp_path), str(tmp_path), None, 1).write(tmp_path)
    done = run_command("resume", tmp_path)
    assert (done.returncode, "of another" in done.stderr) == (0, False), done.stderr
    assert "bert-mini" in done.stdout
