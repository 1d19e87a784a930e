"""An ALBERT trains, resumes, and sends the gradient of its shared layer once."""

import math
from pathlib import Path

import pytest

from bert_horovod.interchange.huggingface import describe_directory
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe_files.loading import load_recipe
from tests.horovod_runs import PROJECT
from tests.toy_runs import metrics, newest, train_rank, train_recipe
from tests.toys import toy_recipe

RECIPE = toy_recipe(
    model={"num_hidden_layers": 4, "embedding_size": 16, "shared_layers": 1, "hidden_act": "gelu_new"},
    objective={"pair": "sentence_order"},
    optimizer={"name": "lamb"},
    phase={"steps": 8, "learning_rate": 0.01},
    execution={"micro_batch": 16, "checkpoint_steps": 4},
)


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory) -> Path:
    return train_recipe(RECIPE, store, tmp_path_factory.mktemp("whole"))


def losses(output_dir: Path) -> list[float]:
    return [line["loss"] for line in metrics(output_dir)]


@pytest.mark.full
def test_a_checkpoint_is_of_its_own_class_with_the_pair_head(whole):
    assert len(losses(whole)) == RECIPE.total_steps
    model, shapes, (architecture, *_) = describe_directory(newest(whole))
    assert model == RECIPE.model
    assert architecture.class_name(model) == "AlbertForPreTraining"
    assert shapes == pretraining_shapes(model, True)


@pytest.mark.slow
def test_two_ranks_have_the_same_losses_and_send_each_parameter_once(whole, store, two_ranks, tmp_path):
    two_ranks.run(train_rank, store.path, tmp_path, RECIPE)
    assert losses(tmp_path) == pytest.approx(losses(whole), rel=1e-5)
    parameters = sum(map(math.prod, pretraining_shapes(RECIPE.model, True).values()))
    # Of a ring of two: all of the payload, float32; beside it only the sums of the losses.
    sent = metrics(tmp_path)[-1]["wire_bytes"]
    assert 4 * parameters <= sent < 4.2 * parameters


@pytest.mark.slow
def test_the_shipped_small_recipe_trains_in_its_own_precision(store, tmp_path):
    recipe = load_recipe(
        PROJECT / "run" / "recipes" / "albert-mini.toml",
        [
            f"model.vocab_size={len(store.vocabulary)}",
            "phase.0.global_batch=8",
            "phase.0.steps=3",
            "execution.xla='off'",
            "execution.threads=1",
            "execution.tensorboard=false",
            "execution.log_steps=1",
            "execution.evaluate_rows=8",
        ],
    )
    train_recipe(recipe, store, tmp_path)
    # From about ln 64 down: a lookup by chance is all that there is to learn of random tokens.
    assert losses(tmp_path) == pytest.approx([math.log(64)] * 3, abs=0.3)
    model, shapes, (architecture, *_) = describe_directory(newest(tmp_path))
    assert architecture.class_name(model) == "AlbertForMaskedLM"
    assert shapes == pretraining_shapes(model, False)
