"""Questions are answered from files of three kinds and from lines, by what evaluation answers with."""

import csv
import dataclasses
import io
import json
from pathlib import Path

import pytest

from bert_horovod.corpus.reading.squad_files import read_squad
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.finetuning.kinds.kinds import open_predictor
from bert_horovod.inference.options import Options
from bert_horovod.inference.predicting import Predictor
from bert_horovod.interchange.huggingface import write_directory
from bert_horovod.interchange.tokenizer_files import read_tokenizer
from bert_horovod.model.parameters import initial_values
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.tasks.span import Span
from tests.toy_glue import MODEL, write_checkpoint
from tests.toy_squad import STRIDE, paragraph, write_json, write_squad
from tests.toy_tokenizers import write_kind


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[bool, Path]:
    """By whether they may abstain."""
    directory = tmp_path_factory.mktemp("models")
    return {
        abstains: write_checkpoint(directory / str(abstains), Span(True, abstains, STRIDE))
        for abstains in (False, True)
    }


@pytest.fixture(scope="module")
def predictors(checkpoints) -> dict[bool, Predictor]:
    return {abstains: open_predictor(find_checkpoint(path), Options()) for abstains, path in checkpoints.items()}


@pytest.fixture(scope="module")
def squad(tmp_path_factory) -> Path:
    return write_squad(tmp_path_factory.mktemp("squad") / "files", "2.0", train=1) / "dev-v2.0.json"


def predict(predictor: Predictor, source: Path, output: Path) -> str:
    done = []
    message = predictor.predict_file(source, output, lambda *progress: done.append(progress))
    assert done[-1][0] == done[-1][1]
    return message


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_a_directory_of_answers_keeps_no_odds_of_earlier_ones(tmp_path, predictors, squad):
    (tmp_path / "null_odds.json").write_text("{}")
    predict(predictors[False], squad, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"predictions.json", "nbest_predictions.json"}


def test_answers_of_a_byte_level_tokenizer_begin_and_end_with_no_space(tmp_path):
    found = read_tokenizer(write_kind(tmp_path / "tokenizer", "modernberts"), None)
    model = dataclasses.replace(MODEL, vocab_size=len(found.vocabulary), max_position_embeddings=64)
    task = Span(True, False, STRIDE)
    parameters = initial_values(task.parameters(model), 0.2, 1)
    write_directory(tmp_path / "model", model, task, parameters, found.vocabulary, found.settings)
    context = "  the  film was   good \u00a0 and  bad  "
    (tmp_path / "in.jsonl").write_text(json.dumps({"question": "was it", "context": context}))
    (tmp_path / "out").mkdir()
    predict(open_predictor(find_checkpoint(tmp_path / "model"), Options()), tmp_path / "in.jsonl", tmp_path / "out")
    (n_best,) = json.loads((tmp_path / "out" / "nbest_predictions.json").read_text()).values()
    texts = [answer["text"] for answer in n_best]
    assert all(text == text.strip() != "" and text in context for text in texts)
    assert len(set(texts)) == len(texts) > 3


@pytest.mark.parametrize("abstains", [False, True])
def test_squads_files_and_tables_get_the_same_answers(predictors, squad, tmp_path, abstains, monkeypatch):
    predictor, questions = predictors[abstains], read_squad(squad)
    predict(predictor, squad, tmp_path / "texts.json")
    monkeypatch.setattr("bert_horovod.inference.span_predictor._QUESTIONS_AT_ONCE", 4)
    predict(predictor, squad, tmp_path / "table.csv")
    with open(tmp_path / "in.jsonl", "w", encoding="utf-8") as file:
        for question, context in zip(questions.questions, questions.contexts, strict=True):
            file.write(json.dumps({"context": context, "question": question}) + "\n")
    predict(predictor, tmp_path / "in.jsonl", tmp_path / "again.csv")
    texts = json.loads((tmp_path / "texts.json").read_text(encoding="utf-8"))
    table, again = rows_of(tmp_path / "table.csv"), rows_of(tmp_path / "again.csv")
    assert list(texts) == [row["id"] for row in table] == questions.ids
    assert list(texts.values()) == [row["answer"] for row in table] == [row["answer"] for row in again]
    assert [row["id"] for row in again] == [str(number) for number in range(len(again))]
    for row, context in zip(table, questions.contexts, strict=True):
        assert context[int(row["begin"]) : int(row["end"])] == row["answer"]
        assert 0 < float(row["probability"]) <= 1
        if abstains:
            assert (float(row["null_odds"]) > 0) == (not row["answer"])
    assert any(texts.values())
    assert ("null_odds" in table[0]) == abstains


