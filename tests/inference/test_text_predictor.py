"""A fine-tuned checkpoint answers for files and lines: what transformers computes of the same texts.

What a head's outputs say: one function for evaluation, submissions and predictions.

A reranker's directory is a CrossEncoder of sentence-transformers as it is, with equal scores.
"""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.corpus.reading.table_files import Table
from bert_horovod.corpus.table_writing import table_text
from bert_horovod.errors import ReportedError, UserError
from bert_horovod.finetuning.kinds.kinds import open_predictor
from bert_horovod.inference.options import Options
from bert_horovod.inference.predicting import line_length
from bert_horovod.inference.text_predictor import (
    RerankPredictor,
    TextPredictor,
    answers,
    joined_labels,
    probabilities,
    text_task,
)
from bert_horovod.interchange.huggingface import HuggingFace
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.tasks.text_head import Classification, Regression, Reranking, ranks
from tests.toy_glue import MODEL, write_checkpoint

TASK = Classification(("negative", "neutral", "positive"), ("first", "second"))
PAIRS = [("the film is good", "is it"), ("bad", ""), ("a plot and a hero .", "the film was poor ."), ("fine", "a film")]
# [CLS] A [SEP] B [SEP] of each, as ids of tests.toy_glue.WORDS, and the types.
IDS = [
    [2, 9, 11, 13, 5, 3, 13, 1, 3],
    [2, 7, 3, 3],
    [2, 10, 12, 16, 10, 19, 18, 3, 9, 11, 14, 8, 18, 3],
    [2, 6, 3, 10, 11, 3],
]


def quiet(done: int, of: int) -> None:
    assert 0 < done <= of


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("predictor") / "classifier", TASK)


@pytest.fixture(scope="module")
def predictor(directory) -> TextPredictor:
    return open_predictor(find_checkpoint(directory), Options())


@pytest.fixture(scope="module")
def expected(directory) -> np.ndarray:
    return of_transformers(directory)


def of_transformers(directory: Path) -> np.ndarray:
    """The probabilities of PAIRS."""
    theirs = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    rows = []
    with torch.no_grad():
        for ids in IDS:
            types = np.cumsum(np.array(ids) == 3) - (np.array(ids) == 3) > 0
            inputs = {"input_ids": torch.tensor([ids]), "token_type_ids": torch.tensor(types[None].astype(np.int64))}
            rows.append(torch.softmax(theirs(**inputs).logits, -1)[0].numpy())
    return np.stack(rows)


def test_an_albert_answers_too(tmp_path):
    model = dataclasses.replace(MODEL, embedding_size=8, shared_layers=1, hidden_act="gelu_new")
    directory = write_checkpoint(tmp_path / "albert", TASK, model)
    predictor = open_predictor(find_checkpoint(directory), Options())
    for (first, second), shares in zip(PAIRS, of_transformers(directory), strict=True):
        _, *columns = predictor.predict_line(f"{first}\t{second}").split("\t")
        np.testing.assert_allclose([float(text.split("=")[1]) for text in columns], shares, atol=1e-4)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "tsv"])
def test_a_files_answers_are_those_of_transformers(tmp_path, predictor, expected, suffix):
    source, output = tmp_path / "in.csv", tmp_path / f"out.{suffix}"
    source.write_text("second,first\n" + "".join(f"{b},{a}\n" for a, b in PAIRS), encoding="utf-8")
    assert predictor.predict_file(source, output, quiet) == f"4 predictions: {output}"
    text = output.read_text(encoding="utf-8").splitlines()
    if suffix == "jsonl":
        lines = [list(json.loads(line).values()) for line in text]
    else:
        separator = {"csv": ",", "tsv": "\t"}[suffix]
        heading, *lines = (line.split(separator) for line in text)
        assert heading == ["index", "prediction", *(f"probability_{label}" for label in TASK.labels)]
    assert [int(line[0]) for line in lines] == [0, 1, 2, 3]
    assert [line[1] for line in lines] == [TASK.labels[number] for number in expected.argmax(-1)]
    assert np.ptp(expected, axis=0).max() > 0.01  # pairs differ, so that equality says something
    np.testing.assert_allclose([[float(share) for share in line[2:]] for line in lines], expected, atol=1e-5)


