"""Several heads: the penalty and its gradient against NumPy, the loss against single heads; dead heads have no part.

Weak heads end, the same ones on every rank and after a resume.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.experiments.multiverse import Multiverse
from bert_horovod.experiments.multiverse.elimination import survivors
from bert_horovod.experiments.multiverse.several_heads import ALIVE, MultiverseClassification, similarity
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.texts import Texts
from bert_horovod.finetuning.outcome import Outcome
from bert_horovod.finetuning.text_data import own_data
from bert_horovod.inference.options import Options
from bert_horovod.inference.text_predictor import TextPredictor
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.model.parameters import CLASSIFIER, MORE_CLASSIFIERS, initial_values
from bert_horovod.recipe.finetuning_heads import Classifier
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_of_record
from bert_horovod.runs.checkpoint import path_of
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.tasks.text_head import Classification
from bert_horovod.training.loop import train
from tests.finetuning.test_classifier import job_of
from tests.model.forwards import forward_of, tensors
from tests.tasks.test_heads import batch
from tests.toy_glue import MODEL, numbered, write_checkpoint, write_glue
from tests.toy_runs import metrics


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("toy")
    return {"data_dir": write_glue(directory / "glue"), "checkpoint": write_checkpoint(directory / "checkpoint")}


HEADS = 4
LABELS = ("negative", "neutral", "positive")
TASK = MultiverseClassification(LABELS, heads=HEADS, orthogonality=0.5)


def mean_cosine(vectors: np.ndarray, alive: np.ndarray) -> float:
    """`similarity` in float64, pair by pair."""
    cosines = [0.0]
    living = np.flatnonzero(alive)
    for i, first in enumerate(living):
        for second in living[i + 1 :]:
            for a, b in zip(vectors[first], vectors[second], strict=True):
                cosines.append(abs(a @ b) / np.sqrt((a @ a) * (b @ b)))
    return sum(cosines) / max(1, len(cosines) - 1)


@pytest.mark.parametrize("alive", [(1, 1, 1, 1), (1, 0, 1, 1), (1, 0, 0, 0)])
def test_similarity_and_its_gradient_are_those_of_numpy(alive):
    vectors = np.random.default_rng(0).standard_normal((HEADS, 3, 8))
    alive = np.array(alive, np.float64)
    variable = tf.constant(vectors, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        penalty = similarity(variable, tf.constant(alive, tf.float32))
    assert np.isclose(float(penalty), mean_cosine(vectors, alive), rtol=1e-6)
    gradient = tape.gradient(penalty, variable).numpy()
    for place in np.ndindex(vectors.shape):
        moved = [vectors.copy(), vectors.copy()]
        moved[0][place] += 1e-6
        moved[1][place] -= 1e-6
        above, below = (mean_cosine(each, alive) for each in moved)
        assert np.isclose(gradient[place], (above - below) / 2e-6, atol=1e-5)


def sums_of(task, parameters, alive=None) -> dict[str, float]:
    living = {} if alive is None else {ALIVE: tf.constant(alive, tf.float32)}
    sums = task.sums(forward_of(MODEL, parameters), tensors(batch()) | living)
    return {name: float(value) for name, value in sums.items()}


def test_each_head_has_the_loss_that_it_has_as_a_plain_classifier():
    parameters = initial_values(TASK.parameters(MODEL), 0.2, 1)
    alive = [1, 0, 1, 1]
    sums = sums_of(TASK, parameters, alive)
    assert tuple(sums) == TASK.sum_names
    plain = {name: parameters[name] for name in Classification(LABELS).parameters(MODEL)}
    further = (np.split(parameters[f"{MORE_CLASSIFIERS}.{part}"], HEADS - 1) for part in ("weight", "bias"))
    heads = [(plain[f"{CLASSIFIER}.weight"], plain[f"{CLASSIFIER}.bias"]), *zip(*further, strict=True)]
    singles = []
    for weight, bias in heads:
        one = plain | {f"{CLASSIFIER}.weight": weight, f"{CLASSIFIER}.bias": bias}
        singles.append(sums_of(Classification(LABELS), one))
    losses = [one["label_loss"] for one in singles]
    np.testing.assert_allclose([sums[name] for name in TASK.head_names], losses, rtol=1e-5)
    assert np.ptp(losses) > 0.01
    assert np.isclose(sums["label_loss"], singles[0]["label_loss"], rtol=1e-5)
    assert sums["label_correct"] == singles[0]["label_correct"]
    expected = np.mean([loss for loss, lives in zip(losses, alive, strict=True) if lives])
    assert np.isclose(sums["heads_loss"], expected, rtol=1e-5)
    vectors = np.stack([weight for weight, _ in heads]).astype(np.float64)
    assert np.isclose(sums["similarity"], 3 * mean_cosine(vectors, np.array(alive)), rtol=1e-5)  # three examples
    counts = TASK.batch_counts(batch())
    assert np.isclose(TASK.loss(sums, counts), (expected + 0.5 * sums["similarity"]) / 3, rtol=1e-5)
    assert TASK.metrics(sums, counts)["heads"] == 3


def test_a_dead_head_gets_no_gradient():
    parameters = initial_values(TASK.parameters(MODEL), 0.2, 1)
    name = f"{MORE_CLASSIFIERS}.weight"
    rows = tensors(batch()) | {ALIVE: tf.constant([1.0, 1, 0, 1])}
    of_all = forward_of(MODEL, parameters)
    with tf.GradientTape() as tape:
        tape.watch(of_all.weights[name])
        loss = TASK.loss(TASK.sums(of_all, rows), TASK.batch_counts(batch()))
    by_head = np.split(tape.gradient(loss, of_all.weights[name]).numpy(), HEADS - 1)
    assert [bool(np.any(gradient)) for gradient in by_head] == [True, False, True]


SIX = ("finetuning.head=multiverse", "finetuning.heads=6", "finetuning.elimination=0.0")


def remembered(output_dir: Path, step: int) -> dict[str, list[float]]:
    text = (path_of(output_dir, step) / "training" / "state.json").read_text(encoding="utf-8")
    return json.loads(text)["progress"]["task"]


def test_heads_above_the_mean_end_but_never_the_first():
    assert survivors([1, 1, 1, 1], [2.0, 1.0, 1.0, 1.2], 0.0) == [1, 1, 1, 1]
    assert survivors([1, 1, 1, 1], [2.0, 1.0, 1.0, 1.4], 0.0) == [1, 1, 1, 0]
    assert survivors([1, 1, 0, 1], [2.0, 1.0, 0.1, 1.4], 0.0) == [1, 1, 0, 1]
    assert survivors([1, 1, 1], [1.0, 1.0, 1.1], 0.05) == [1, 1, 0]
    assert survivors([1, 1, 1], [1.0, 1.0, 1.1], 0.1) == [1, 1, 1]


@pytest.mark.full
def test_heads_become_orthogonal_and_some_end(files, tmp_path):
    train(job_of(files, tmp_path, *SIX, max_steps=20), World())
    lines = metrics(tmp_path)
    assert lines[-1]["similarity"] < lines[0]["similarity"] / 2
    alive = [line["heads"] for line in lines]
    assert alive[0] == 6 > alive[-1] >= 1
    assert alive == sorted(alive, reverse=True)
    predictor = TextPredictor(find_checkpoint(path_of(tmp_path, 20)), Options())
    assert predictor.predict_line("the film is good").startswith("positive")
    kept = read_directory(path_of(tmp_path, 20), Classification(("negative", "positive"))).parameters
    assert f"{CLASSIFIER}.weight" in kept
    assert not any(name.startswith(MORE_CLASSIFIERS) for name in kept)


def train_heads(world: World, data_dir: Path, checkpoint: Path, output_dir: Path, *steps: int) -> None:
    """Train until each of these steps; a job for two_ranks too."""
    output_dir.mkdir(exist_ok=True)
    files = {"data_dir": data_dir, "checkpoint": checkpoint}
    for last in steps:
        train(job_of(files, output_dir, *SIX, max_steps=last, world_size=world.size), world)


@pytest.mark.slow
def test_a_resumed_run_keeps_the_choice_bit_for_bit_and_two_ranks_end_the_same_heads(files, two_ranks, tmp_path):
    for name, steps in (("whole", (14,)), ("cut", (9, 14)), ("one", (12,))):
        train_heads(World(), *files.values(), tmp_path / name, *steps)
    assert sum(remembered(tmp_path / "cut", 9)["alive_heads"]) < 6
    assert remembered(tmp_path / "cut", 14) == remembered(tmp_path / "whole", 14)
    weights = [(path_of(tmp_path / name, 14) / "model.safetensors").read_bytes() for name in ("cut", "whole")]
    assert weights[0] == weights[1]
    two_ranks.run(train_heads, *files.values(), tmp_path / "two", 12)
    one, two = (remembered(tmp_path / name, 12) for name in ("one", "two"))
    assert one["alive_heads"] == two["alive_heads"]
    np.testing.assert_allclose(one["head_losses"], two["head_losses"], rtol=1e-5)


OLD = {"heads": 6, "orthogonality": 0.5, "elimination": 0.005, "label_attention": 0, "class_weights": "none"}


def test_the_keys_of_earlier_recipes_are_moved_on_reading():
    recipe = recipe_from_table({"objective": OLD})
    assert recipe.finetuning == Multiverse(heads=6, orthogonality=0.5)
    assert recipe_from_table({}, ["objective.heads=6", "objective.orthogonality=0.5"]) == recipe
    assert recipe_of_record({"objective": OLD | {"heads": 1, "orthogonality": 1.0}}).finetuning == Classifier()


def test_only_a_classification_has_several_heads_and_all_of_them_weigh_labels_alike(files, tmp_path):
    several = Files(None, numbered(tmp_path / "numbers", 40), (numbered(tmp_path / "numbers", 20),))
    regression = Finetuning(
        Texts(own_data("regression", several, ("text",), "score")), find_checkpoint(files["checkpoint"])
    )
    for key in ("finetuning.head=multiverse", "objective.heads=6"):
        with pytest.raises(UserError, match=r"head = 'multiverse': a regression does not read it; expected 'classifi"):
            regression.job(tmp_path, overrides=[key])
    for setting, message in (
        ("orthogonality=0.5", "'classifier' has no such setting; .* or finetuning.head = multiverse"),
        ("class_weights=balanced finetuning.head=multiverse", "'multiverse' has no such setting; expected none"),
        ("heads=1 finetuning.head=multiverse", "finetuning.heads = 1: expected at least 2"),
    ):
        with pytest.raises(UserError, match=message):
            job_of(files, tmp_path, *f"finetuning.{setting}".split())


def test_a_run_says_that_it_is_an_experiment(files, tmp_path):
    (notices,) = (
        hook.args[-2] for hook in job_of(files, tmp_path, *SIX).hooks if getattr(hook, "func", None) is Outcome
    )
    assert "finetuning.head = 'multiverse' is an experiment, which did not pay where it was measured" in "".join(
        notices
    )
