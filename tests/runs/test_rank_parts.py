"""What each rank keeps alone is part of a checkpoint, and nothing owed is lost; exchange/test_whole_runs.py resumes."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.errors import RunError
from bert_horovod.exchange.owed import OwedLayout, total
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.rank_parts import PartWriter, part_file, remove_waiting, restore_copies, take
from bert_horovod.tasks.pretraining import Pretraining
from tests.toy_runs import metrics, newest, train_rank, train_recipe, training_state
from tests.toys import toy_recipe

pytestmark = pytest.mark.full

METHODS = {
    "onebit_adam": {"exchange": {"method": "onebit_adam", "dense": 0.2}},
    "largest_chunks": {"exchange": {"method": "largest_chunks", "dense": 0.2}},
}
STEPS, STOP = 20, 9


def parts_recipe(method: str) -> Recipe:
    execution = {"micro_batch": 8, "bucket_bytes": 40000, "checkpoint_steps": 3, "keep_checkpoints": 2}
    return toy_recipe(phase={"steps": STEPS, "warmup": 0.1}, execution=execution, **METHODS[method])


def train_apart(world: World, store: Path, output_dir: Path, recipe: Recipe, **job) -> None:
    """As train_rank, but rank 1 has a directory of the same name elsewhere."""
    train_rank(world, store, output_dir if world.rank == 0 else output_dir / "elsewhere", recipe, **job)


def stop_and_resume(two_ranks, store, output_dir: Path, recipe: Recipe, work=train_rank) -> None:
    for steps in (STOP, STEPS):
        two_ranks.run(work, store.path, output_dir, recipe, max_steps=steps)


def files(run: Path) -> dict[str, bytes]:
    checkpoint = newest(run)
    return {name: (checkpoint / name).read_bytes() for name in ("model.safetensors", part_file(0), part_file(1))}


@pytest.mark.slow
def test_rank_0_writes_all_parts_where_another_does_not_see_its_directory(two_ranks, store, tmp_path):
    recipe = parts_recipe("onebit_adam")
    two_ranks.run(train_rank, store.path, tmp_path / "seen", recipe)
    stop_and_resume(two_ranks, store, tmp_path / "unseen", recipe, train_apart)
    assert files(tmp_path / "seen") == files(tmp_path / "unseen")
    assert not list((tmp_path / "seen" / "checkpoints").glob(".part-*"))
    assert not list((tmp_path / "unseen" / "elsewhere").rglob("*.safetensors"))


def owed(run: Path, recipe: Recipe) -> dict[str, np.ndarray]:
    """What all ranks owe together by the newest checkpoint, by parameter."""
    plan = training_state(run)["progress"]["plan"]
    layout = OwedLayout(plan["made_for"]["world_size"], plan["made_for"]["inside"], plan["buckets"])
    kept = [safetensors.numpy.load_file(newest(run) / part_file(rank)) for rank in range(layout.ranks)]
    return total(kept, layout, Pretraining(recipe.objective.pairs).parameters(recipe.model))


@pytest.mark.slow
def test_one_rank_resumes_what_two_have_saved_and_drops_nothing_but_what_needs_two(two_ranks, store, tmp_path):
    recipe = parts_recipe("largest_chunks")
    two_ranks.run(train_rank, store.path, tmp_path / "run", recipe, max_steps=STOP)
    before = owed(tmp_path / "run", recipe)
    assert any(array.any() for array in before.values())
    train_recipe(recipe, store, tmp_path / "run")
    assert training_state(tmp_path / "run")["progress"]["step"] == STEPS
    assert np.isfinite([line["loss"] for line in metrics(tmp_path / "run") if "loss" in line]).all()


@pytest.mark.slow
def test_a_checkpoint_with_a_damaged_or_missing_part_is_passed_over(two_ranks, store, tmp_path, capfd):
    recipe = parts_recipe("onebit_adam")
    two_ranks.run(train_rank, store.path, tmp_path / "run", recipe, max_steps=STOP)
    good = tmp_path / "good"
    shutil.copytree(tmp_path / "run", good)
    part = newest(tmp_path / "run") / part_file(1)
    damaged = bytearray(part.read_bytes())
    damaged[-1] ^= 1
    part.write_bytes(damaged)
    output = two_ranks.run(train_rank, store.path, tmp_path / "run", recipe)[0].said
    assert f"step-{STOP:08d} is damaged ({part_file(1)})" in output
    assert f"resuming from {tmp_path / 'run' / 'checkpoints' / 'step-00000006'}" in output
    (newest(good) / part_file(0)).unlink()
    output = two_ranks.run(train_rank, store.path, good, recipe)[0].said
    assert f"({part_file(0)})" in output


def test_a_disk_without_room_for_a_file_ends_no_run_before_its_first_part(tmp_path):
    (tmp_path / "file").touch()  # no directory can be made in it
    PartWriter(tmp_path / "file" / "checkpoints", World(), print).close()


def test_a_part_that_does_not_come_is_named_and_what_others_left_is_removed(tmp_path):
    writer = PartWriter(tmp_path, World(), print)
    writer.write(4, {"error.worker.0": tf.Variable([1.0, 2.0])})
    writer.finish(lambda: None)
    parts = take(tmp_path, 4, 1, patience_s=5)
    assert safetensors.numpy.load_file(parts[0][0])["error.worker.0"].tolist() == [1, 2]
    with pytest.raises(RunError, match=r"step 4: ranks \[1\] have not written their parts"):
        take(tmp_path, 4, 2, patience_s=0.1)
    remove_waiting(tmp_path, step=4)
    assert take(tmp_path, 4, 1, patience_s=0)
    remove_waiting(tmp_path, step=5)
    assert not list(tmp_path.iterdir())


def test_another_number_of_ranks_gets_the_mean_of_copies_and_the_same_number_its_own(tmp_path):
    copies = [{"m/a": np.full((2, 3), rank, np.float32), "sum": np.arange(4, dtype=np.float32)} for rank in (1, 4)]
    (tmp_path / "training").mkdir()
    for rank, arrays in enumerate(copies):
        safetensors.numpy.save_file(arrays, tmp_path / part_file(rank))
    means = {"m/a": np.full((2, 3), 2.5, np.float32), "sum": copies[0]["sum"]}
    np.testing.assert_equal(restore_copies(tmp_path, 2, World()), means)
    np.testing.assert_equal(restore_copies(tmp_path, 1, World()), copies[0])
