"""Sentence vectors from a user's files: scores, what changes nothing, one text a row, refused settings."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.examples.embedding_rows import EmbeddingRows
from bert_horovod.batches.layout import special_ids
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.errors import UserError
from bert_horovod.finetuning.embedding_scores import cosines_of, ranks_of, retrieval_scores, uniformity
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.embeddings import Embeddings
from bert_horovod.finetuning.sweep import Variant, train_all
from bert_horovod.inference.embedding_predictor import EmbeddingPredictor
from bert_horovod.inference.options import Options
from bert_horovod.interchange.huggingface import HuggingFace
from bert_horovod.interchange.sentence_transformers import vectors_of
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.training.loop import train
from tests.finetuning.kinds.cases import embeddings
from tests.horovod_runs import run_ranks
from tests.toy_glue import FAST, WORDS
from tests.toy_runs import metrics, newest
from tests.toy_vectors import write_vectors
from tests.toys import more_rows, toy_recipe

BATCH = ("data.packing=false", "phase.0.global_batch=16", "phase.0.sequence_length=32")
TRIPLES = {"prompts": ["the ", "a ", "a "], "matryoshka": "8", "symmetric": True}


def plain_ranks(vectors: np.ndarray, numbers: np.ndarray) -> list[int]:
    ranks = []
    for item, (anchor, *_) in enumerate(numbers.tolist()):
        own = {b for a, b, *_ in numbers.tolist() if a == anchor}
        others = {b: vectors[j, 1] for j, (_, b, *_) in enumerate(numbers.tolist()) if b not in own}
        best = vectors[item, 0] @ vectors[item, 1]
        ranks.append(1 + sum(vectors[item, 0] @ other >= best for other in others.values()))
    return ranks


def test_each_anchor_is_ranked_among_the_passages_that_are_not_right_for_it():
    random = np.random.default_rng(0)
    numbers = np.stack([random.integers(1, 30, 60), random.integers(30, 50, 60), random.integers(50, 60, 60)], 1)
    table = random.integers(-1, 2, (60, 4)).astype(np.float32)  # many are equal, and products are exact
    vectors = table[numbers]
    assert ranks_of(vectors, numbers).tolist() == plain_ranks(vectors, numbers)
    np.testing.assert_allclose(cosines_of(vectors), (vectors[:, 0] * vectors[:, 1]).sum(1), atol=1e-6)
    assert retrieval_scores(np.array([1, 3, 40])) == {
        "mrr_10": pytest.approx((1 + 1 / 3) / 3),
        "ndcg_10": pytest.approx((1 + 1 / 2) / 3),
        "recall_1": pytest.approx(1 / 3),
        "recall_10": pytest.approx(2 / 3),
    }
    corners = np.eye(2, dtype=np.float32)
    assert uniformity(np.concatenate([corners, -corners])) == pytest.approx(np.log((2 * np.exp(-4) + np.exp(-8)) / 3))


def read(tmp_path: Path, lines: list[dict], columns: str, **flags) -> Embeddings:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Embeddings.read("embedding", Files(None, path, (path,), (path,)), {"text_columns": columns} | flags)


def test_each_passage_of_a_list_has_all_wrong_ones_of_its_row(tmp_path):
    lines = [
        {"query": "a", "pos": ["[b]", "c"], "neg": ["d", None, "e"], "neg_scores": [0.1]},
        {"query": "f", "pos": "[1]", "neg": None, "more": {}},
        {"query": "g", "pos": ["h"], "neg": "i", "neg_scores": None},
    ]
    kind = read(tmp_path, lines, "query,pos,neg")
    expected = (["a", "a", "f", "g"], ["[b]", "c", "[1]", "h"], ["d", "d", "", "i"], ["e", "e", "", ""])
    for split in (kind.data.train, kind.data.dev[""], kind.data.test["test"]):
        assert split.examples.texts == expected
    (tmp_path / "dev.csv").write_text("query,pos\na,b\nf,g\n")  # needs no wrong passages
    files = Files(None, tmp_path / "pairs.jsonl", (tmp_path / "dev.csv",))
    judged = Embeddings.read("embedding", files, {"text_columns": "query,pos,neg"}).data.dev[""]
    assert judged.examples.texts == (["a", "f"], ["b", "g"])
    tokens = kind.tokens(kind.data.train, Tokenizer([*WORDS, *"abcdefghi"], UNCASED))
    assert (tokens.numbers > 0).sum(1).tolist() == [4, 4, 2, 3]  # an empty text is no candidate
    kind = read(tmp_path, [{"q": "a", "p": "b", "x": "c", "y": ""}, {"q": "d", "p": "e", "x": "", "y": "f"}], "q,p,x,y")
    assert kind.data.train.examples.texts == (["a", "d"], ["b", "e"], ["c", "f"], ["", ""])
    rows = EmbeddingRows(tokens, special_ids(WORDS, UNCASED), 12, 0)
    assert (rows.cut, kind.size(kind.data.train, rows)) == (1, "4 pairs, of which 1 are cut to 12 tokens")
    with pytest.raises(UserError, match=r"sequence_length = 11: a row has no room for the 4 texts .* least 12"):
        EmbeddingRows(tokens, special_ids(WORDS, UNCASED), 11, 0)
    with pytest.raises(UserError, match=r"--prompts: 4 given, .*and one for all wrong passages"):
        read(tmp_path, [{"q": "a", "p": "b", "x": "c", "y": ""}] * 2, "q,p,x,y", prompts=["", "", "", ""])


def losses_of(
    world: World, data: Path, checkpoint: Path, output_dir: Path, micro_batch: int, *more: str, **options
) -> list[float]:
    """Train on triples; a job for several ranks too."""
    output_dir.mkdir(exist_ok=True)
    kind = embeddings("query,passage,wrong", **TRIPLES)(data)
    settings = (*FAST, *BATCH, f"execution.micro_batch={micro_batch}", *more)
    train(Finetuning(kind, find_checkpoint(checkpoint)).job(output_dir, 2, settings, world.size, **options), world)
    return [line["loss"] for line in metrics(output_dir)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, checkpoint) -> tuple[Path, list[float]]:
    """The data, and the losses of a run of one rank and one micro-batch a step, with dropout."""
    directory = tmp_path_factory.mktemp("whole")
    return directory / "data", losses_of(World(), directory / "data", checkpoint, directory / "run", 16, max_steps=4)


KILLED = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from bert_horovod.batches.examples.embedding_rows import EmbeddingRows
from bert_horovod.batches.layout import special_ids
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from bert_horovod.training.hooks.base import Hook
from tests.finetuning import test_embeddings
class Kill(Hook):
    def step(self, event):
        if event.step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
train = test_embeddings.train
test_embeddings.train = lambda job, world: train(replace(job, hooks=(*job.hooks, Kill)), world)
test_embeddings.losses_of(World(), *map(Path, sys.argv[1:]), 4, "execution.checkpoint_steps=1", max_steps=4)
"""  # the checkpoint of step 1 is whole then, that of step 2 may be in writing


