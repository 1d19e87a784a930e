"""Sentences as words with tags: CoNLL files, and JSON Lines with the lists `tokens` and `tags`.

A CoNLL file has a word a line, in columns with tabs or blanks between, and a blank line between sentences. Lines of
-DOCSTART- are passed over, and so are comments: lines that begin with `# id`, `# sent_id`, `# text` and others of
CoNLL-U, or with # and that have another number of columns than the words, or no tag.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.corpus.reading.sources import ITEMS_BYTES, WHOLE, in_blocks, suffixes
from bert_horovod.corpus.reading.table_files import SURROGATE, json_objects, kind_of, opened, table_blocks
from bert_horovod.corpus.reading.tag_schemes import is_bilou, is_tag, without_bilou
from bert_horovod.corpus.table_writing import BLANKS
from bert_horovod.errors import UserError
from bert_horovod.storage.reading import shown
from bert_horovod.wording import counted

DOCUMENT = "-DOCSTART-"
_WORD_KEYS, _TAG_KEYS = ("tokens", "text"), ("tags", "ner_tags", "label")
_COMMENT = re.compile(r"#[ \t]+(?:id|sent_id|text|newdoc|newpar|global\.columns)(?![^\s=:])")
_BETWEEN = re.compile("[ \t]+")  # a word may hold other blanks, such as U+00A0


class TagColumns(NamedTuple):
    """Where words and tags are: numbers of columns, from 1 or from -1 for the last, or keys of JSON Lines.

    "text" and "label" stand for the usual places: the first column and the last, or the keys `tokens` and `tags`.
    """

    word: str = "text"
    tag: str = "label"
    names: tuple[str, ...] = ()  # of tags that are numbers


USUAL = TagColumns()


class TaggedSentences(NamedTuple):
    """A file's sentences, or a block of them."""

    path: Path
    words: list[list[str]]
    tags: list[list[str]]  # as many; of a file that was read without tags each is empty
    lines: list[int]  # of a sentence's first word in a CoNLL file, or of its object
    fields: list[list[list[str]]]  # of a CoNLL file: each word's columns; else empty
    comments: list[int]  # the lines of a CoNLL file that were passed over, so far
    bilou: bool  # whether E and S stand for L and U of the file

    def line(self, sentence: int, word: int) -> int:
        """The line of a word."""
        line = self.lines[sentence]
        if not self.fields:
            return line
        for comment in [comment for comment in self.comments if comment > line]:
            word += comment <= line + word
        return line + word

    def notices(self) -> list[str]:
        """What was not read as it stands in the file, as lines for people."""
        lines = [f"{self.path}: tags of BILOU; its L and U are read as E and S"] if self.bilou else []
        if self.comments:
            comments = counted(len(self.comments), "comment")
            lines.append(f"{self.path}: {comments} passed over, beginning with #, the first in line {self.comments[0]}")
        return lines


def read_tagged(path: Path, columns: TagColumns = USUAL, tagged: bool = True) -> TaggedSentences:
    """Read a whole file; see tagged_blocks."""
    (sentences,) = tagged_blocks(path, columns, tagged, WHOLE)
    return sentences


def tagged_blocks(
    path: Path, columns: TagColumns = USUAL, tagged: bool = True, most: float = ITEMS_BYTES
) -> Iterator[TaggedSentences]:
    """Read a file in blocks: JSON Lines if it is called so (.jsonl, .ndjson, .json, also compressed), else CoNLL.

    Raises UserError if the file cannot be read, has no sentence, or a line is not as described, DamagedData if it is
    compressed and damaged.
    """
    comments: list[int] = []
    with opened(path, _FORMS) as reader:
        if kind_of(path) == "json":
            sentences = _read_json(path, reader.lines(), columns, tagged)
        else:
            sentences = _read_conll(path, reader.lines(), columns, tagged, comments)
        is_empty = True
        for block in in_blocks(sentences, most, lambda sentence: sum(map(len, sentence.words))):
            is_empty = False
            words, tags, lines, fields = map(list, zip(*block, strict=True))
            if bilou := any(is_bilou(tag) for of_sentence in tags for tag in of_sentence):
                tags = [[without_bilou(tag) for tag in of_sentence] for of_sentence in tags]
            yield TaggedSentences(path, words, tags, lines, fields if fields[0] else [], comments, bilou)
    if is_empty:
        raise UserError(f"{path} has no sentence; expected a word and its tag in each line, or {_OBJECT}")


