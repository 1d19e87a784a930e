"""Several heads: the penalty and its gradient against NumPy, the loss against single heads; dead heads have no part."""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.model.parameters import CLASSIFIER, MORE_CLASSIFIERS, initial_values
from bert_horovod.tasks.multiverse import ALIVE, MultiverseClassification, similarity
from bert_horovod.tasks.text_head import Classification
from tests.model.forwards import forward_of, tensors
from tests.tasks.test_heads import batch
from tests.toy_glue import MODEL

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


def test_similarity_is_1_of_equal_heads_and_0_of_orthogonal_ones():
    alive = tf.ones([2])
    assert np.isclose(float(similarity(tf.ones([2, 3, 8]), alive)), 1)
    assert float(similarity(tf.reshape(tf.eye(6, 8), [2, 3, 8]), alive)) == 0


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