@pytest.mark.full
def test_micro_batches_change_nothing_and_a_killed_run_goes_on(whole, checkpoint, tmp_path):
    data, expected = whole
    killed = run_ranks(1, KILLED, str(data), str(checkpoint), str(tmp_path / "killed"))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert newest(tmp_path / "killed").name in ("step-00000001", "step-00000002")
    found = []
    for name in ("killed", "whole"):
        run, steps = tmp_path / name, "execution.checkpoint_steps=1"
        losses = losses_of(World(), data, checkpoint, run, 4, steps, max_steps=4)
        found.append((losses, (newest(run) / "model.safetensors").read_bytes()))
    np.testing.assert_allclose(found[1][0], expected, atol=1e-5)
    assert found[0] == found[1]
    assert losses_of(World(), data, checkpoint, tmp_path / "one", 1, max_steps=4) == pytest.approx(expected, abs=1e-5)


@pytest.mark.full
def test_bfloat16_learns_with_two_passes_and_its_vectors_are_near_those_of_float32(whole, checkpoint, tmp_path):
    data, expected = whole
    losses = losses_of(World(), data, checkpoint, tmp_path / "run", 4, "numerics.precision=bfloat16", max_steps=4)
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, expected, rtol=0.02)
    one, other = (
        EmbeddingPredictor(find_checkpoint(newest(run)), Options()).vectors(["good film", "the hero was bad", "a plot"])
        for run in (tmp_path / "run", data.with_name("run"))
    )
    assert (one * other).sum(1).min() > 0.99


