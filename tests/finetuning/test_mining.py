"""Hard negatives: those of sentence-transformers, none that is right, and the same after an interruption."""

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.corpus.reading.table_files import PLAIN
from bert_horovod.errors import RunError
from bert_horovod.finetuning import mining
from bert_horovod.finetuning.query_passages import read_query_passages
from bert_horovod.tasks.text_head import Reranking
from tests.horovod_runs import PROJECT
from tests.toy_glue import WORDS, write_checkpoint
from tests.toy_vectors import write_vectors

SQUAD = PROJECT.parent / "shared" / "data" / "finetune" / "squad" / "xquad.en.json.gz"


@pytest.fixture(autouse=True)
def devices_are_taken(monkeypatch):
    monkeypatch.setattr("bert_horovod.runtime.devices.use_devices", lambda *arguments: None)


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    return write_toy(tmp_path_factory.mktemp("mining"))


def write_toy(path: Path) -> Path:
    """Checkpoints of vectors and of a reranker, 24 pairs of 16 queries, and a corpus that lacks 10 passages."""
    draw = random.Random(1)
    write_vectors(path / "model")
    write_checkpoint(path / "ranks", Reranking("score", ("query", "passage")))
    queries = [" ".join(draw.choices(WORDS[5:], k=4)) for _ in range(16)]
    texts = [f"{queries[row % 16]} {WORDS[5 + row // 2]}" for row in range(24)]
    texts += [" ".join(draw.choices(WORDS[5:], k=draw.randint(2, 9))) for _ in range(36)]
    rows = [{"query": queries[row % 16], "passage": texts[row]} for row in range(24)]
    (path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "corpus.txt").write_text("\n".join(texts[10:]) + "\n")
    return path


def mine(output: Path, *words: object) -> list[dict]:
    assert dispatch(parse(["bert-horovod", "mine", "--output", *map(str, (output, *words))])) == 0
    return [json.loads(line) for line in output.read_text().splitlines()]


def of_toy(toy: Path, *words: object) -> list[dict]:
    given = "--checkpoint", toy / "model", "--input", toy / "pairs.jsonl", "--corpus", toy / "corpus.txt"
    return mine(toy / "out.jsonl", *given, "--sampling", "top", "--scores", "--per_query", 3, *words)


SETTINGS = [  # of the command, of sentence-transformers, and what its version 6.2.0 found for the first pairs
    (
        ("--ranks", "1-8"),
        {"range_max": 8},
        "47 50 26/28 13 23/28 13 10/21 12 59/8 10 5/39 10 57/8 7 54/22 6 8/43 4 54/39 10 47/39 28 57",
    ),
    (
        ("--ranks", "3-9", "--margin", 0.002),
        {"range_min": 2, "range_max": 9, "absolute_margin": 0.002},
        "57 1 18/49 18 54/////14 23 43//28 53 5//47 42 8",
    ),
    (
        ("--ranks", "2-20", "--margin", "0.1%", "--max_score", 0.995),
        {"range_min": 1, "range_max": 20, "relative_margin": 0.001, "max_score": 0.995},
        "13 39 2/14 49 18//11 34 53///4 14 23/53 4 43/54 28 53/1 0 4/47 42 8",
    ),
]


@pytest.mark.parametrize(("words", "_", "kept"), SETTINGS)
def test_negatives_are_those_that_sentence_transformers_has_found(toy, words, _, kept):
    rows = of_toy(toy, *words)
    texts = list(dict.fromkeys([row["passage"] for row in rows] + (toy / "corpus.txt").read_text().splitlines()))
    found = [[texts.index(text) for text in row["negative"]] for row in rows]
    assert found[:11] == [[int(number) for number in numbers.split()] for numbers in kept.split("/")]
    assert found[16:] == found[:8]  # other passages of the same queries


@pytest.mark.full
@pytest.mark.parametrize(  # theirs asks the reranker only where its scores decide
    ("words", "theirs", "ranked"),
    [(*each[:2], False) for each in SETTINGS] + [(*each[:2], True) for each in SETTINGS[1:]],
)
def test_negatives_and_scores_are_those_of_sentence_transformers(toy, words, theirs, ranked):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list([json.loads(line) for line in (toy / "pairs.jsonl").read_text().splitlines()])
    expected = sentence_transformers.util.mine_hard_negatives(
        table,
        sentence_transformers.SentenceTransformer(str(toy / "model"), device="cpu"),
        corpus=(toy / "corpus.txt").read_text().splitlines(),
        cross_encoder=sentence_transformers.CrossEncoder(str(toy / "ranks"), device="cpu") if ranked else None,
        num_negatives=3,
        output_format="labeled-list",
        output_scores=True,
        verbose=False,
        **theirs,
    )
    found = of_toy(toy, *words, *(("--reranker", toy / "ranks") if ranked else ()))
    expected = {(row["query"], row["passage"][0]): (row["passage"][1:], row["scores"]) for row in expected}
    found = {(row["query"], row["passage"]): (row["negative"], row["scores"]) for row in found if row["negative"]}
    assert len(found) > (0 if ranked else 8)
    assert found.keys() == expected.keys()
    for key, (texts, scores) in expected.items():
        assert found[key][0] == texts
        np.testing.assert_allclose(found[key][1], scores, atol=2e-5)


