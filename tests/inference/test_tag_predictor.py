"""A checkpoint finds entities in words and in texts, as transformers' logits say, with places in the user's text."""

import csv
import dataclasses
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.corpus.reading.tag_schemes import entities
from bert_horovod.corpus.reading.tagged_files import read_tagged
from bert_horovod.corpus.reading.tokenizer import LocatedTokens
from bert_horovod.errors import UserError
from bert_horovod.finetuning.kinds.kinds import open_predictor
from bert_horovod.inference.options import Options
from bert_horovod.inference.tag_predictor import TagPredictor, WordTags
from bert_horovod.interchange.huggingface import describe_directory, write_directory
from bert_horovod.interchange.tokenizer_files import read_tokenizer
from bert_horovod.model.parameters import initial_values
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.tasks.token_classification import TokenClassification
from tests.toy_glue import MODEL, WORDS, write_checkpoint
from tests.toy_tokenizers import TEXT, write_kind

TASK = TokenClassification(("O", "B-X", "I-X"))
TEXTS = ["the GOOD films, and a hero.", "", "  fìlm\u0301 plot bad poor  was é", "the plot is good " * 20]


def quiet(done: int, of: int) -> None:
    assert 0 < done <= of


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("predictor") / "tagger", TASK)


@pytest.fixture(scope="module")
def predictor(directory) -> TagPredictor:
    return open_predictor(find_checkpoint(directory), Options())


@pytest.fixture(scope="module")
def tags_of(directory, torch, transformers) -> Callable[[list[list[int]]], tuple[list[str], np.ndarray]]:
    """What transformers says of words, given as ids: the tag of each word's first piece, and its probability."""
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(directory).eval()

    def tags(words: list[list[int]]) -> tuple[list[str], np.ndarray]:
        with torch.no_grad():
            logits = theirs(torch.tensor([[2, *(piece for word in words for piece in word), 3]])).logits[0]
        shares = torch.softmax(logits, -1).numpy()[1 + np.cumsum([0, *map(len, words[:-1])])]
        return [TASK.labels[number] for number in shares.argmax(-1)], shares.max(-1)

    return tags


def test_sentences_that_share_a_row_of_a_long_model_have_no_longer_one_than_they_need(tmp_path):
    model = dataclasses.replace(MODEL, max_position_embeddings=2048)
    long = open_predictor(find_checkpoint(write_checkpoint(tmp_path / "model", TASK, model)), Options())
    for text in ("good film", "good film " * 300):
        long.spans([text, "bad"])
    assert (long.length, list(long._outputs)) == (2048, [512, 1024])


FIRST = [
    ("the", 0, 3),
    ("GOOD", 4, 8),
    ("films", 9, 14),
    (",", 14, 15),
    ("and", 16, 19),
    ("a", 20, 21),
    ("hero", 22, 26),
]


def ids_of(word: str) -> list[int]:
    return {"films": [WORDS.index("film"), WORDS.index("##s")], ",": [1]}.get(word) or [WORDS.index(word.lower())]


@pytest.mark.full
def test_spans_of_a_text_are_those_of_transformers_tags(tags_of, predictor):
    words = [*FIRST, (".", 26, 27)]
    tags, shares = tags_of([ids_of(word) for word, _, _ in words])
    assert set(tags) != {"O"}
    expected = [
        (words[begin][1], words[end - 1][2], kind, float(np.mean(shares[begin:end])))
        for kind, begin, end in entities(tags)
    ]
    (spans,) = predictor.spans(TEXTS[:1])
    assert [span[:3] for span in spans] == [span[:3] for span in expected]
    np.testing.assert_allclose([span.probability for span in spans], [span[3] for span in expected], atol=1e-5)