def kind_of_input(path: Path, column: str | None = None) -> str:
    """What a file holds in which entities are to be found: "words", a "table" with a text in each row, or plain "text".

    A name that ends in .txt is a plain text, in .csv a table. JSON Lines are words if the first object has a list of
    them, a table if it has a text. Any other name is a CoNLL file of words, or a table if `column` is no number.
    """
    suffix, _ = suffixes(path)
    if suffix in (".txt", ".csv"):
        return "text" if suffix == ".txt" else "table"
    if kind_of(path) == "json":
        with opened(path, _FORMS) as reader:
            _, record = next(json_objects(path, reader.lines(), _OBJECT), (0, {}))
        return "table" if isinstance(record.get(_key(record, column or USUAL.word, _WORD_KEYS)), str) else "words"
    return "words" if column is None or column.removeprefix("-").isdecimal() else "table"


def text_blocks(path: Path, kind: str, column: str | None = None, most: float = ITEMS_BYTES) -> Iterator[list[str]]:
    """Read in blocks the texts of a table, or of the objects of JSON Lines, or the lines of a plain text.

    `kind`: of kind_of_input, "table" or "text". A line keeps a carriage return at its end, so that places in the file
    can be counted. Raises ReportedError if the file has no texts in this column.
    """
    if kind == "table" and kind_of(path) != "json":
        name = column or USUAL.word
        for table in table_blocks(path, (name,), most=most):
            (place,) = table.places((name,), "--text_columns")
            yield [fields[place] for _, fields in table.rows]
        return
    with opened(path, _FORMS) as reader:
        lines = reader.lines()
        texts = (line for _, line in lines) if kind == "text" else _json_texts(path, lines, column or USUAL.word)
        yield from in_blocks(texts, most, len)


def _json_texts(path: Path, lines: Iterator[tuple[int, str]], name: str) -> Iterator[str]:
    for number, record in json_objects(path, lines, _OBJECT):
        if not isinstance(record.get(name), str):
            raise UserError(
                f"{path}, line {number}: {name!r} is {shown(record.get(name))[:60]}, its keys are "
                f"{shown(list(record))}; expected a text there; --text_columns names another key"
            )
        _require_whole(path, number, record[name])
        yield record[name]


def conll_text(fields: Iterable[Sequence[Sequence[str]]]) -> str:
    """The text of a CoNLL file, columns with tabs between; a tab or line end within a column becomes a blank."""
    return "\n".join(
        "".join("\t".join(column.translate(BLANKS) for column in word) + "\n" for word in sentence)
        for sentence in fields
    )


_FORMS = "CoNLL, or as .jsonl"
_OBJECT = 'JSON Lines (.jsonl) as {"tokens": ["a", "word"], "tags": ["O", "B-X"]}'


class _Sentence(NamedTuple):
    words: list[str]
    tags: list[str]
    line: int
    fields: list[list[str]]


def _read_conll(
    path: Path, lines: Iterator[tuple[int, str]], columns: TagColumns, tagged: bool, comments: list[int]
) -> Iterator[_Sentence]:
    """Yield the sentences; the numbers of lines that are comments are added to `comments`."""
    (number, first), lines = _first_of_words(lines)
    separator = "\t" if "\t" in first else None
    count = len(_fields(first, separator))
    if count:
        places = _place(columns.word, 1, count, path), _place(columns.tag, -1, count, path)
        if tagged and places[0] == places[1]:
            raise UserError(
                f"{path}, line {number}: {count} column{'s' * (count > 1)}, of which word and tag are the same; "
                "expected a word and its tag, with a tab or blanks between"
            )
    sentence: _Sentence | None = None
    for number, line in lines:
        line = line.removesuffix("\r")
        if not line.strip() or line.startswith(DOCUMENT):
            if sentence:
                yield sentence
            sentence = None
            continue
        fields = _fields(line, separator)
        fits = len(fields) == count and (not tagged or is_tag(fields[places[1]].strip()))
        if _COMMENT.match(line) or (not fits and line.startswith("#")):
            comments.append(number)
            continue
        if len(fields) != count:
            raise UserError(
                f"{path}, line {number}: {len(fields)} columns, expected {count} as in its first line, with "
                f"{'tabs' if separator else 'blanks'} between, and a blank line between sentences"
            )
        word, tag = fields[places[0]], fields[places[1]].strip()
        if not word:
            raise UserError(f"{path}, line {number}: the word is empty; expected one in column {places[0] + 1}")
        sentence = sentence or _Sentence([], [], number, [])
        sentence.words.append(word)
        sentence.fields.append(fields)
        if tagged:
            sentence.tags.append(_checked(tag, path, number, "--label_column names another column"))
    if sentence:
        yield sentence