def test_blocks_have_the_answers_of_the_whole_file_in_its_order(tmp_path, directory, predictor, monkeypatch):
    source = tmp_path / "in.csv"
    source.write_text("second,first\n" + "".join(f"{b},{a}\n" for a, b in PAIRS), encoding="utf-8")
    predictor.predict_file(source, tmp_path / "whole.jsonl", quiet)
    monkeypatch.setattr("bert_horovod.inference.text_predictor.ITEMS_BYTES", 1)
    done = []
    in_blocks = open_predictor(find_checkpoint(directory), Options(keep=None))
    in_blocks.predict_file(source, tmp_path / "blocks.jsonl", lambda *progress: done.append(progress))
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    whole, blocks = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("whole", "blocks")
    )
    for row, other, (first, second) in zip(whole, blocks, PAIRS, strict=True):
        assert other == pytest.approx(row | {"second": second, "first": first}, abs=2e-6)
    source.write_text(source.read_text() + "one field\n")
    (tmp_path / "blocks.jsonl").unlink()
    with pytest.raises(UserError, match="line 6: 1 fields, expected 2"):
        in_blocks.predict_file(source, tmp_path / "blocks.jsonl", lambda *_: pytest.fail("answered before it was read"))
    assert [path.name for path in tmp_path.glob("*blocks*")] == []


def test_a_lines_answer_is_that_of_the_file(predictor, expected):
    for (first, second), shares in zip(PAIRS, expected, strict=True):
        label, *columns = predictor.predict_line(f"{first}\t{second}").split("\t")
        assert label == TASK.labels[shares.argmax()]
        assert [text.split("=")[0] for text in columns] == list(TASK.labels)
        np.testing.assert_allclose([float(text.split("=")[1]) for text in columns], shares, atol=1e-4)


def test_a_line_with_another_number_of_texts_is_refused(predictor):
    with pytest.raises(UserError, match="has 1 texts; expected two texts a line, with a tab between"):
        predictor.predict_line("good")


def test_a_longer_text_is_cut_and_an_empty_one_answered(tmp_path):
    path = write_checkpoint(tmp_path / "model", Classification(("no", "yes"), ("text",)))
    cutting = open_predictor(find_checkpoint(path), Options(sequence_length=8))
    assert cutting.predict_line("good " * 6) == cutting.predict_line("good " * 90)
    assert cutting.predict_line("").split("\t")[0] in ("no", "yes")


def test_texts_that_share_a_row_of_a_long_model_have_no_longer_one_than_they_need(tmp_path):
    model = dataclasses.replace(MODEL, max_position_embeddings=2048)
    path = write_checkpoint(tmp_path / "model", Classification(("no", "yes"), ("text",)), model)
    predictor = open_predictor(find_checkpoint(path), Options())
    for text in ("good film", "good film " * 300):
        predictor.answers(([text, "bad"],), packing=True)
    assert (predictor.length, list(predictor._outputs)) == (2048, [512, 1024])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (Options(text_columns=("other", "second")), "no column 'other'"),
        (Options(sequence_length=0), "--sequence_length 0: expected 8 to 32"),
        (Options(sequence_length=4), "--sequence_length 4: expected 8 to 32"),
        (Options(sequence_length=64), "--sequence_length 64: expected 8 to 32"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, directory, options, match):
    (tmp_path / "in.csv").write_text("first,second\na,b\n")
    with pytest.raises(UserError, match=match):
        open_predictor(find_checkpoint(directory), options).predict_file(
            tmp_path / "in.csv", tmp_path / "out.csv", quiet
        )