def test_spans_are_cut_out_of_the_users_own_text_however_it_is_given(tmp_path, directory, predictor):
    spans = predictor.spans(TEXTS)
    assert sum(map(len, spans)) > 3
    assert spans[1] == []
    for text, of_text in zip(TEXTS, spans, strict=True):
        assert all(span.entity == text[span.begin : span.end].strip() != "" for span in of_text)
        assert (
            predictor.predict_line(text)
            == "\t".join(
                f"{span.begin}-{span.end} {span.type} {span.probability:.4f} {span.entity}" for span in of_text
            )
            or len(text) > 60
        )  # rows of another length: other rounding

    whole = "\ufeff" + "\r\n".join(TEXTS) + "\r\n"
    with gzip.open(tmp_path / "in.txt.gz", "wb") as file:
        file.write(whole.encode())
    assert "lines" in predictor.predict_file(tmp_path / "in.txt.gz", tmp_path / "out.csv", quiet)
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["line"]) for row in rows] == [n for n, found in enumerate(spans, 1) for _ in found]
    assert all(whole[1:][int(row["begin"]) : int(row["end"])] == row["entity"] for row in rows)

    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"body": text, "id": [1]}) + "\n" for text in TEXTS))
    by_name = open_predictor(find_checkpoint(directory), Options(text_columns=("body",)))
    by_name.predict_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl", quiet)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    expected = [(n, *span) for n, of_text in enumerate(spans) for span in of_text]
    assert [tuple(row.values()) for row in found] == expected


@pytest.mark.full
def test_words_keep_their_columns_and_get_a_tag(tags_of, tmp_path, predictor):
    words = ["the", "good", "films", "\u200b", "plot"]
    tags, shares = tags_of([ids_of(word) for word in words if word != "\u200b"])
    tags.insert(3, "O")
    (tmp_path / "in.conll").write_text("".join(f"{word}\tNN\n" for word in words), encoding="utf-8")
    predictor.predict_file(tmp_path / "in.conll", tmp_path / "out.conll", quiet)
    lines = (tmp_path / "out.conll").read_text(encoding="utf-8").splitlines()
    assert lines == [f"{word}\tNN\t{tag}" for word, tag in zip(words, tags, strict=True)]
    (tmp_path / "in.jsonl").write_text(json.dumps({"tokens": words}))
    predictor.predict_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl", quiet)
    record = json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    assert (record["tokens"], record["tags"]) == (words, tags)
    np.testing.assert_allclose(record["probabilities"], [*shares[:3], 1, shares[3]], atol=1e-5)
    assert read_tagged(tmp_path / "out.jsonl").tags == [tags]


@pytest.mark.parametrize("sentences", [[["good"], [], ["film", "plot"]], [[], []]], ids=["some", "all"])
def test_an_object_without_words_has_its_line_in_the_output(tmp_path, predictor, sentences):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"tokens": words}) + "\n" for words in sentences))
    predictor.predict_file(source, output, quiet)
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert [answer["tokens"] for answer in answers] == sentences
    assert [len(answer["tags"]) for answer in answers] == [len(words) for words in sentences]


def test_a_long_sentence_is_read_in_windows_and_words_without_pieces_are_outside(tmp_path, predictor):
    (tmp_path / "in.conll").write_text("\n".join(["good"] * 200) + "\n\n\u200b\n\n\u200b\n", encoding="utf-8")
    predictor.predict_file(tmp_path / "in.conll", tmp_path / "out.conll", quiet)
    assert [len(tags) for tags in read_tagged(tmp_path / "out.conll").tags] == [200, 1, 1]
    assert read_tagged(tmp_path / "out.conll").tags[1:] == [["O"], ["O"]]
    (tmp_path / "in.conll").write_text("\u200b\n", encoding="utf-8")
    predictor.predict_file(tmp_path / "in.conll", tmp_path / "out.conll", quiet)
    assert read_tagged(tmp_path / "out.conll").tags == [["O"]]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (Options(sequence_length=64), "--sequence_length 64: expected 8 to 32"),
        (Options(text_columns=("a", "b")), "--text_columns a,b: expected one, of words or of texts"),
    ],
)
def test_options_that_do_not_fit_are_refused(directory, options, match):
    with pytest.raises(UserError, match=match):
        open_predictor(find_checkpoint(directory), options)


def test_labels_that_are_no_tags_are_refused(tmp_path):
    path = write_checkpoint(tmp_path / "tagger", TokenClassification(("O", "PER")))
    with pytest.raises(UserError, match="has the label 'PER'; expected O and tags as B-PER"):
        open_predictor(find_checkpoint(path), Options())