def vectors_of(texts: list[str]) -> np.ndarray:
    """Hashed words, as vectors of length 1."""
    made = np.zeros((len(texts), 256), np.float32)
    for row, text in enumerate(texts):
        for word in text.lower().split():
            made[row, sum(map(ord, word)) * 31 % 256] += 1
    return made / np.maximum(np.linalg.norm(made, axis=1, keepdims=True), 1e-9)


def test_no_passage_that_is_right_for_a_query_and_no_equal_text_is_a_negative(tmp_path):
    if not SQUAD.is_file():
        pytest.skip(f"needs {SQUAD}")
    rows = []
    for article in json.loads(gzip.decompress(SQUAD.read_bytes()))["data"]:
        for paragraph in article["paragraphs"]:
            rows += [{"query": one["question"], "passage": paragraph["context"]} for one in paragraph["qas"]]
    rows += [{"query": row["query"], "passage": f" {row['passage'].upper()}"} for row in rows[:99]]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, column in (("q", "query"), ("p", "passage")):
        np.save(tmp_path / f"{name}.npy", vectors_of([row[column] for row in rows]))
    files = f"{tmp_path / 'q.npy'},{tmp_path / 'p.npy'}"
    source = ("--vectors", files, "--input", tmp_path / "in.jsonl")
    found = mine(tmp_path / "out.jsonl", *source, "--ranks", "1-5", "--per_query", 5, "--sampling", "top")
    right: dict[str, set[str]] = {}
    for row in rows:
        right.setdefault(row["query"].lower(), set()).add(row["passage"].strip().lower())
    assert len(found) == len(rows)
    for row in found:
        assert len(row["negative"]) == 5
        assert not {text.strip().lower() for text in row["negative"]} & right[row["query"].lower()]
    drawn = mine(tmp_path / "out.jsonl", *source, "--ranks", "1-5", "--per_query", 2)
    assert all(set(few["negative"]) < set(row["negative"]) for few, row in zip(drawn, found, strict=True))
    assert drawn == mine(tmp_path / "out.jsonl", *source, "--ranks", "1-5", "--per_query", 2)
    assert drawn != mine(tmp_path / "out.jsonl", *source, "--ranks", "1-5", "--per_query", 2, "--seed", 1)


def test_a_command_that_was_killed_goes_on_and_writes_the_same(toy, monkeypatch):
    monkeypatch.setattr(mining, "_QUERIES", 3)
    monkeypatch.setattr(mining, "_TEXTS", 8)
    monkeypatch.setattr(mining, "_PASSAGES", 7)
    words = ("--ranks", "1-8")
    expected = of_toy(toy, *words)
    nearest_passages, calls = mining.nearest_passages, []

    def killed(queries: np.ndarray, *arguments: object) -> np.ndarray:
        calls.append(len(queries))
        if len(calls) == 4:
            raise RunError("killed")
        return nearest_passages(queries, *arguments)

    (toy / "out.jsonl").unlink()
    monkeypatch.setattr(mining, "nearest_passages", killed)
    with pytest.raises(AssertionError):
        of_toy(toy, *words)
    (kept,) = toy.glob(".out.jsonl.*.partial")
    assert not (toy / "out.jsonl").exists()
    with open(kept / "found", "ab") as file:
        file.write(b"half a block")
    assert of_toy(toy, *words) == expected
    assert len(calls) == 4 + 16 // 3 + 1 - 3  # the three whole blocks are kept
    assert not [*toy.glob(".out*")]


def test_no_negative_is_empty_and_ranks_behind_the_last_passage_need_nothing(tmp_path):
    (tmp_path / "in.csv").write_text("query,passage\na,b\nd,e\n")
    (tmp_path / "corpus.txt").write_bytes(b"b\r\ne\r\n\r\n  \r\nf\r\n")
    for name, count in (("q", 2), ("p", 5)):
        np.save(tmp_path / f"{name}.npy", np.ones((count, 3), np.float32))
    words = ("--vectors", f"{tmp_path / 'q.npy'},{tmp_path / 'p.npy'}", "--input", tmp_path / "in.csv")
    words = *words, "--corpus", tmp_path / "corpus.txt", "--ranks", "1-99999", "--per_query", 9
    assert [row["negative"] for row in mine(tmp_path / "out.jsonl", *words)] == [["e", "f"], ["b", "f"]]
    pairs = read_query_passages(tmp_path / "in.csv", ("query", "passage"), None, tmp_path, PLAIN)
    assert mining.Miner(pairs, mining.Mining((1, 99_999))).places == 2


