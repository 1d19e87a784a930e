"""Vectors of texts in a file: rows in order, long texts, prompts, dtypes, ranks; nothing half-written."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.collectives.world import World
from bert_horovod.errors import RunError
from bert_horovod.inference import embedding_predictor
from bert_horovod.inference.embedding_predictor import EmbeddingPredictor, unit
from bert_horovod.inference.options import Options
from bert_horovod.runs.opening import find_checkpoint
from tests.toy_glue import write_checkpoint
from tests.toy_vectors import PROMPTS, TEXTS, write_vectors


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return write_vectors(tmp_path_factory.mktemp("vectors") / "model")


@pytest.fixture(autouse=True)
def devices_are_taken(monkeypatch):
    monkeypatch.setattr("bert_horovod.runtime.devices.use_devices", lambda *arguments: None)


def predict(checkpoint: Path, source: Path, output: Path, *more: object) -> np.ndarray:
    words = ["predict", "--checkpoint", checkpoint, "--input", source, "--vectors", output, *more]
    assert dispatch(parse(["bert-horovod", *map(str, words)])) == 0
    return np.load(output)


def one_by_one(checkpoint: Path, texts: list[str], prompt: str) -> np.ndarray:
    predictor = EmbeddingPredictor(find_checkpoint(checkpoint), Options())
    return np.concatenate([predictor.vectors([text], prompt) for text in texts])


def test_row_i_is_the_vector_of_text_i_whatever_the_texts_beside_it(checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(embedding_predictor, "_BLOCK", 4000)  # bytes of a block of texts, and 1,024 a text
    texts = [f"{' '.join(['good', 'bad', 'film', 'hero'][: 1 + i % 4] * (1 + i % 7))} {i}" for i in range(30)]
    source = tmp_path / "in.csv"
    source.write_text("passage,number\n" + "".join(f"{text},{i}\n" for i, text in enumerate(texts)))
    vectors = predict(checkpoint, source, tmp_path / "out.npy", "--text_columns", "passage")
    output = capsys.readouterr()
    assert "30 vectors of 32 numbers, float32" in output.out
    assert "of length 1, of the text behind 'passage: '" in output.out
    assert "4 texts of more than 24 tokens were cut" in output.out
    assert "30/30 [" in output.err
    np.testing.assert_allclose(vectors, one_by_one(checkpoint, texts, PROMPTS[1]), atol=1e-6)
    half = predict(
        checkpoint, source, tmp_path / "half.npy",
        *("--text_columns", "passage", "--prompt", "query", "--dimensions", 8, "--vectors_dtype", "float16"),
    )  # fmt: skip
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, unit(one_by_one(checkpoint, texts, PROMPTS[0])[:, :8]), atol=1e-3)
    rough = predict(checkpoint, source, tmp_path / "rough.npy", "--text_columns", "passage", "--precision", "bfloat16")
    assert 0 < np.abs(rough - vectors).max() < 0.05


def test_lines_of_a_plain_text_are_texts_and_pairs_have_a_cosine(checkpoint, tmp_path):
    (tmp_path / "in.txt").write_text("good film\n\nbad\n")
    vectors = predict(checkpoint, tmp_path / "in.txt", tmp_path / "out.npy")
    np.testing.assert_allclose(vectors, one_by_one(checkpoint, ["good film", "", "bad"], ""), atol=1e-6)
    predictor = EmbeddingPredictor(find_checkpoint(checkpoint), Options())
    expected = predictor.vectors(["good film"], PROMPTS[0]) @ predictor.vectors(["bad"], PROMPTS[1]).T
    assert float(predictor.predict_line("good film\tbad")) == pytest.approx(float(expected[0, 0]), abs=2e-6)


def test_lines_with_carriage_returns_have_the_vectors_of_others_and_an_empty_file_is_refused(tmp_path, capsys):
    checkpoint = write_vectors(tmp_path / "model", "modernbert")  # whose bytes are all tokens
    (tmp_path / "lf.txt").write_bytes(b"good film\nbad\n")
    (tmp_path / "crlf.txt").write_bytes(b"good film\r\nbad\r\n")
    (tmp_path / "none.txt").touch()
    one, other = (predict(checkpoint, tmp_path / f"{name}.txt", tmp_path / f"{name}.npy") for name in ("lf", "crlf"))
    np.testing.assert_array_equal(one, other)
    words = ["--checkpoint", checkpoint, "--input", tmp_path / "none.txt", "--vectors", tmp_path / "none.npy"]
    assert dispatch(parse(["bert-horovod", "predict", *map(str, words)])) == 2
    assert "none.txt is empty; expected a text in each line" in capsys.readouterr().err


@pytest.mark.parametrize("columns", ["query,passage", "a,b"])
def test_a_table_of_pairs_has_cosines_behind_the_prompts_whatever_its_columns_are_called(tmp_path, columns):
    checkpoint = write_vectors(tmp_path / "model")
    (tmp_path / "in.csv").write_text(f"{columns},id\ngood film,bad,7\n")
    words = ["predict", "--checkpoint", checkpoint, "--input", tmp_path / "in.csv", "--output", tmp_path / "out.csv"]
    assert dispatch(parse(["bert-horovod", *map(str, words), "--text_columns", columns, "--keep", "id"])) == 0
    cosine = EmbeddingPredictor(find_checkpoint(checkpoint), Options()).predict_line("good film\tbad")
    assert (tmp_path / "out.csv").read_text() == f"index,prediction,id\n0,{cosine},7\n"


@pytest.mark.parametrize("prompt", ["", PROMPTS[0]])
def test_a_long_text_gets_the_mean_of_its_windows_each_behind_the_prompt(checkpoint, prompt):
    words = ["good", "bad", "film", "hero", "the", "plot", "is", "was", "fine", "poor", "and", "a"] * 4
    of_prompt = len(prompt.split())
    predictor = EmbeddingPredictor(find_checkpoint(checkpoint), Options(windows=True))
    whole, short = predictor.vectors([" ".join(words), "good film"], prompt)
    plain = EmbeddingPredictor(find_checkpoint(checkpoint), Options())
    plain.settings = plain.settings._replace(normalised=False)
    parts = [part.tolist() for part in np.array_split(words, 3)]  # 22 tokens fit into a row, with the prompt 19
    states = plain.vectors([" ".join(part) for part in parts], prompt)
    weights = [len(part) + of_prompt for part in parts]
    np.testing.assert_allclose(whole, unit(np.average(states, axis=0, weights=weights)), atol=1e-5)
    np.testing.assert_allclose(short, unit(plain.vectors(["good film"], prompt))[0], atol=1e-6)
    assert predictor.cut == 1


def test_each_window_is_behind_the_prompt_where_texts_are_put_in_lower_case_before_a_cased_tokenizer(tmp_path):
    checkpoint = write_vectors(tmp_path / "model", lowercase=True)
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(settings | {"do_lower_case": False}))
    predictor = EmbeddingPredictor(find_checkpoint(checkpoint), Options(windows=True))
    long = "good bad film hero " * 12
    np.testing.assert_array_equal(predictor.vectors([long], "The Film is "), predictor.vectors([long], "the film is "))


def test_any_checkpoint_has_vectors(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "model")
    (tmp_path / "in.txt").write_text("good film\nbad\n")
    assert predict(checkpoint, tmp_path / "in.txt", tmp_path / "out.npy").shape == (2, 16)


def test_a_file_that_changes_while_it_is_read_leaves_nothing(checkpoint, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("good\nbad\n")
    predictor = EmbeddingPredictor(find_checkpoint(checkpoint), Options())
    read = predictor._texts
    predictor._texts = lambda *arguments: (3, read(*arguments)[1])
    with pytest.raises(RunError, match=r"in.txt has 2 texts, and had 3 before: it was changed; start again"):
        predictor.write_vectors(source, tmp_path / "out.npy", "float32", lambda *_: None)
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt"}


def write_on_ranks(world: World, checkpoint: str, source: str, output: str) -> str:
    predictor = EmbeddingPredictor(find_checkpoint(Path(checkpoint)), Options(text_columns=("passage",)))
    with pytest.MonkeyPatch.context() as patch:  # the ranks live on
        patch.setattr(embedding_predictor, "_BLOCK", 4000)
        return predictor.write_vectors(Path(source), Path(output), "float32", lambda *_: None, world)


@pytest.mark.full
def test_ranks_share_the_texts_and_rank_0_writes_the_same_bytes(two_ranks, checkpoint, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"passage": text}) + "\n" for text in TEXTS * 3))
    answers = two_ranks.run(write_on_ranks, str(checkpoint), str(source), str(tmp_path / "two.npy"))
    alone = write_on_ranks(World(), str(checkpoint), str(source), str(tmp_path / "one.npy"))
    assert (tmp_path / "two.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()
    assert answers[0].value.replace("two.npy", "one.npy") == alone