@pytest.mark.parametrize("kind", ["robertas", "xlm_robertas"])
def test_entities_of_other_tokenizers_begin_and_end_with_no_space(tmp_path, kind):
    found = read_tokenizer(write_kind(tmp_path / "tokenizer", kind), None)
    model = dataclasses.replace(MODEL, vocab_size=len(found.vocabulary))
    parameters = initial_values(TASK.parameters(model), 0.2, 1)
    write_directory(tmp_path / "tagger", model, TASK, parameters, found.vocabulary, found.settings)
    texts = [TEXT[0], f"   {TEXT[0].replace(' ', '   ')}  \u00a0 "]
    whole, spaced = open_predictor(find_checkpoint(tmp_path / "tagger"), Options()).spans(texts)
    assert whole
    assert spaced
    for text, spans in zip(texts, (whole, spaced), strict=True):
        for begin, end, _kind, _share, entity in spans:
            assert entity == text[begin:end] == entity.strip() != ""
            assert begin == 0 or not text[begin - 1 : begin + 1].isalpha()  # where a word begins


def test_words_are_read_as_the_tagger_learned_them(tmp_path):
    """transformers puts no blanks between words; its files have its version, and ours say that blanks are there."""
    found = read_tokenizer(write_kind(tmp_path / "tokenizer", "robertas"), None)
    model = dataclasses.replace(MODEL, vocab_size=len(found.vocabulary))
    parameters = initial_values(TASK.parameters(model), 0.2, 1)
    write_directory(tmp_path / "ours", model, TASK, parameters, found.vocabulary, found.settings)
    ours = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert ours.pop("words_after_blanks") is True
    assert open_predictor(find_checkpoint(tmp_path / "ours"), Options())._blanks
    (tmp_path / "ours" / "config.json").write_text(json.dumps(ours))
    assert open_predictor(find_checkpoint(tmp_path / "ours"), Options())._blanks
    (tmp_path / "ours" / "config.json").write_text(json.dumps(ours | {"transformers_version": "5.24.0"}))
    assert not open_predictor(find_checkpoint(tmp_path / "ours"), Options())._blanks
    _, _, (architecture, *_) = describe_directory(tmp_path / "ours")
    write_directory(tmp_path / "import", model, architecture, parameters, found.vocabulary, found.settings)
    assert not open_predictor(find_checkpoint(tmp_path / "import"), Options())._blanks


def test_blanks_are_no_word_of_an_entity(predictor, monkeypatch):
    """As if a tokenizer made a piece of the blanks, and the model gave it a tag."""
    text = "good   film "
    located = LocatedTokens(*(np.array(part, np.int32) for part in ([5, 9, 11], [0, 4, 6], [5, 6, 12], [3])))
    monkeypatch.setattr(predictor, "_locating", lambda texts: located)
    monkeypatch.setattr(predictor, "_tags", lambda *_: WordTags([["B-X", "O", "I-X"]], [[1.0, 0.5, 0.5]]))
    assert predictor.spans([text]) == [[(0, 11, "X", 0.75, "good   film")]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("in.conll", "the\nfilms\n\ngood\n\nplot\n"),
        ("in.txt", "".join(f"{t}\n" for t in TEXTS)),
        ("in.csv", "text\ngood films\nbad plot\n"),
    ],
)
def test_blocks_have_the_answers_of_the_whole_file_in_its_order(
    tmp_path, directory, predictor, monkeypatch, name, text
):
    (tmp_path / name).write_text(text, encoding="utf-8")
    report = predictor.predict_file(tmp_path / name, tmp_path / "whole.tsv", quiet)
    monkeypatch.setattr("bert_horovod.inference.tag_predictor.ITEMS_BYTES", 1)
    done = []
    in_blocks = open_predictor(find_checkpoint(directory), Options())
    again = in_blocks.predict_file(tmp_path / name, tmp_path / "blocks.tsv", lambda *progress: done.append(progress))
    assert again.partition(":")[0] == report.partition(":")[0]
    assert done == [(number, len(done)) for number in range(1, len(done) + 1)]
    assert len(done) > 1
    lines, others = ((tmp_path / f"{kind}.tsv").read_text(encoding="utf-8").split("\n") for kind in ("whole", "blocks"))
    rounded = re.compile(r"\t(0\.\d+)\t")  # rows of other texts: other rounding
    assert [rounded.sub("", line) for line in others] == [rounded.sub("", line) for line in lines]