def test_columns_of_a_checkpoint_that_does_not_say_them_are_asked_for_unless_there_is_one(tmp_path):
    opened = open_predictor(
        find_checkpoint(write_checkpoint(tmp_path / "model", Classification(("no", "yes")))), Options()
    )
    (tmp_path / "in.csv").write_text("a,b\nc,d\n")
    with pytest.raises(UserError, match=r"--text_columns; .*in.csv has \['a', 'b'\]"):
        opened.predict_file(tmp_path / "in.csv", tmp_path / "out.csv", quiet)
    (tmp_path / "in.csv").write_text("review\nthe film\n")
    opened.predict_file(tmp_path / "in.csv", tmp_path / "out.csv", quiet)
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 2


def test_a_checkpoint_without_names_has_two_labels_as_transformers_leaves_them_out():
    assert text_task(Path("x"), {}) == Classification(("LABEL_0", "LABEL_1"))
    assert text_task(Path("x"), {"id2label": {"0": "x"}}) == Regression("x")


def test_the_likeliest_label_is_the_first_of_equal_ones():
    assert answers(np.array([[1, 3, 2], [5, 5, 0]], np.float32), 3).tolist() == [1, 0]


def test_a_real_number_is_the_shortest_decimal_that_means_it():
    assert answers(np.array([[4.87], [0.1]], np.float32), 0).tolist() == [4.87, 0.1]


def test_probabilities_are_the_softmax_and_large_logits_do_not_overflow():
    computed = probabilities(np.array([[0, np.log(3)], [1000, 0]], np.float32))
    assert computed.dtype == np.float64
    assert computed[0].tolist() == pytest.approx([0.25, 0.75])
    assert computed[1].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("names", "separator"), [(["a", "b"], "\t"), (["a", "b"], "\n"), (["a\tb"], ","), (["a,b"], ","), ([" a"], ",")]
)
def test_labels_that_a_field_of_tsv_would_change_are_a_json_list(names, separator):
    written = table_text(Path("a.tsv"), ["prediction"], [[joined_labels(names, separator)]]).splitlines()[1]
    assert json.loads(written) == names


def test_labels_that_a_field_holds_are_plain():
    assert joined_labels(["a b", "c"], ",") == "a b,c"


QUERIES = [("good", "fine film"), ("bad film", "good fine bad"), ("fine", "bad film good bad fine film good")]
QUERIES += [("good fine bad film", "film bad fine good"), ("good fine bad film fine", "bad fine film good")]  # are cut


def change(file: Path, **entries: object) -> None:
    """Change entries of a JSON file, which is made if needed; None takes one away."""
    content = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({key: value for key, value in (content | entries).items() if value is not None}))


SIGMOID = "torch.nn.modules.activation.Sigmoid"
OF_MODEL = "config_sentence_transformers.json"
ALONE = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]
IDENTITY = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
WRITTEN = {  # what other versions of sentence-transformers write into files of a CrossEncoder
    "5": {},
    "5 without": {"config.json": {"sentence_transformers": {"version": "5.0.0"}}},
    "3": {"config.json": {"sentence_transformers": None, "sbert_ce_default_activation_function": SIGMOID}},
    "6": {
        "config.json": {"sentence_transformers": None},
        OF_MODEL: {"model_type": "CrossEncoder", "activation_fn": SIGMOID},
        "modules.json": ALONE,
        "sentence_bert_config.json": {"transformer_task": "sequence-classification"},
    },
    "identity": {"config.json": IDENTITY},
    "5 and 6": {  # the later one's file decides
        "config.json": IDENTITY,
        OF_MODEL: {"model_type": "CrossEncoder", "activation_fn": SIGMOID},
        "modules.json": ALONE,
        "sentence_bert_config.json": {"transformer_task": "sequence-classification"},
    },
    "short": {"tokenizer_config.json": {"model_max_length": 10}},
    "short 6": {
        OF_MODEL: {"model_type": "CrossEncoder", "activation_fn": None},
        "modules.json": ALONE,
        "sentence_bert_config.json": {"transformer_task": "sequence-classification", "max_seq_length": 10},
    },
}


def write_entries(file: Path, entries: dict[str, object] | list[object]) -> None:
    """Change entries of a JSON file, or write a list."""
    if isinstance(entries, list):
        file.write_text(json.dumps(entries))
    else:
        change(file, **entries)


