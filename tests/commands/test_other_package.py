"""A rule and an exchange of another package: planned, trained, killed, resumed; their checkpoints need no package."""

import json
import os
import subprocess
import sys
import time

import pytest
import tomli_w

from bert_horovod.recipe.methods_found import GROUP
from bert_horovod.runs.checkpoint import paths
from tests.commands.conftest import command
from tests.horovod_runs import (
    PATIENCE_S,
    PROJECT,
    clean_environment,
    horovodrun,
    kill_tree,
    run_process,
    run_ranks,
)
from tests.other_package import install
from tests.toy_runs import assert_same_files
from tests.toys import SMALL_VOCABULARY, toy_recipe_table, write_toy_store

STEPS, EVERY = 60, 10
SETTINGS = ("optimizer.name=sign_momentum", "optimizer.length=0.5", "exchange.method=scaled_gradients")
EXECUTION = {"checkpoint_steps": EVERY, "micro_batch": 4, "consistency_steps": EVERY}


def flags(place, run, *settings):
    """Flags of `pretrain`: a recipe of sgd, of which --set makes one of the package's."""
    table = toy_recipe_table(phase={"steps": STEPS, "global_batch": 8}, execution=EXECUTION)
    (place / "recipe.toml").write_text(tomli_w.dumps(table))
    store = place / "store"
    if not store.exists():
        write_toy_store(store, shards=1, held_out=0.1, vocabulary=SMALL_VOCABULARY)
    sets = [word for setting in settings for word in ("--set", setting)]
    return ["--recipe", place / "recipe.toml", "--data_dir", store, "--output_dir", run, *sets]


def beside(*directories) -> dict[str, str]:
    """The environment in which these packages are installed."""
    return clean_environment(PYTHONPATH=os.pathsep.join(map(str, (*directories, PROJECT))))


@pytest.mark.full
def test_it_trains_on_two_ranks_is_killed_and_resumes_and_checkpoints_need_no_package(tmp_path, capsys):
    environment = beside(install(tmp_path / "site"))
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    def ranks(run):
        return [*horovodrun(2), sys.executable, "-m", "bert_horovod", "pretrain", *flags(tmp_path, run, *SETTINGS)]

    def trained(run):
        done = run_process(ranks(run), environment)
        assert done.returncode == 0, done.stdout + done.stderr

    trained(whole)
    with subprocess.Popen(
        list(map(str, ranks(killed))), env=environment, cwd=PROJECT, start_new_session=True, stdout=subprocess.DEVNULL
    ) as process:
        try:
            end = time.monotonic() + PATIENCE_S
            while len(paths(killed)) < 2:
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.01)
        finally:
            kill_tree(process.pid)
    assert EVERY < int(paths(killed)[-1].name.removeprefix("step-")) < STEPS
    trained(killed)
    assert_same_files(whole, killed)
    assert 'name = "sign_momentum"' in (killed / "recipe.toml").read_text()

    # Without the package, in this process.
    for words in (
        ("evaluate", killed, "--data_dir", tmp_path / "store", "--rows", 8),
        ("export", "--checkpoint", killed, "--format", "savedmodel", "--output", tmp_path / "exported"),
        ("average", killed, "--last", 2, "--output", tmp_path / "mean"),
        ("report", killed, "--output", tmp_path / "page.html"),
        ("status", killed),
    ):
        assert command(*words) == 0, words
    assert "sign_momentum" in (tmp_path / "page.html").read_text()
    assert "sign_momentum" in (tmp_path / "mean" / "README.md").read_text()
    assert command("pretrain", *flags(tmp_path, killed, *SETTINGS)) == 2
    assert "optimizer.name = 'sign_momentum': expected one of adamw, " in capsys.readouterr().err
    assert len(paths(killed)) == len(paths(whole))


RANK = """
import os, sys
sys.path.insert(0, sys.argv[1 + int(os.environ["HOROVOD_RANK"])])
from bert_horovod.__main__ import dispatch, parse
sys.exit(dispatch(parse(["bert-horovod", "pretrain", *sys.argv[3:]])))
"""


@pytest.mark.full
def test_a_rank_with_another_version_is_refused(tmp_path):
    sites = [install(tmp_path / version, version) for version in ("1.0", "1.1")]
    done = run_ranks(2, RANK, *map(str, (*sites, *flags(tmp_path, tmp_path / "run", *SETTINGS))))
    said = done.stdout + done.stderr
    assert "package of optimizer.name = 'toy 1.1', rank 0 has 'toy 1.0'" in said
    assert "package of exchange.method = 'toy 1.1', rank 0 has 'toy 1.0'" in said
    assert "Process 0 exit with status code 2" in said
    assert not paths(tmp_path / "run")


@pytest.mark.full
def test_plan_prices_it_and_names_a_package_that_cannot_be_read(tmp_path):
    site = install(tmp_path / "site")
    broken = tmp_path / "broken" / "lost-2.0.dist-info"
    broken.mkdir(parents=True)
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: lost\nVersion: 2.0\n")
    (broken / "entry_points.txt").write_text(f"[{GROUP}]\nlost = no_such_module:Lost\n")

    def planned(*settings):
        sets = [word for setting in settings for word in ("--set", setting)]
        machine = ("--device", "A100", "--link", "10Gb/s", "--world_size", 4, "--json")
        words = ("-m", "bert_horovod", "plan", "--recipe", "bert-base", *machine, *sets)
        done = run_process([sys.executable, *words], beside(site, tmp_path / "broken"))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["plans"][0], done.stderr

    (toy, said), (adamw, silent) = planned(*SETTINGS, "numerics.wire=float32"), planned()
    assert toy["memory_bytes"] < adamw["memory_bytes"]  # it has one slot less
    assert toy["sent_bytes"] == pytest.approx(2 * adamw["sent_bytes"], rel=1e-3)  # float32 for float16
    assert "lost 2.0 could not be read: ModuleNotFoundError: No module named 'no_such_module'" in said
    assert "lost" not in silent