@pytest.mark.full
@pytest.mark.parametrize("micro_batch", [8, 3])
def test_two_ranks_have_the_losses_of_one(whole, two_ranks, checkpoint, tmp_path, micro_batch):
    data, expected = whole
    answers = two_ranks.run(losses_of, data, checkpoint, tmp_path / "run", micro_batch, max_steps=4)
    np.testing.assert_allclose(answers[0].value, expected, atol=1e-5)


def test_empty_texts_of_both_parts_of_a_file_are_told(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("query,passage\n" + "".join(f"{'' if i % 2 else i},good {i}\n" for i in range(20)))
    kind = Embeddings.read("embedding", Files(None, path), {"dev_fraction": 0.5})
    told = [line for line in kind.notices(toy_recipe()) if "empty; each stands" in line]
    counts = [sum(not text for text in split.examples.texts[0]) for split in (kind.data.train, kind.data.dev[""])]
    assert sum(counts) == 10
    for line, part, count in zip(told, ("train", "dev"), counts, strict=True):
        assert line == f"warning: {path} ({part} part): {count} texts empty; each stands as [CLS] [SEP]"


@pytest.mark.full
@pytest.mark.parametrize("judged", [True, False])
def test_single_texts_learn_from_two_dropouts_and_are_judged_by_pairs_with_scores(checkpoint, tmp_path, judged):
    embeddings("query,passage")(tmp_path / "data")  # writes the files
    files = Files(None, tmp_path / "data" / "train.csv", (tmp_path / "data" / "dev.csv",))
    pairs = {"dev_columns": "query,passage", "label_column": "score"} if judged else {}
    kind = Embeddings.read("embedding", files, {"text_columns": "passage", "prompts": ["the "]} | pairs)
    job = Finetuning(kind, find_checkpoint(checkpoint)).job(tmp_path, 2, (*FAST, "execution.micro_batch=2"))
    (done,) = train_all([job], [Variant(None, None)], World(), lambda _: None)
    assert done.scores.keys() == ({"spearman", "pearson"} if judged else {"uniformity"})
    losses = [line["loss"] for line in metrics(tmp_path)]
    assert losses[-1] < losses[0]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    names = {name for line in lines for name in line if name.startswith("held_out")}
    assert names == ({"held_out_spearman", "held_out_pearson"} if judged else {"held_out_uniformity"})
    assert (tmp_path / "best.json").is_file() == judged
    prompts = HuggingFace(newest(tmp_path)).configuration["sentence_vectors"]["prompts"]
    assert prompts == {"query": "the ", "passage": "the "}  # sentence-transformers asks for the one of "query"
    if not judged:
        with pytest.raises(UserError, match="--early_stop 1: the dev set has no score that decides"):
            Finetuning(kind, find_checkpoint(checkpoint)).job(tmp_path, 2, FAST, early_stop=1)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("exchange.method='diloco'", "exchange.method = 'diloco': the ranks' parameters differ between steps"),
        (
            "exchange.method='parameters' exchange.interval=4",
            "exchange.method = 'parameters': the ranks' parameters differ",
        ),
        ("exchange.method='dreamddp'", "exchange.method = 'dreamddp': the ranks' parameters differ"),
        *more_rows("rows.RANKS_DIFFER"),
        ("execution.replay_steps=2", "execution.replay_steps = 2: a micro-batch of --task embedding cannot"),
        ("finetuning.class_weights=balanced", "class_weights = 'balanced': an embedding does not read it"),
    ],
)
def test_settings_with_which_vectors_of_a_step_cannot_be_compared_are_refused(checkpoint, tmp_path, setting, message):
    steps = [f"{name}=1200" for name in ("phase.0.steps", "execution.evaluate_steps", "execution.checkpoint_steps")]
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        Finetuning(embeddings("query,passage")(tmp_path / "data"), find_checkpoint(checkpoint)).job(
            tmp_path, 1, (*steps, *setting.split())
        )