def test_a_directory_gets_all_that_fine_tuning_writes(predictors, squad, tmp_path):
    assert predict(predictors[True], squad, tmp_path) == f"21 answers: {tmp_path}"
    contents = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()}
    assert set(contents) == {"predictions.json", "nbest_predictions.json", "null_odds.json"}
    assert len({tuple(content) for content in contents.values()}) == 1


def test_a_line_is_answered_as_the_same_row_of_a_file(predictors, tmp_path):
    context = "the film was good and the hero is fine. " * 4
    (tmp_path / "in.tsv").write_text(f"question\tcontext\nthe plot\t{context}\n")
    predict(predictors[False], tmp_path / "in.tsv", tmp_path / "out.tsv")
    _, row = (line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines())
    answer, probability, place = predictors[False].predict_line(f"the plot\t{context}").split("\t")
    assert (answer, place) == (row[1], f"characters={row[3]}-{row[4]}")
    assert probability == f"probability={float(row[2]):.4f}"


def test_the_threshold_decides_who_abstains(checkpoints, squad, tmp_path):
    counts = []
    for threshold in (-1e6, 1e6):
        predict(
            open_predictor(find_checkpoint(checkpoints[False]), Options(null_score_threshold=threshold)),
            squad,
            tmp_path / "o.json",
        )
        counts.append(list(json.loads((tmp_path / "o.json").read_text()).values()).count(""))
    assert counts == [21, 0]


def test_long_contexts_and_empty_ones_are_answered(predictors, tmp_path):
    contexts = ["film " * 4_000 + "good", "", "a"]
    paragraphs = [paragraph(context, (f"q{number}", "plot", None)) for number, context in enumerate(contexts)]
    predict(predictors[False], write_json(tmp_path / "in.json", paragraphs), tmp_path / "out.csv")
    rows = rows_of(tmp_path / "out.csv")
    assert [row["answer"] for row in rows][1:] == ["", "a"]
    assert rows[0]["answer"] in contexts[0]


def test_mistakes_are_refused(checkpoints, predictors, tmp_path):
    for options, match in (
        (Options(sequence_length=8), "--sequence_length 8: expected 16 to 32"),
        (Options(doc_stride=0), "--doc_stride 0: expected at least 1"),
        (Options(text_columns=("context",)), "--text_columns context: expected two"),
    ):
        with pytest.raises(UserError, match=match):
            open_predictor(find_checkpoint(checkpoints[True]), options)
    with pytest.raises(UserError, match="has 1 texts; expected question and context"):
        predictors[True].predict_line("only a question")
    (tmp_path / "in.tsv").write_text("q\tc\na\tb\n")
    with pytest.raises(UserError, match="no column 'question'"):
        predict(predictors[True], tmp_path / "in.tsv", tmp_path / "out.tsv")
    named = open_predictor(find_checkpoint(checkpoints[True]), Options(text_columns=("q", "c")))
    with pytest.raises(UserError, match="cannot write"):
        predict(named, tmp_path / "in.tsv", tmp_path / "absent" / "out.tsv")


def test_a_checkpoint_without_its_head_is_damaged(checkpoints, tmp_path):
    other = write_checkpoint(tmp_path / "model")
    config = json.loads((other / "config.json").read_text()) | {"architectures": ["BertForQuestionAnswering"]}
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(DamagedData, match=r"lacks qa_outputs\.bias, qa_outputs\.weight"):
        open_predictor(find_checkpoint(other), Options())
