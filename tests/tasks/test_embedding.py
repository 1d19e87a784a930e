"""Sentence vectors and their losses: those of sentence-transformers and of NumPy, in one pass and in two."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.batches.examples.embedding_rows import EmbeddingRows, tokenised_texts
from bert_horovod.batches.layout import special_ids
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.costs.buckets import by_size
from bert_horovod.errors import DamagedData
from bert_horovod.interchange.huggingface import HuggingFace, read_directory, write_directory
from bert_horovod.interchange.sentence_transformers import vectors_of
from bert_horovod.model.forward import ComputePolicy, Forward
from bert_horovod.model.parameters import SENTENCE_VECTORS
from bert_horovod.model.weights import cast_weights
from bert_horovod.recipe_files.loading import recipe_from_table
from bert_horovod.runs.state import Progress
from bert_horovod.tasks.embedding import Embedding
from bert_horovod.training.building import build_step
from bert_horovod.training.step_results import StepInputs, flat, together
from tests.model.architectures.lines import LINES, SIZES
from tests.toy_glue import MODEL, WORDS, write_checkpoint
from tests.toy_runs import new_state
from tests.toys import toy_recipe_table

DRY = dataclasses.replace(MODEL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
PAIRS = 12
_RANDOM = np.random.default_rng(0)


def text(number: int, column: int) -> str:
    """No two are equal, because sentence-transformers takes equal texts for negatives."""
    first = f"{WORDS[5 + (number + column) % 4]} {WORDS[9 + number // 4]}"
    return " ".join([first, *_RANDOM.choice(WORDS[5:], 1 + number % 4)])


TEXTS = tuple([text(number, column) for number in range(PAIRS)] for column in range(3))
SCORES = np.arange(PAIRS) % 5 / 4


def batches_of(texts: tuple[list[str], ...], micro_batches: int, scores: np.ndarray | None = None) -> list[dict]:
    """Rows of several pairs each, and one of padding, as micro-batches."""
    tokens = tokenised_texts(texts, (), scores, Tokenizer(WORDS, UNCASED))
    rows = EmbeddingRows(tokens, special_ids(WORDS, UNCASED), 32, 0)
    positions = np.full(-(-(rows.count + 1) // micro_batches) * micro_batches, -1)
    positions[: rows.count] = np.arange(rows.count)
    return [rows.assemble(part) for part in np.split(positions, micro_batches)]


def gradients(task: Embedding, parameters: dict, batches: list[dict]) -> tuple[float, dict[str, np.ndarray]]:
    """The loss of a step, and its gradients as the exchange gets them."""
    table = toy_recipe_table(model=dataclasses.asdict(DRY), execution={"xla": "off"})
    recipe = recipe_from_table(table)
    shapes = task.parameters(DRY)
    step = build_step(recipe, task, new_state(parameters, Progress()), World(), by_size(shapes, 1 << 20), len(batches))
    count = sum(task.batch_counts(batch)["pairs"] for batch in batches)
    inputs = StepInputs({"pairs": np.float32(count)}, np.float32(0), np.zeros(1, np.uint64), {})
    sent = [together(flat(batch, 0, inputs)) for batch in batches]
    first_pass = step._first_pass.run(sent) if len(batches) > 1 else [{}]
    loss, total = 0.0, {name: np.zeros(shape) for name, shape in shapes.items()}
    for batch, more in zip(batches, first_pass, strict=True):
        tensors = {name: tf.constant(array) for name, array in batch.items()}
        dense, lookups, sums = step.forward_backward(tensors | more, tf.constant(0, tf.uint64), inputs)
        loss += float(sums[0]) / count
        for name, gradient in dense.items():
            total[name] += gradient.numpy()
        for name, part in lookups.items():
            np.add.at(total[name], part.indices.numpy(), part.values.numpy())
    return loss, total


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("vectors") / "model", Embedding(("a", "b")), DRY)


def theirs(directory: Path, pooling: str) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    encoder = Transformer(str(directory))
    return SentenceTransformer(modules=[encoder, Pooling(DRY.hidden_size, pooling)], device="cpu")


BOTH = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("texts", "options", "loss", "settings"),
    [
        pytest.param(2, {}, "MultipleNegativesRankingLoss", {}, id="pairs"),
        pytest.param(3, {}, "MultipleNegativesRankingLoss", {}, id="triples"),
        pytest.param(2, {"symmetric": True}, "MultipleNegativesRankingLoss", BOTH, id="symmetric"),
        pytest.param(3, {}, "CachedMultipleNegativesRankingLoss", {"mini_batch_size": 3}, id="cached"),
        pytest.param(2, {"pooling": "first"}, "MultipleNegativesRankingLoss", {}, id="first"),
        pytest.param(2, {"lengths": (16, 8, 4)}, "MatryoshkaLoss", {}, id="matryoshka"),
        pytest.param(2, {"scored": True}, "CoSENTLoss", {}, id="scores"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_loss_and_gradients_are_those_of_sentence_transformers(directory, torch, texts, options, loss, settings):
    from sentence_transformers.sentence_transformer import losses

    task = Embedding(("a", "b", "c")[:texts], **options)
    model = theirs(directory, "cls" if task.pooling == "first" else "mean").train()
    if task.lengths:
        settings = {"loss": losses.MultipleNegativesRankingLoss(model), "matryoshka_dims": list(task.lengths)}
    criterion = getattr(losses, loss)(model, **settings)
    features = [model.preprocess(side) for side in TEXTS[:texts]]
    value = criterion(features, torch.tensor(SCORES, dtype=torch.float32) if task.scored else None)
    value.backward()
    expected = {name.removeprefix("0.model."): each.grad for name, each in model.named_parameters()}
    parameters = read_directory(directory, task).parameters
    for micro_batches in (1, 4):
        batches = batches_of(TEXTS[:texts], micro_batches, SCORES if task.scored else None)
        ours, found = gradients(task, parameters, batches)
        assert ours == pytest.approx(value.item(), abs=1e-5)
        largest = max(float(np.abs(each).max()) for each in found.values())
        for name, gradient in found.items():
            other = expected[name.removeprefix("bert.")]
            np.testing.assert_allclose(gradient, other.numpy(), atol=1e-5 * largest, rtol=1e-4, err_msg=name)


# The losses, written from their formulas


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x)


def ranking(anchors, rights, others, anchor_numbers, right_numbers, other_numbers) -> float:
    """The sum of the anchors' cross-entropies; number 0 is none."""
    total, pairs = 0.0, {*zip(anchor_numbers, right_numbers, strict=True)}
    for anchor, right, mine in zip(anchors, rights, anchor_numbers, strict=True):
        if mine:
            logits = [20 * unit(anchor) @ unit(right)]
            logits += [
                20 * unit(anchor) @ unit(other)
                for other, number in zip(others, other_numbers, strict=True)
                if number and (mine, number) not in pairs
            ]
            total += np.log(np.sum(np.exp(logits))) - logits[0]
    return total