def test_a_matryoshka_length_above_the_width_is_refused(checkpoint, tmp_path):
    with pytest.raises(UserError, match="--matryoshka 17: the checkpoint's vectors have 16 numbers"):
        Finetuning(embeddings("query,passage", matryoshka="17")(tmp_path / "data"), find_checkpoint(checkpoint)).job(
            tmp_path, 1, FAST
        )


@pytest.mark.parametrize(
    ("flags", "pooling", "prompts", "said"),
    [
        ({}, "first", ("query: ", "passage: "), "as the checkpoint says: pooling first, 'query: ' before each query"),
        ({"pooling": "mean"}, "mean", ("query: ", "passage: "), "--pooling mean: the checkpoint's vectors have the"),
        ({"prompts": ["", "a "]}, "first", ("", "a "), "--prompts: the checkpoint has 'query: ', 'passage: '"),
    ],
)
def test_what_a_checkpoint_says_of_its_vectors_goes_on_unless_a_flag_says_otherwise(
    tmp_path, flags, pooling, prompts, said
):
    directory = write_vectors(tmp_path / "model", pooling="first", prompts=("query: ", "passage: "))
    texts = json.loads((directory / "sentence_bert_config.json").read_text()) | {"do_lower_case": True}
    (directory / "sentence_bert_config.json").write_text(json.dumps(texts))
    kind = read(
        tmp_path, [{"query": f"Good film {i}", "passage": f"the plot {i}"} for i in range(9)], "query,passage", **flags
    )
    job = Finetuning(kind, find_checkpoint(directory)).job(tmp_path / "run", 1, ("data.packing=false",))
    assert (job.task.pooling, job.task.prompts, job.task.max_length, job.task.lowercase) == (pooling, prompts, 24, True)
    assert said in "\n".join(kind.notices(job.recipe))
    assert vectors_of(job.task.configuration(job.recipe.model)).lowercase


def test_vectors_of_a_kind_that_is_not_made_here_are_not_trained(tmp_path):
    directory = write_vectors(tmp_path / "model")
    modules = json.loads((directory / "modules.json").read_text())
    (directory / "modules.json").write_text(json.dumps([*modules, {"path": "3_Dense", "type": "x.Dense"}]))
    kind = read(tmp_path, [{"query": f"good film {i}", "passage": f"the plot {i}"} for i in range(9)], "query,passage")
    with pytest.raises(UserError, match="the module 'Dense' is not supported"):
        Finetuning(kind, find_checkpoint(directory))


def test_a_prompt_that_leaves_no_room_for_a_text_is_refused(tmp_path):
    checkpoint, long = find_checkpoint(write_vectors(tmp_path / "model", prompts=())), "the plot " * 11
    kind = read(
        tmp_path, [{"query": f"good {i}", "passage": f"a {i}"} for i in range(9)], "query,passage", prompts=["", long]
    )
    message = "has 22 tokens, and a row of 24 holds 22 beside"
    with pytest.raises(UserError, match=message):
        Finetuning(kind, checkpoint).job(tmp_path / "run", 1, ("data.packing=false",))
    with pytest.raises(UserError, match=message):
        EmbeddingPredictor(checkpoint, Options()).vectors(["good film"], long)