def _first_of_words(lines: Iterator[tuple[int, str]]) -> tuple[tuple[int, str], Iterator[tuple[int, str]]]:
    """The first line that is a word's, (0, "") if there is none, and all lines again.

    It begins with # only if each line does.
    """
    head: list[tuple[int, str]] = []
    for number, line in lines:
        head.append((number, line))
        if line.strip() and not line.startswith((DOCUMENT, "#")):
            return head[-1], itertools.chain(head, lines)
    words = (each for each in head if each[1].startswith("#") and not _COMMENT.match(each[1]))
    return next(words, (0, "")), iter(head)


def _fields(line: str, separator: str | None) -> list[str]:
    """A line's columns, which have tabs or, without a separator, blanks between."""
    line = line.removesuffix("\r")
    return line.split(separator) if separator else [field for field in _BETWEEN.split(line) if field]


def _read_json(path: Path, lines: Iterator[tuple[int, str]], columns: TagColumns, tagged: bool) -> Iterator[_Sentence]:
    for number, record in json_objects(path, lines, _OBJECT):
        word_key, tag_key = (
            _key(record, name, usual) for name, usual in ((columns.word, _WORD_KEYS), (columns.tag, _TAG_KEYS))
        )
        words = _list(path, number, record, word_key, "--text_columns")
        if bad := [word for word in words if not isinstance(word, str) or not word]:
            raise UserError(f"{path}, line {number}: {word_key!r} holds {shown(bad[0])}; expected words, none empty")
        tags = []
        if tagged:
            tags = _list(path, number, record, tag_key, "--label_column")
            if len(tags) != len(words):
                raise UserError(
                    f"{path}, line {number}: {len(words)} in {word_key!r} and {len(tags)} in {tag_key!r}; expected as "
                    "many tags as words"
                )
            tags = [_named(tag, columns.names, path, number) for tag in tags]
        _require_whole(path, number, [words, tags])
        if words or not tagged:  # each object gets an answer
            yield _Sentence(words, tags, number, [])


def _require_whole(path: Path, number: int, values: Any) -> None:
    """Raise UserError if what is read holds half a character, as JSON may."""
    if half := SURROGATE.search(json.dumps(values, ensure_ascii=False)):
        raise UserError(f"{path}, line {number}: {half[0]!r} in it is half a character; expected whole ones")


def _key(record: dict[str, Any], given: str, usual: tuple[str, ...]) -> str:
    if given != usual[-1]:
        return given
    return next((key for key in usual if key in record), usual[0])


def _list(path: Path, number: int, record: dict[str, Any], key: str, flag: str) -> list[Any]:
    if not isinstance(record.get(key), list):
        there = f"{key!r} is {shown(record[key])[:60]}" if key in record else f"no {key!r}"
        raise UserError(
            f"{path}, line {number}: {there}, its keys are {shown(list(record))}; expected a list there, as in "
            f"{_OBJECT}; {flag} names another key"
        )
    return record[key]


def _named(tag: Any, names: tuple[str, ...], path: Path, number: int) -> str:
    if isinstance(tag, str):
        return _checked(tag, path, number, "--label_column names another key")
    if type(tag) is not int or not names:
        raise UserError(
            f"{path}, line {number}: the tag {shown(tag)}; expected a name such as B-PER, or numbers from 0 whose "
            "names --tag_names gives in their order"
        )
    if not 0 <= tag < len(names):
        raise UserError(f"{path}, line {number}: the tag {tag}; --tag_names has the names of 0 to {len(names) - 1}")
    return names[tag]


def _checked(tag: str, path: Path, number: int, mend: str) -> str:
    if not is_tag(tag):
        raise UserError(
            f"{path}, line {number}: the tag {shown(tag)}; expected O, or B-, I-, E- or S- before a type, as B-PER; "
            f"{mend}"
        )
    return tag


def _place(given: str, usual: int, count: int, path: Path) -> int:
    """The index of a column in a CoNLL file with `count` columns."""
    flag = "--text_columns" if usual == 1 else "--label_column"
    if given == (USUAL.word if usual == 1 else USUAL.tag):
        given = str(usual)
    number = int(given) if given.removeprefix("-").isdecimal() else 0
    if not 1 <= abs(number) <= count:
        raise UserError(
            f"{flag} {given}: {path} has {count} column{'s' * (count > 1)}, without names; expected a number from 1 to "
            f"{count}, or from -1, the last, to -{count}"
        )
    return number - 1 if number > 0 else count + number