def test_a_corpus_of_one_column_has_no_header_where_columns_are_numbers(tmp_path):
    (tmp_path / "in.tsv").write_text("a\tb\nc\td\n")
    (tmp_path / "corpus.tsv").write_text("first\nsecond\n")
    for columns, expected in ((("1", "2"), ["first", "second", "b", "d"]), (("a", "b"), ["second", "d"])):
        pairs = read_query_passages(tmp_path / "in.tsv", columns, tmp_path / "corpus.tsv", tmp_path, PLAIN)
        assert pairs.passages(np.arange(len(pairs.passages.first))) == expected


def test_what_is_kept_is_of_these_pairs_and_columns(tmp_path):
    """A query's passages decide about the pairs that a reranker judges, and a column's name about its prompt."""
    keys = set()
    for first, second in ((["b", "c"], ["d"]), (["b"], ["c", "d"])):
        for columns in (("query", "passage"), ("q", "p")):
            rows = [dict(zip(columns, row, strict=True)) for row in (("a", first), ("e", second))]
            (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            pairs = read_query_passages(tmp_path / "in.jsonl", columns, None, tmp_path, PLAIN)
            keys.add(mining.Miner(pairs, mining.Mining()).key())
    assert len(keys) == 4


def test_a_table_has_a_column_for_each_negative_and_empty_ones_where_there_are_fewer(tmp_path, capsys):
    (tmp_path / "in.csv").write_text("query,passage\na,b\na,c\nd,e\n")
    np.save(tmp_path / "q.npy", np.eye(3, 4)[[0, 0, 1]])
    np.save(tmp_path / "p.npy", np.float16([[1, 0, 0, 0], [0.5, 0.25, 0, 0], [0.25, 1, 0, 0]]))
    words = "--vectors", f"{tmp_path / 'q.npy'},{tmp_path / 'p.npy'}", "--input", tmp_path / "in.csv"
    words = *words, "--ranks", "1-2", "--per_query", 2, "--output", tmp_path / "the output.csv", "--scores"
    assert dispatch(parse(["bert-horovod", "mine", *map(str, words)])) == 0
    assert (tmp_path / "the output.csv").read_text() == (
        'query,passage,negative_1,negative_2,scores\na,b,e,,"[1.0, 0.25]"\na,c,e,,"[0.5, 0.25]"\n'
        'd,e,c,b,"[1.0, 0.25, 0.0]"\n'
    )
    printed = capsys.readouterr().out
    assert "\nnegatives   4; 2 pairs with fewer than 2, 0 of them with none\n" in printed
    assert printed.endswith("/the output.csv' --text_columns query,passage,negative_1,negative_2 ...\n")
    assert dispatch(parse(["bert-horovod", "mine", *map(str, words), "--max_score", "-2"])) == 0
    assert "warning: no pair has a negative" in capsys.readouterr().out


def test_a_link_that_is_the_output_leads_to_the_negatives_whose_file_keeps_its_rights(tmp_path):
    (tmp_path / "in.csv").write_text("query,passage\na,b\nd,e\n")
    np.save(tmp_path / "q.npy", np.ones((2, 3), np.float32))
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "kept.jsonl", tmp_path / "out.jsonl"
    target.touch(0o600)
    link.symlink_to(target)
    words = "--vectors", f"{tmp_path / 'q.npy'},{tmp_path / 'q.npy'}", "--input", tmp_path / "in.csv"
    assert [row["negative"] for row in mine(link, *words, "--ranks", "1-2")] == [["e"], ["b"]]
    assert link.is_symlink()
    assert (target.stat().st_mode & 0o777, target.stat().st_size > 0) == (0o600, True)


def test_vectors_that_are_not_finite_or_no_array_are_refused_and_leave_nothing(tmp_path, capsys):
    (tmp_path / "in.csv").write_text("query,passage\na,b\nd,e\n")
    np.save(tmp_path / "q.npy", np.float32([[1, 0], [np.nan, 0]]))
    before, words = {*tmp_path.iterdir()}, ("--vectors", f"{tmp_path / 'q.npy'},{tmp_path / 'q.npy'}")
    words = *words, "--input", tmp_path / "in.csv", "--output", tmp_path / "out.csv"
    assert dispatch(parse(["bert-horovod", "mine", *map(str, words)])) == 2
    assert "q.npy has numbers that are not finite; expected vectors as predict" in capsys.readouterr().err
    assert {*tmp_path.iterdir()} == before
    array = (tmp_path / "q.npy").read_bytes()
    (tmp_path / "q.npy").write_bytes(array.replace(b"}", b"("))
    assert dispatch(parse(["bert-horovod", "mine", *map(str, words)])) == 2
    assert "q.npy: " in (said := capsys.readouterr().err)
    assert "expected a .npy of predict --vectors" in said
    assert {*tmp_path.iterdir()} == before