def reranker(directory: Path, version: str) -> Path:
    write_checkpoint(directory, Reranking("label", ("query", "passage")))
    for name, entries in WRITTEN[version].items():
        write_entries(directory / name, entries)
    return directory


@pytest.mark.parametrize("version", WRITTEN)
def test_a_cross_encoder_of_each_version_ranks_and_goes_on_to_do_so(tmp_path, version):
    reader = HuggingFace(reranker(tmp_path / "model", version))
    assert ranks(reader.configuration) == (version != "identity")
    assert reader.max_length == (10 if version.startswith("short") else reader.model.max_position_embeddings)
    assert dispatch(parse(["bert-horovod", "import", str(tmp_path / "model"), str(tmp_path / "imported")])) == 0
    imported = HuggingFace(tmp_path / "imported")
    assert imported.configuration["sentence_transformers"] == reader.configuration["sentence_transformers"]
    assert imported.max_length == reader.max_length


@pytest.mark.parametrize(
    ("file", "entries", "message"),
    [
        ("config.json", {"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}, "Tanh' is not supported; exp"),
        ("config.json", {"sentence_transformers": 5}, "sentence_transformers = 5; expected an object"),
        (OF_MODEL, {"default_prompt_name": "query"}, "default_prompt_name = 'query' is not supported of a Cross"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case is not supported of a CrossEncoder"),
        (
            "tokenizer_config.json",
            {"model_max_length": 5},
            "texts are cut to 5 tokens; expected 8 to 32: give another length as --sequence_length of predict",
        ),
        ("modules.json", [*ALONE, {"path": "1", "type": "x.LogitScore"}], "modules are Transformer, LogitScore; exp"),
    ],
)
def test_what_is_not_done_of_a_cross_encoder_is_refused(tmp_path, file, entries, message):
    directory = reranker(tmp_path / "model", "5" if file == "config.json" else "6")
    write_entries(directory / file, entries)
    with pytest.raises(ReportedError, match=re.escape(message)):
        open_predictor(find_checkpoint(directory), Options())


def test_one_output_without_a_word_about_it_is_given_as_it_is_with_a_warning(tmp_path, capfd):
    directory = reranker(tmp_path / "model", "5")
    change(directory / "config.json", sentence_transformers=None, problem_type=None)
    predictor = open_predictor(find_checkpoint(directory), Options())
    assert type(predictor) is TextPredictor
    assert "nothing says whether its one output is a number or a CrossEncoder's score" in capfd.readouterr().err
    change(directory / "config.json", problem_type="regression")
    open_predictor(find_checkpoint(directory), Options())
    assert not capfd.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("version", WRITTEN)
def test_cross_encoder_gives_the_same_scores(tmp_path, version):
    pytest.importorskip("torch")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    directory = reranker(tmp_path / "model", version)
    predictor = open_predictor(find_checkpoint(directory), Options())
    assert isinstance(predictor, RerankPredictor) == (version != "identity")
    ours = [score for (score,) in predictor.answers(tuple(map(list, zip(*QUERIES, strict=True))), packing=True)]
    model = sentence_transformers.CrossEncoder(str(predictor.checkpoint.directory), device="cpu")
    np.testing.assert_allclose(ours, model.predict(QUERIES), atol=2e-6)
    assert len(set(ours)) > 1


def test_a_line_gets_the_next_power_of_two_from_16_on_and_never_more_than_the_row():
    lengths = {5: 16, 16: 16, 17: 32, 32: 32, 70: 100, 300: 100}
    assert {tokens: line_length(tokens, most=100) for tokens in lengths} == lengths


def test_no_kept_column_takes_the_name_of_another():
    table = Table(Path("a.csv"), ["prediction", "input_prediction", "text"], [(2, ["p", "q", "a"])])
    names, fields = Options(keep=None).kept(table, ["index", "prediction"])
    assert names == ["input_input_prediction", "input_prediction", "text"]
    assert fields == [["p", "q", "a"]]
    assert Options(keep=("prediction",)).kept(table, ["prediction"]) == (["input_prediction"], [["p"]])