def cosent(vectors: np.ndarray, targets: np.ndarray) -> float:
    cosines = [unit(a) @ unit(b) for a, b in vectors]
    return np.log(
        1
        + sum(
            np.exp(20 * (cosines[i] - cosines[j]))
            for i in range(len(targets))
            for j in range(len(targets))
            if targets[i] < targets[j]
        )
    )


@pytest.mark.parametrize("texts", [2, 3])
@pytest.mark.parametrize("symmetric", [False, True])
def test_ranking_is_that_of_numpy_over_all_rows_and_equal_texts_are_no_negatives(texts, symmetric):
    random = np.random.default_rng(2)
    vectors = random.normal(size=(4, 3, texts, 8))  # rows, items, texts, hidden
    numbers = random.integers(1, 9, (4, 3, texts))  # many are equal
    numbers[1, 2] = numbers[3, 1:] = 0  # no items
    numbers[0, 1, 2:] = 0  # an item without a negative
    task = Embedding(("a", "b", "c")[:texts], lengths=(8, 5), symmetric=symmetric)
    arrays = {
        "vectors": tf.constant(vectors, tf.float32),
        "text_numbers": tf.constant(numbers, tf.int32),
        "weights": tf.constant(numbers[:, :, 0] > 0, tf.float32),
    }
    parts = [{name: array[rows] for name, array in arrays.items()} for rows in (slice(0, 1), slice(1, 4))]
    ours = sum(float(task.batch_loss(part, arrays)) for part in parts)
    expected = 0.0
    for length in (8, 5):
        flat_vectors, flat_numbers = vectors[..., :length].reshape(12, texts, length), numbers.reshape(12, texts)
        a, p, a_number, p_number = *flat_vectors[:, :2].swapaxes(0, 1), *flat_numbers[:, :2].T
        others = flat_vectors[:, 1:].reshape(-1, length), flat_numbers[:, 1:].ravel()
        loss = ranking(a, p, others[0], a_number, p_number, others[1])
        if symmetric:
            loss = (loss + ranking(p, a, a, p_number, a_number, a_number)) / 2
        expected += loss
    assert ours == pytest.approx(expected, rel=1e-5)


