"""Tagged sentences are read from CoNLL files and JSON Lines, and what is wrong is said with file and line."""

import gzip
import json
from pathlib import Path

import pytest

from bert_horovod.corpus.reading.tagged_files import (
    TagColumns,
    conll_text,
    kind_of_input,
    read_tagged,
    tagged_blocks,
    text_blocks,
)
from bert_horovod.errors import UserError

WORDS, TAGS = [["EU", "rejects"], ["Peter"]], [["B-ORG", "O"], ["B-PER"]]
OBJECTS = [{"tokens": words, "tags": tags} for words, tags in zip(WORDS, TAGS, strict=True)]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.mark.parametrize(
    "text",
    [
        "EU\tB-ORG\nrejects\tO\n\nPeter\tB-PER\n",
        "EU B-ORG\nrejects O\n\n\n\nPeter B-PER",
        "\ufeffEU\tB-ORG\r\nrejects\tO\r\n\r\nPeter\tB-PER\r\n",
        "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nPeter NNP B-NP B-PER\n",
        "EU B-ORG \nrejects O\n-DOCSTART- O\nPeter B-PER\n",
        "# id 1\tdomain=en\nEU _ _ B-ORG\nrejects _ _ O\n\n# id 2\tdomain=en\nPeter _ _ B-PER\n",
        "# a licence\n# newdoc\n# sent_id = 1\n# text = EU\nEU\tB-ORG\n#!\nrejects\tO\n\n# text\tx\nPeter\tB-PER\n",
    ],
)
def test_columns_have_tabs_or_blanks_between_and_documents_are_passed_over(tmp_path, text):
    sentences = read_tagged(write(tmp_path / "a.txt", text))
    assert (sentences.words, sentences.tags) == (WORDS, TAGS)
    for number, words in enumerate(WORDS):
        for place, word in enumerate(words):
            assert word in text.splitlines()[sentences.line(number, place) - 1]


def test_comments_are_counted_and_a_word_may_begin_with_their_sign(tmp_path):
    sentences = read_tagged(write(tmp_path / "a.conll", "# id = 1\n# O\n#eu B-X\n# this is said\nx O\n"))
    assert (sentences.words, sentences.comments) == ([["#", "#eu", "x"]], [1, 4])
    assert sentences.notices() == [
        f"{tmp_path / 'a.conll'}: 2 comments passed over, beginning with #, the first in line 1"
    ]
    assert read_tagged(write(tmp_path / "c.conll", "# one\nx O\n#id 12\n")).comments == [1, 3]
    assert read_tagged(write(tmp_path / "b.conll", "#a O\n#b O\n")).words == [["#a", "#b"]]


def test_bilou_is_read_as_iobes(tmp_path):
    sentences = read_tagged(write(tmp_path / "a.conll", "a B-X\nb L-X\n\nc U-Y\nd O\n"))
    assert sentences.tags == [["B-X", "E-X"], ["S-Y", "O"]]
    assert sentences.notices() == [f"{tmp_path / 'a.conll'}: tags of BILOU; its L and U are read as E and S"]
    path = write(tmp_path / "a.jsonl", lines({"tokens": ["c"], "tags": [1]}))
    assert read_tagged(path, TagColumns(names=("O", "U-Y"))).tags == [["S-Y"]]


@pytest.mark.parametrize("blank", ["\u00a0", "\u2028", "\u3000", "\x1c"])
def test_other_blanks_are_part_of_a_word(tmp_path, blank):
    sentences = read_tagged(write(tmp_path / "a.conll", f"New{blank}York  B-X\n{blank}\tO \n"))
    assert (sentences.words, sentences.tags) == ([[f"New{blank}York", blank]], [["B-X", "O"]])


def test_blocks_hold_the_sentences_in_their_order(tmp_path):
    path = write(tmp_path / "a.conll", "# id = 1\nEU O\n\n# id = 2\nPeter B-PER\n# it is said\ncame O\n")
    first, second = tagged_blocks(path, most=1)
    assert (first.words, second.words) == ([["EU"]], [["Peter", "came"]])
    assert [second.line(0, word) for word in range(2)] == [5, 7]


def test_flags_name_other_columns(tmp_path):
    path = write(tmp_path / "a.conll", "1 EU B-ORG NNP\n2 rejects O VBZ\n\n1 Peter B-PER NNP\n")
    for columns in (TagColumns("2", "3"), TagColumns("-3", "-2")):
        assert read_tagged(path, columns)[1:3] == (WORDS, TAGS)
    assert read_tagged(path, TagColumns("2"), tagged=False).tags == [[], []]


def test_json_lines_have_lists_of_names_or_numbers(tmp_path):
    path = write(tmp_path / "a.jsonl", lines(*OBJECTS))
    assert read_tagged(path)[1:4] == (WORDS, TAGS, [1, 2])
    columns = TagColumns(names=("O", "B-PER", "I-PER", "B-ORG"))
    with gzip.open(tmp_path / "a.json.gz", "wt") as file:
        file.write(lines({"tokens": [], "ner_tags": []}, {"tokens": ["EU", "rejects"], "ner_tags": [3, 0]}))
    assert read_tagged(tmp_path / "a.json.gz", columns)[1:4] == (WORDS[:1], TAGS[:1], [2])
    path = write(tmp_path / "b.jsonl", lines({"w": WORDS[0], "t": [3, 0]}, {"w": WORDS[1], "t": [1]}))
    assert read_tagged(path, columns._replace(word="w", tag="t"))[1:3] == (WORDS, TAGS)


