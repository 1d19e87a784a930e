"""SQuAD's files are read as they are, version 2.0 is noticed, and other files are refused with the reason."""

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bert_horovod.corpus.reading.squad_files import find_squad_file, read_squad
from bert_horovod.errors import DamagedData, UserError

FILE = {
    "version": "1.1",
    "data": [
        {
            "title": "A",
            "paragraphs": [
                {
                    "context": "Ünïcode 😀 text.",
                    "qas": [
                        {"id": "x", "question": "What?", "answers": [{"text": "text", "answer_start": 10}] * 2},
                        {"id": "y", "question": "Who?", "answers": [{"text": "Ünïcode", "answer_start": 0}]},
                    ],
                }
            ],
        },
        {"title": "B", "paragraphs": [{"context": "", "qas": []}]},
    ],
}
PARAGRAPH, QUESTION = ("data", 0, "paragraphs", 0), ("data", 0, "paragraphs", 0, "qas", 0)
REMOVE = object()


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def changed(place: tuple, value: Any) -> dict:
    content = copy.deepcopy(FILE)
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    if value is REMOVE:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return content


def test_a_file_is_read_in_its_order_and_may_be_compressed(tmp_path):
    (tmp_path / "dev.json.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(FILE).encode()))
    questions = read_squad(tmp_path / "dev.json.gz", scored=True)
    assert (questions.ids, questions.questions, questions.context_of) == (["x", "y"], ["What?", "Who?"], [0, 0])
    assert questions.contexts == ["Ünïcode 😀 text.", ""]
    assert questions.answers == [[("text", 10)] * 2, [("Ünïcode", 0)]]
    assert (questions.impossible, questions.version_2) == ([False, False], False)
    text, begin = questions.answers[0][0]
    assert questions.contexts[0][begin : begin + len(text)] == text


def test_is_impossible_makes_it_version_2(tmp_path):
    content = changed((*QUESTION, "answers"), [])
    content["data"][0]["paragraphs"][0]["qas"][0] |= {"is_impossible": True, "plausible_answers": [{"text": "text"}]}
    questions = read_squad(write(tmp_path / "f.json", content), scored=True)
    assert (questions.impossible, questions.version_2, questions.answers[0]) == ([True, False], True, [])


@pytest.mark.parametrize("file", ["65-order-ai.json", "65-order-ia.json"])
def test_a_file_is_version_2_whatever_the_order_of_its_questions(shared_data, tmp_path, file):
    questions = read_squad(shared_data / "cases" / file, scored=True)
    assert (questions.version_2, sorted(questions.impossible)) == (True, [False, True])
    content = json.loads((shared_data / "cases" / file).read_text())
    for question in content["data"][0]["paragraphs"][0]["qas"]:
        if question["answers"]:
            question["is_impossible"] = False  # marked, while the question without answers is not
        else:
            del question["is_impossible"]
    assert read_squad(write(tmp_path / "f.json", content), scored=True).version_2
    for question in content["data"][0]["paragraphs"][0]["qas"]:
        question.pop("is_impossible", None)
    with pytest.raises(UserError, match=r"\(id 'm2'\) has no answers, and no question is marked with is_impossible"):
        read_squad(write(tmp_path / "g.json", content), scored=True)


def test_questions_alone_need_no_answers(tmp_path):
    path = write(tmp_path / "f.json", changed((*QUESTION, "answers"), REMOVE))
    assert read_squad(path).answers[0] == []
    with pytest.raises(UserError, match=r"qas\[0\] has no 'answers'"):
        read_squad(path, scored=True)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ([], r"the file is \[\], expected an object with 'data'"),
        ({"version": "1.1"}, "the file has no 'data'"),
        ({"data": []}, "has no questions"),
        ({"data": {}}, r"'data' of the file is \{\}, expected a list"),
        ({"data": [[]]}, r"data\[0\] is \[\], expected an object with 'paragraphs'"),
        (changed((*PARAGRAPH, "context"), REMOVE), r"paragraphs\[0\] has no 'context'"),
        (changed((*PARAGRAPH, "context"), None), "'context' of .* is None, expected a text"),
        (changed((*PARAGRAPH, "context"), "half \ud83d"), r"'context' of .* holds half a character, '\\ud83d'"),
        (changed((*QUESTION, "id"), REMOVE), r"qas\[0\] has no 'id'"),
        (changed((*QUESTION, "id"), 7), "'id' of .* is 7, expected a text"),
        (changed((*QUESTION, "id"), "y"), r"qas\[1\] has the id 'y' of another question"),
        (changed((*QUESTION, "question"), REMOVE), "has no 'question'"),
        (changed((*QUESTION, "is_impossible"), "no"), "'is_impossible' of .* is 'no', expected true or false"),
        (changed((*QUESTION, "answers"), []), r"\(id 'x'\) has no answers, and no question is marked with"),
        (changed((*QUESTION, "answers", 0, "text"), REMOVE), r"answers\[0\] has no 'text'"),
        (changed((*QUESTION, "answers", 0, "answer_start"), "10"), "'answer_start' of .* is '10', expected a whole"),
    ],
)
def test_a_file_that_is_not_as_squads_is_refused(tmp_path, content, match):
    with pytest.raises(UserError, match=match):
        read_squad(write(tmp_path / "f.json", content), scored=True)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 200_000])
def test_a_file_that_is_no_json_is_damaged(tmp_path, content):
    (tmp_path / "f.json").write_bytes(content)
    with pytest.raises(DamagedData, match="is damaged"):
        read_squad(tmp_path / "f.json")
    (tmp_path / "f.json.gz").write_bytes(gzip.compress(json.dumps(FILE).encode())[:-9])
    with pytest.raises(DamagedData, match="truncated or damaged"):
        read_squad(tmp_path / "f.json.gz")


def test_files_are_found_by_split_and_two_versions_are_refused(tmp_path):
    (tmp_path / "train-v2.0.json.gz").touch()
    assert find_squad_file(tmp_path, "train").name == "train-v2.0.json.gz"
    (tmp_path / "train-v1.1.json").touch()
    with pytest.raises(UserError, match=r"has both train-v1\.1\.json and train-v2\.0\.json\.gz; name the one"):
        find_squad_file(tmp_path, "train")


def test_the_real_files_have_as_many_questions_as_published(shared_data):
    questions = read_squad(shared_data / "finetune" / "squad" / "dev-v2.0.json.gz", scored=True)
    assert (len(questions.ids), len(questions.contexts), sum(questions.impossible)) == (11_873, 1_204, 5_945)
    assert questions.version_2
