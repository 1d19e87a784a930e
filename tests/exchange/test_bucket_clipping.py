"""Clipping of buckets before the sum over ranks: against a NumPy transcription, on two ranks, and in whole runs."""

import math

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.costs.exchanges import measured_buckets
from bert_horovod.exchange.base import UpdateInputs
from bert_horovod.exchange.dense.gradients import clip_buckets
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runtime.xla import no_clock
from tests.exchange.moments import BROKEN, BUCKETS, SHAPES, TABLE, Toy, gradients, parameters
from tests.toy_runs import metrics, train_rank, train_recipe
from tests.toys import toy_recipe

MICRO_BATCHES, RATE = 2, 1.0  # K
MOST = 13.5  # max_grad_norm over micro-batches: the second bucket's norm is above its limit, the first's below


def most(ranks: int) -> float:
    return MOST * MICRO_BATCHES * ranks


def toy(ranks: int, wire: str = "float32") -> Recipe:
    """Parameters move by the mean of clipped gradients, times RATE."""
    optimizer = {"name": "sgd", "weight_decay": 0.0, "max_grad_norm": most(ranks), "clipping": "bucket"}
    return toy_recipe(optimizer=optimizer, numerics={"wire": wire})


def clipped_step(world: World, recipe: Recipe, first: int) -> dict[str, np.ndarray]:
    """Parameters after a step whose micro-batches have the gradients of steps `first` and the next, and its norm."""
    trainer = Toy(world, recipe)

    @tf.function(autograph=False)
    def clipped(mine, values, ids):
        return trainer.exchange.clip(mine, {TABLE: tf.IndexedSlices(values, ids)}, MICRO_BATCHES)[0]

    @tf.function(autograph=False)
    def update(total):
        return trainer.exchange.update(total, {}, UpdateInputs(tf.constant(RATE), tf.constant(1.0)), no_clock)

    shares = [gradients(world.rank, step) for step in range(first, first + MICRO_BATCHES)]
    clipped_gradients = [clipped(dense, tf.constant(values), tf.constant(ids)) for dense, ids, values in shares]
    done = update({name: tf.add_n([each[name] for each in clipped_gradients]) for name in SHAPES})
    state = {name: variable.numpy() for name, variable in trainer.state.parameters.items()}
    return state | {"norm": done.scalars["gradient_norm"].numpy(), "finite": done.finite.numpy()}


def numpy_means(ranks: int, first: int) -> dict[str, np.ndarray]:
    """The mean over all micro-batches of their mean gradients, each bucket clipped by its own norm; float64."""
    total = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    micro_batches = [(rank, step) for rank in range(ranks) for step in range(first, first + MICRO_BATCHES)]
    clipped = 0
    for rank, step in micro_batches:
        dense, ids, values = gradients(rank, step)
        mean = {name: len(micro_batches) * value.astype(np.float64) for name, value in dense.items()}
        np.add.at(mean[TABLE], ids, len(micro_batches) * values.astype(np.float64))
        for bucket in BUCKETS:
            norm = math.sqrt(sum((mean[name] ** 2).sum() for name in bucket))
            factor = 1 / max(math.sqrt(len(BUCKETS)) * norm / most(ranks), 1)
            clipped += factor < 1
            for name in bucket:
                total[name] += factor * mean[name] / len(micro_batches)
    assert 0 < clipped < len(micro_batches) * len(BUCKETS)
    return total


def assert_follows(found: dict[str, np.ndarray], ranks: int, tolerance: float) -> None:
    means = numpy_means(ranks, 1)
    norm = math.sqrt(sum((mean**2).sum() for mean in means.values()))
    assert norm <= most(ranks)
    assert found["norm"] == pytest.approx(norm, rel=tolerance)
    for name, before in parameters().items():
        expected = before - RATE * means[name]
        np.testing.assert_allclose(found[name], expected, atol=tolerance * np.abs(expected).max(), err_msg=name)


def test_each_bucket_of_each_micro_batch_is_clipped_by_its_own_norm():
    assert_follows(clipped_step(World(), toy(1), 1), 1, 1e-5)


@pytest.mark.full
@pytest.mark.parametrize(("wire", "tolerance"), [("float32", 1e-5), ("float16", 2e-3)])
def test_ranks_clip_before_they_sum(wire, tolerance, two_ranks):
    ranks = [answer.value for answer in two_ranks.run(clipped_step, toy(2, wire), 1)]
    assert_follows(ranks[0], 2, tolerance)
    for name in SHAPES:
        np.testing.assert_array_equal(ranks[0][name], ranks[1][name])


@pytest.mark.slow
def test_a_micro_batch_that_is_not_finite_skips_the_step_on_all_ranks(two_ranks):
    for answer in two_ranks.run(clipped_step, toy(2), BROKEN):
        assert not answer.value["finite"]
        for name, before in parameters().items():
            np.testing.assert_array_equal(answer.value[name], before)


@pytest.mark.parametrize("fused", [False, True])
def test_a_norm_that_overflows_is_not_clipped_to_nothing(fused):
    large = {"a": tf.constant([1e30, 1.0]), "b": tf.constant([0.5])}
    clipped = clip_buckets(large, [["a"], ["b"]], 1, 1.0, fused)
    assert np.isnan(clipped["a"]).all()
    np.testing.assert_array_equal(clipped["b"], [0.5])  # below 1 / sqrt(2)


def test_buckets_that_clip_are_cut_by_size_alone():
    auto = {"bucket_bytes": "auto"}
    assert measured_buckets(toy_recipe(execution=auto))
    assert not measured_buckets(toy_recipe(execution=auto, optimizer={"clipping": "bucket"}))


def micro_batches_of(rows: int, most: float = 0.1, **sections) -> Recipe:
    optimizer = {"clipping": "bucket", "max_grad_norm": most}
    return toy_recipe(optimizer=optimizer, execution={"micro_batch": rows, "checkpoint_steps": 3}, **sections)


@pytest.mark.slow
def test_the_number_of_ranks_changes_nothing(two_ranks, store, tmp_path):
    two_ranks.run(train_rank, store.path, tmp_path / "moved", micro_batches_of(16), max_steps=3)
    for run in ("moved", "alone"):
        train_recipe(micro_batches_of(16), store, tmp_path / run, max_steps=6)
    moved, alone = metrics(tmp_path / "moved"), metrics(tmp_path / "alone")
    assert [line["loss"] for line in moved] == pytest.approx([line["loss"] for line in alone], rel=1e-6)
    assert all(0 < line["gradient_norm"] < 0.1 for line in alone)  # of what is left after clipping


@pytest.mark.slow
def test_a_loss_scale_does_not_reach_the_threshold(store, tmp_path):
    norms = []
    for precision in ("float32", "float16"):
        recipe = micro_batches_of(16, most=20.0, numerics={"precision": precision})
        [step] = metrics(train_recipe(recipe, store, tmp_path / precision, max_steps=1))
        norms.append(step["gradient_norm"])
    assert 0.1 < norms[0] < 20 / math.sqrt(10)  # below each bucket's limit, had it all of the norm
    assert norms[1] == pytest.approx(norms[0], rel=0.02)