def test_what_is_written_is_read_again(tmp_path):
    path = write(tmp_path / "a.tsv", conll_text([[["a\tb", "O"], ["c\n", "B-X"]], [["\u200b", "O"]]]))
    assert read_tagged(path).words == [["a b", "c "], ["\u200b"]]


NUMBERED = TagColumns(names=("O", "B-PER"))


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("a.conll", "", TagColumns(), "has no sentence; expected a word and its tag in each line"),
        ("a.conll", "EU B-ORG\nrejects\n", TagColumns(), "line 2: 1 columns, expected 2 as in its first line, with"),
        ("a.conll", "EU\tB-ORG\nrejects O\n", TagColumns(), "2: 1 columns, expected 2 as in its first line, with tabs"),
        ("a.conll", "EU\nrejects\n", TagColumns(), "line 1: 1 column, of which word and tag are the same"),
        ("a.conll", "EU B-ORG\nrejects VBZ\n", TagColumns(), "line 2: the tag 'VBZ'; expected O, or B-, I-, E- or S-"),
        ("a.conll", "a\tO\n\tO\n", TagColumns(), "line 2: the word is empty"),
        ("a.conll", "a\tO\n\xff\0\tO\n", TagColumns(), "a NUL byte"),
        ("a.conll", "EU O\n", TagColumns("3"), "conll has 2 columns, without names; expected a number from 1 to 2"),
        ("a.conll", "EU O\n", TagColumns("3"), "--text_columns 3: "),
        ("a.conll", "EU O\n", TagColumns(tag="x"), "--label_column x: "),
        ("a.jsonl", "x\n", TagColumns(), "line 1: no JSON"),
        ("a.jsonl", "[]\n", TagColumns(), "line 1: []; expected JSON Lines"),
        ("a.jsonl", lines({"words": []}), TagColumns(), "line 1: no 'tokens', its keys are ['words']; expected a list"),
        ("a.jsonl", lines({"tokens": "EU", "tags": []}), TagColumns(), "line 1: 'tokens' is 'EU', its keys"),
        ("a.jsonl", lines({"tokens": ["EU"]}), TagColumns(), "line 1: no 'tags', its keys are ['tokens']"),
        ("a.jsonl", lines({"tokens": ["EU"], "tags": []}), TagColumns(), "1 in 'tokens' and 0 in 'tags'; expected as"),
        ("a.jsonl", lines({"tokens": ["", "a"], "tags": ["O"] * 2}), TagColumns(), "holds ''; expected words, none"),
        ("a.jsonl", lines({"tokens": ["EU"], "tags": [1]}), TagColumns(), "the tag 1; expected a name such as B-PER"),
        ("a.jsonl", lines({"tokens": ["EU"], "tags": [True]}), TagColumns(), "the tag True; expected a name"),
        ("a.jsonl", lines({"tokens": ["EU"], "tags": ["ORG"]}), TagColumns(), "the tag 'ORG'; expected O, or B-"),
        ("a.jsonl", lines({"tokens": ["EU"], "tags": [2]}), NUMBERED, "the tag 2; --tag_names has the names of 0 to 1"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path, name, text, columns, message):
    with pytest.raises(UserError, match=name) as error:
        read_tagged(write(tmp_path / name, text), columns)
    assert message in str(error.value)


def test_half_a_character_is_refused_where_it_is(tmp_path):
    for number, record in enumerate(
        [{"tokens": ["a", "\ud800"], "tags": ["O", "B-X"]}, {"tokens": ["a"], "tags": ["B-\ud800"]}, {"text": "\udfff"}]
    ):
        path = write(tmp_path / f"{number}.jsonl", lines({"text": "a", **OBJECTS[0]}, record))
        with pytest.raises(UserError, match=rf"{number}\.jsonl, line 2: '\\ud.* is half a character"):
            list(text_blocks(path, "table")) if "text" in record else read_tagged(path)
    unread = write(tmp_path / "unread.jsonl", lines({"text": "a", "note": "\ud800"}))
    assert list(text_blocks(unread, "table")) == [["a"]]


@pytest.mark.parametrize(
    ("name", "text", "column", "kind"),
    [
        ("a.txt", "EU rejects\n", None, "text"),
        ("a.txt.gz", "", None, "text"),
        ("a.csv", "text\nEU\n", None, "table"),
        ("a.conll", "EU\n", None, "words"),
        ("a.tsv", "EU\n", "1", "words"),
        ("a.tsv", "body\nEU\n", "body", "table"),
        ("a.jsonl", lines(*OBJECTS), None, "words"),
        ("a.jsonl", lines({"text": "EU"}), None, "table"),
        ("a.jsonl", lines({"body": "EU", "tokens": []}), "body", "table"),
    ],
)
def test_a_files_name_and_content_tell_what_it_holds(tmp_path, name, text, column, kind):
    assert kind_of_input(write(tmp_path / name, text), column) == kind


def test_texts_are_read_from_tables_and_objects(tmp_path):
    path = write(tmp_path / "a.jsonl", lines({"text": "EU", "more": [1]}, {"text": ""}))
    assert list(text_blocks(path, "table")) == [["EU", ""]]
    assert list(text_blocks(write(tmp_path / "a.csv", "id,body\n1,EU\n"), "table", "body")) == [["EU"]]
    with pytest.raises(UserError, match=r"line 2: 'text' is None, its keys are \['body'\]"):
        list(text_blocks(write(tmp_path / "b.jsonl", lines({"text": "EU"}, {"body": "EU"})), "table"))
