"""Each mistake of a user is one clear message, and leaves nothing half-written."""

import argparse
import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
import tomli_w

from bert_horovod.__main__ import open_values, parse
from bert_horovod.collectives.launched import launch
from bert_horovod.commands import pretrain
from bert_horovod.corpus.store import open_store
from bert_horovod.errors import DamagedData, ReportedError, UserError
from bert_horovod.recipe_files.loading import load_recipe, recipe_from_table, recipe_to_toml
from bert_horovod.runs.directory import Start, claim
from bert_horovod.runs.reference_curves import curve_settings
from tests.horovod_runs import PROJECT, run_python, run_ranks
from tests.toy_glue import write_checkpoint
from tests.toys import SMALL_VOCABULARY, toy_recipe, toy_recipe_table, write_toy_store


@pytest.fixture
def files(tmp_path) -> dict[str, Path]:
    """A toy recipe, store and the name of an output directory that does not exist yet."""
    store = write_toy_store(tmp_path / "store", shards=1, held_out=0.1, vocabulary=SMALL_VOCABULARY)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe_to_toml(recipe_from_table(toy_recipe_table())), encoding="utf-8")
    return {"recipe": recipe, "data_dir": store.path, "output_dir": tmp_path / "out"}


def flags(files: dict[str, Path], *more: str) -> list[str]:
    return [word for name, path in files.items() for word in (f"--{name}", str(path))] + list(more)


def opened(files: dict[str, Path], *more: str) -> argparse.Namespace:
    """The arguments of `pretrain`, opened."""
    arguments = parse(["bert-horovod", "pretrain", *flags(files, *more)])
    open_values(arguments)
    return arguments


def refuse(files: dict[str, Path], match: str, *more: str, error: type[ReportedError] = UserError) -> None:
    """The command raises this error with this text and makes no output directory."""
    existed = files["output_dir"].exists()
    with pytest.raises(error, match=match):
        pretrain.run(opened(files, *more))
    assert files["output_dir"].exists() == existed


def test_a_directory_with_a_name_that_tensorflow_cannot_write_is_refused(files, tmp_path):
    odd = files | {"output_dir": tmp_path / os.fsdecode(b"r\xe9sum\xe9")}
    refuse(odd, "not UTF-8, to which TensorFlow cannot write")


def test_a_changed_token_ends_the_run_before_it_is_trained_on(files):
    shard = files["data_dir"] / "shard-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[4096 + 100] ^= 1
    shard.write_bytes(content)
    arguments = parse(["bert-horovod", "pretrain", *flags(files)])
    with pytest.raises(DamagedData, match=r"shard-00000 .*page 0 of its tokens has another CRC"):
        arguments.run(arguments)


def test_what_a_recipe_leaves_out_of_model_is_the_checkpoints(files, tmp_path):
    model = toy_recipe().model
    write_checkpoint(tmp_path / "model", model=model, words=SMALL_VOCABULARY)
    table = toy_recipe_table()
    del table["model"]
    files["recipe"].write_text(tomli_w.dumps(table), encoding="utf-8")
    start = ("--init_checkpoint", str(tmp_path / "model"))

    def model_of(*words: str):
        return pretrain._job(opened(files, *start, *words), launch()).recipe.model

    assert model_of() == model
    changed = dataclasses.replace(model, hidden_dropout_prob=0.4)
    assert model_of("--set", "model.hidden_dropout_prob=0.4") == changed
    for setting in ("intermediate_size=8", "hidden_act=relu", "num_hidden_layers=1"):
        refuse(files, "model", *start, "--set", f"model.{setting}")


def test_a_begun_run_is_not_started_from_another_checkpoint(files, tmp_path):
    write_checkpoint(tmp_path / "model", model=toy_recipe().model, words=SMALL_VOCABULARY)
    start = Start("--init_checkpoint", "/models/one", "1" * 64)
    os.close(claim(files["output_dir"], toy_recipe(), open_store(files["data_dir"]).hash, start=start))
    (files["output_dir"] / "checkpoints" / "step-00000002").mkdir(parents=True)
    message = r"from --init_checkpoint /models/one \(weights 1{12}\), not from --init_checkpoint .*/model \("
    refuse(files, message, "--init_checkpoint", str(tmp_path / "model"))