def test_scores_are_compared_over_all_rows_as_numpy_does():
    random = np.random.default_rng(3)
    vectors, targets = random.normal(size=(4, 2, 2, 8)), random.integers(0, 4, (4, 2)).astype(float)
    weights = np.array([[1, 1], [1, 0], [1, 1], [0, 0]])
    arrays = {"vectors": vectors, "targets": targets, "weights": weights}
    arrays = {name: tf.constant(array, tf.float32) for name, array in arrays.items()}
    task = Embedding(("a", "b"), scored=True)
    parts = [{name: array[rows] for name, array in arrays.items()} for rows in (slice(0, 3), slice(3, 4))]
    ours = sum(float(task.batch_loss(part, arrays)) for part in parts)
    real = weights > 0
    assert ours == pytest.approx(5 * cosent(vectors[real], targets[real]), rel=1e-5)


# Vectors and files


@pytest.mark.full
@pytest.mark.parametrize("name", ["bert", "albert", "roberta", "modernbert"])
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_vectors_are_those_of_each_class_of_transformers(name, pooling, tmp_path, torch, transformers):
    line = LINES[name]
    torch.manual_seed(0)
    config = getattr(transformers, line.configuration)(**SIZES | line.settings, attn_implementation="eager")
    original = getattr(transformers, line.kind)(config).eval()
    original.save_pretrained(tmp_path / "theirs")
    task = Embedding(("a", "b"), pooling)
    read = read_directory(tmp_path / "theirs", task)
    encoder_parameters = {key: read.parameters[key] for key in task.parameters(read.model)}
    counts = np.array([[5, 9], [2, 7]])  # positions of the texts of two pairs
    runs = np.append(counts.ravel(), 32 - counts.sum())
    ids = np.random.default_rng(1).integers(5, 60, (1, 32)) * (np.arange(32) < counts.sum())
    starts = np.cumsum(runs)[:-1] - runs[:-1]
    places = np.concatenate([np.arange(run) for run in runs])[None] * (ids > 0)
    batch = {
        "input_ids": np.where(ids, ids, 1 if name == "roberta" else 0),
        "token_type_ids": np.zeros_like(ids),
        "position_ids": places,
        "sequence_ids": np.repeat([1, 2, 3, 4, 0], runs)[None],
        "cls_positions": starts.reshape(1, 2, 2),
    }
    parameters = {key: tf.constant(array) for key, array in encoder_parameters.items()}
    forward = Forward(read.model, cast_weights(parameters, tf.float32), ComputePolicy())
    ours = task.outputs(forward, {key: tf.constant(array, tf.int32) for key, array in batch.items()})["vectors"]
    words = [*WORDS, *(f"word{i}" for i in range(SIZES["vocab_size"] - len(WORDS)))]
    directory = tmp_path / "theirs"
    if name != "roberta":  # whose tokenizer is of another kind
        directory = tmp_path / "ours"
        write_directory(directory, read.model, task, encoder_parameters, words, UNCASED)
        found = vectors_of(HuggingFace(directory).configuration)
        assert (found.pooling, found.max_seq_length) == (task.pooling, read.model.max_position_embeddings)
    encoder, info = transformers.AutoModel.from_pretrained(
        directory, output_loading_info=True, attn_implementation="eager"
    )
    assert all("pooler" in key for key in info["missing_keys"])
    assert directory == tmp_path / "theirs" or not info["unexpected_keys"]
    for text, start in enumerate(starts):
        own = torch.tensor(ids[:, start : start + runs[text]])
        with torch.no_grad():
            states = encoder.eval()(own).last_hidden_state[0]
        expected = states.mean(0) if pooling == "mean" else states[0]
        np.testing.assert_allclose(ours[0, text // 2, text % 2], expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "entry",
    [{"pooling": "max"}, {"prompts": ["query: "]}, {"max_seq_length": "all"}],
    ids=str,
)
def test_a_damaged_configuration_is_refused(entry):
    config = Embedding(("a", "b"), "first", ("query: ", ""), (16, 8), 32).configuration(MODEL)
    found = vectors_of(config)
    assert (found.pooling, found.prompts["a"], found.max_seq_length) == ("first", "query: ", 32)
    assert vectors_of({}) is None
    with pytest.raises(DamagedData, match="sentence_vectors"):
        vectors_of(config | {SENTENCE_VECTORS: config[SENTENCE_VECTORS] | entry})
