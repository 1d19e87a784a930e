"""An ALBERT and a ModernBERT train: the pair head, phases with thetas of their own, two ranks, shipped recipes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.text.rows import open_rows
from bert_horovod.corpus.store import Store
from bert_horovod.errors import UserError
from bert_horovod.interchange.huggingface import describe_directory
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe_files.loading import load_recipe, recipe_from_table
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.training.initial import load_initial
from bert_horovod.training.job import pretraining_job
from tests.toy_runs import logged, losses, metrics, newest, train_rank, train_recipe
from tests.toys import SMALL_VOCABULARY, toy_recipe, toy_recipe_table, write_toy_store

MODEL = {
    "architecture": "modernbert",
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "local_attention": 8,
    "global_rope_theta": 100.0,
}
TABLE = toy_recipe_table(
    model=MODEL,
    objective={"pair": "none", "masked_fraction": 0.3, "held_out_masked_fraction": 0.15},
    phase={"steps": 4, "hold": 0.9, "global_batch": 16},
    execution={"micro_batch": 8, "checkpoint_steps": 4},
)
LONGER = {
    "sequence_length": 64,
    "global_batch": 8,
    "warmup": 0.0,
    "hold": 0.5,
    "decay": "one_minus_sqrt",
    "global_rope_theta": 400.0,
}
TABLE["phase"].append(TABLE["phase"][0] | LONGER)
RECIPE = recipe_from_table(TABLE)
ALBERT = toy_recipe(
    model={"num_hidden_layers": 4, "embedding_size": 16, "shared_layers": 1, "hidden_act": "gelu_new"},
    objective={"pair": "sentence_order"},
    optimizer={"name": "lamb"},
    phase={"steps": 8, "learning_rate": 0.01},
    execution={"micro_batch": 16, "checkpoint_steps": 4},
)


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory) -> Path:
    return train_recipe(RECIPE, store, tmp_path_factory.mktemp("modernbert"))


@pytest.fixture(scope="module")
def albert(store, tmp_path_factory) -> Path:
    return train_recipe(ALBERT, store, tmp_path_factory.mktemp("albert"))


def theta(checkpoint: Path) -> float:
    return json.loads((checkpoint / "config.json").read_text())["global_rope_theta"]


@pytest.mark.full
def test_a_checkpoint_is_of_its_own_class_with_the_pair_head(albert):
    assert len(losses(albert)) == ALBERT.total_steps
    model, shapes, (architecture, *_) = describe_directory(newest(albert))
    assert model == ALBERT.model
    assert architecture.class_name(model) == "AlbertForPreTraining"
    assert shapes == pretraining_shapes(model, True)


@pytest.mark.full
def test_each_phase_trains_and_saves_with_its_theta(whole):
    assert len(losses(whole)) == 8
    first, second = sorted((whole / "checkpoints").glob("step-*"))
    assert (theta(first), theta(second)) == (100.0, 400.0)
    model, shapes, (architecture, *_) = describe_directory(second)
    assert model == RECIPE.in_phase(RECIPE.phase[1]).model
    assert architecture.class_name(model) == "ModernBertForMaskedLM"
    assert shapes == pretraining_shapes(model, False)
    rates = [line["learning_rate"] for line in metrics(whole)]
    assert rates[4:] == pytest.approx([0.002, 0.002, 0.002, 0.002 * (1 - 0.5**0.5)])


def test_held_out_rows_have_masks_of_their_own(store):
    for split, fraction in (("train", 0.3), ("held_out", 0.15)):
        rows = open_rows(store, RECIPE, 1, split).assemble(np.arange(16))
        special = np.isin(rows["input_ids"], [store.vocabulary.index(token) for token in ("[PAD]", "[CLS]", "[SEP]")])
        assert rows["masked_weights"].sum() / (~special).sum() == pytest.approx(fraction, abs=0.03)


@pytest.mark.slow
def test_two_ranks_have_the_same_losses_and_an_albert_sends_each_parameter_once(
    whole, albert, store, two_ranks, tmp_path
):
    for recipe, run in ((RECIPE, whole), (ALBERT, albert)):
        directory = tmp_path / run.name
        two_ranks.run(train_rank, store.path, directory, recipe)
        assert losses(directory) == pytest.approx(losses(run), rel=1e-5)
        first, second = (
            [line["held_out_mlm_loss"] for line in logged(each) if "held_out_mlm_loss" in line]
            for each in (directory, run)
        )
        assert first == pytest.approx(second, rel=1e-5)
    parameters = sum(map(math.prod, pretraining_shapes(ALBERT.model, True).values()))
    # Of a ring of two: all of the payload, float32; beside it only the sums of the losses.
    assert 4 * parameters <= metrics(directory)[-1]["wire_bytes"] < 4.2 * parameters


@pytest.mark.full
def test_a_checkpoint_goes_on_with_another_theta_but_not_with_another_window(whole, store: Store, tmp_path):
    def load(**settings):
        table = TABLE | {"model": TABLE["model"] | settings, "phase": TABLE["phase"][:1]}
        job = pretraining_job(recipe_from_table(table), store, tmp_path)
        return load_initial(find_checkpoint(newest(whole)), job.recipe.model, job.task, job.dataset)

    assert load(global_rope_theta=5000.0).keys() == pretraining_shapes(RECIPE.model, False).keys()
    with pytest.raises(UserError, match=r"has local_attention = 8, the recipe has model.local_attention = 16"):
        load(local_attention=16)


@pytest.mark.slow
def test_rows_of_8192_positions_train_and_resume(tmp_path):
    store = write_toy_store(tmp_path / "store", sections=1, sentences=1500, held_out=0.2, vocabulary=SMALL_VOCABULARY)
    model = MODEL | {"num_hidden_layers": 2, "max_position_embeddings": 8192, "local_attention": 128}
    table = toy_recipe_table(
        model=model,
        objective={"pair": "none"},
        phase={"steps": 2, "global_batch": 2},
        execution={"micro_batch": 1, "checkpoint_steps": 1, "keep_checkpoints": 9, "recompute": "attention"},
    )
    table["phase"].append(table["phase"][0] | {"sequence_length": 8192, "global_rope_theta": 160_000.0})
    recipe = recipe_from_table(table)
    run = train_recipe(recipe, store, tmp_path / "run")
    resumed = train_recipe(recipe, store, tmp_path / "resumed", max_steps=3)
    assert losses(train_recipe(recipe, store, resumed)) == losses(run)
    assert losses(run) == pytest.approx([np.log(64)] * 4, abs=0.5)
    assert theta(newest(run)) == 160_000.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["albert-mini", "modernbert-mini", "ettin-17m", "modernbert-base"])
def test_a_shipped_recipe_trains_in_its_own_precision(store, tmp_path, name):
    small = [] if name == "albert-mini" else ["model.num_hidden_layers=4", "phase.0.sequence_length=64"]
    recipe = load_recipe(
        name,
        [
            f"model.vocab_size={len(store.vocabulary)}",
            *small,
            *("phase.0.global_batch=4", "phase.0.steps=2", "execution.micro_batch=4", "execution.threads=1"),
            *("execution.xla='off'", "execution.trackers=[]", "execution.log_steps=1"),
            "execution.evaluate_rows=8",
        ],
    )
    train_recipe(recipe, store, tmp_path, max_steps=2)
    # From about ln 64 down: a lookup by chance is all that there is to learn of random tokens.
    assert losses(tmp_path) == pytest.approx([math.log(64)] * 2, abs=0.5)
    model, shapes, (architecture, *_) = describe_directory(newest(tmp_path))
    assert architecture.class_name(model) == {"a": "AlbertForMaskedLM"}.get(name[0], "ModernBertForMaskedLM")
    assert shapes == pretraining_shapes(model, False)