def test_a_run_that_has_saved_needs_its_start_no_longer_also_for_its_model(files, tmp_path):
    model, table = toy_recipe().model, toy_recipe_table()
    write_checkpoint(tmp_path / "a", model=model, words=SMALL_VOCABULARY)
    del table["model"]
    files["recipe"].write_text(tomli_w.dumps(table), encoding="utf-8")
    start = ("--init_checkpoint", str(tmp_path / "a"))

    def begin(*words: str) -> None:
        job = pretrain._job(opened(files, *words), launch())
        assert job.recipe.model == model
        os.close(claim(files["output_dir"], job.recipe, job.dataset.hash, start=job.start))

    begin(*start)
    shutil.rmtree(tmp_path / "a")
    refuse(files, "there is none at", *start)
    (files["output_dir"] / "checkpoints" / "step-00000002").mkdir(parents=True)
    begin(*start)
    begin()
    refuse(files, "there is none at", "--continue_from", str(tmp_path / "a"))


@pytest.mark.full
def test_mpirun_with_a_horovod_without_mpi_is_refused(files):
    horovod = pytest.importorskip("horovod.tensorflow")
    if horovod.mpi_built():
        pytest.skip("this Horovod has MPI")
    world = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    done = run_python(PROJECT / "run" / "run_pretraining.py", *flags(files), **world)
    assert done.returncode == 2
    assert "mpirun started 2 processes, but Horovod made a world of 1" in done.stderr
    assert "built without MPI" in done.stderr
    assert "Start with horovodrun instead" in done.stderr
    assert "run/setup.sh again, which rebuilds Horovod with MPI" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (files["output_dir"] / "checkpoints").exists()


@pytest.mark.full
def test_under_horovodrun_a_mistake_is_said_once(files):
    done = run_ranks(2, PROJECT / "run" / "run_pretraining.py", *flags(files, "--set", "phase.0.learning_rate=-1"))
    assert done.returncode != 0
    messages = [line for line in (done.stdout + done.stderr).splitlines() if "bert-horovod: error:" in line]
    assert len(messages) == 1, messages
    assert "learning_rate = -1: expected more than 0" in messages[0]
    assert not files["output_dir"].exists()


WITHOUT_HOROVOD = (
    "import sys; sys.modules['horovod'] = None; sys.argv = ['bert-horovod', 'pretrain', *sys.argv[1:]]; "
    "from bert_horovod.__main__ import main; main()"
)


@pytest.mark.full
def test_one_process_works_without_horovod_and_a_loss_out_of_the_band_of_this_text_is_told(files, tmp_path):
    text_key = open_store(files["data_dir"]).text_key
    about = {"name": "toy", "runs": "2 seeds", "command": "", "settings": curve_settings(load_recipe(files["recipe"]))}
    band = {"seeds": 2, "means": [99.0], "spreads": [0.1], "noises": [0.1], "texts": [text_key]}
    (tmp_path / "toy.json").write_text(json.dumps(about | band))
    place = f"curves.DIRECTORY = __import__('pathlib').Path({str(tmp_path)!r})"
    program = f"from bert_horovod.runs import reference_curves as curves; {place}; {WITHOUT_HOROVOD}"
    done = run_python("-c", program, *flags(files, "--max_steps", "1"))
    assert done.returncode == 0, done.stderr
    assert (files["output_dir"] / "checkpoints" / "step-00000001" / "model.safetensors").is_file()
    assert json.loads((files["output_dir"] / "run.json").read_text())["text_key"] == text_key
    assert "and runs of this recipe are between" in (files["output_dir"] / "metrics.jsonl").read_text()


@pytest.mark.full
def test_two_processes_without_horovod_are_told_how_to_get_it(files):
    done = run_python("-c", WITHOUT_HOROVOD, *flags(files), HOROVOD_RANK="0", HOROVOD_SIZE="2")
    assert done.returncode == 2
    assert "Horovod cannot be imported" in done.stderr
    assert "run/setup.sh" in done.stderr
    assert "Traceback" not in done.stderr
