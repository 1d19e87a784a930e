"""Sentences as words with tags: CoNLL files, and JSON Lines with the lists `tokens` and `tags`.

A CoNLL file has a word a line, in columns with tabs or blanks between, and a blank line between sentences. Lines of
-DOCSTART- are passed over.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.corpus.reading.sources import SourceFile, SourceReader, suffixes
from bert_horovod.corpus.reading.table_files import SURROGATE, kind_of, read_table
from bert_horovod.corpus.reading.tag_schemes import is_tag
from bert_horovod.errors import UserError, file_error
from bert_horovod.storage.reading import shown

DOCUMENT = "-DOCSTART-"
_WORD_KEYS, _TAG_KEYS = ("tokens", "text"), ("tags", "ner_tags", "label")
_BLANKS = str.maketrans("\t\n\r", "   ")


class TagColumns(NamedTuple):
    """Where words and tags are: numbers of columns, from 1 or from -1 for the last, or keys of JSON Lines.

    "text" and "label" stand for the usual places: the first column and the last, or the keys `tokens` and `tags`.
    """

    word: str = "text"
    tag: str = "label"
    names: tuple[str, ...] = ()  # of tags that are numbers


USUAL = TagColumns()


class TaggedSentences(NamedTuple):
    """A file's sentences."""

    path: Path
    words: list[list[str]]
    tags: list[list[str]]  # as many; of a file that was read without tags each is empty
    lines: list[int]  # of a sentence's first word in a CoNLL file, or of its object
    fields: list[list[list[str]]]  # of a CoNLL file: each word's columns; else empty

    def line(self, sentence: int, word: int) -> int:
        """The line of a word."""
        return self.lines[sentence] + (word if self.fields else 0)


def read_tagged(path: Path, columns: TagColumns = USUAL, tagged: bool = True) -> TaggedSentences:
    """Read a file: JSON Lines if it is called so (.jsonl, .ndjson, .json, also compressed), else CoNLL.

    Args:
        path: the file.
        columns: where words and tags are.
        tagged: whether tags are read.

    Raises:
        UserError: the file cannot be read, has no sentence, or a line is not as described.
        DamagedData: the file is compressed and damaged.
    """
    with open_lines(path) as reader:
        read = _read_json if kind_of(path) == "json" else _read_conll
        sentences = read(path, reader.lines(), columns, tagged)
    if not sentences.words:
        raise UserError(f"{path} has no sentence; expected a word and its tag in each line, or {_OBJECT}")
    return sentences


def kind_of_input(path: Path, column: str | None = None) -> str:
    """What a file holds in which entities are to be found: "words", a "table" with a text in each row, or plain "text".

    A name that ends in .txt is a plain text, in .csv a table. JSON Lines are words if the first object has a list of
    them, a table if it has a text. Any other name is a CoNLL file of words, or a table if `column` is no number.

    Args:
        path: the file.
        column: where words or texts are, as in TagColumns; None: at their usual place.
    """
    suffix, _ = suffixes(path)
    if suffix in (".txt", ".csv"):
        return "text" if suffix == ".txt" else "table"
    if kind_of(path) == "json":
        with open_lines(path) as reader:
            _, record = next(_json_objects(path, reader.lines()), (0, {}))
        return "table" if isinstance(record.get(_key(record, column or USUAL.word, _WORD_KEYS)), str) else "words"
    return "words" if column is None or column.removeprefix("-").isdecimal() else "table"


def read_texts(path: Path, column: str | None = None) -> list[str]:
    """The texts of a table, or of the objects of JSON Lines; raises UserError if there are none in this column."""
    name = column or USUAL.word
    if kind_of(path) != "json":
        table = read_table(path)
        (place,) = table.places((name,), "--text_columns")
        return [fields[place] for _, fields in table.rows]
    with open_lines(path) as reader:
        records = list(_json_objects(path, reader.lines()))
    for number, record in records:
        if not isinstance(record.get(name), str):
            raise UserError(
                f"{path}, line {number}: {name!r} is {shown(record.get(name))[:60]}, its keys are "
                f"{shown(list(record))}; expected a text there; --text_columns names another key"
            )
    return [record[name] for _, record in records]


def conll_text(fields: Iterable[Sequence[Sequence[str]]]) -> str:
    """The text of a CoNLL file, columns with tabs between; a tab or line end within a column becomes a blank."""
    return "\n".join(
        "".join("\t".join(column.translate(_BLANKS) for column in word) + "\n" for word in sentence)
        for sentence in fields
    )


def open_lines(path: Path) -> SourceReader:
    """Open a file for its checked lines; raises UserError if it cannot be read."""
    try:
        return SourceReader(SourceFile(path, path.name, path.stat().st_size), bad_lines="refuse")
    except OSError as error:
        raise file_error(error, f"cannot read {path}: {error.strerror}") from error


_OBJECT = 'JSON Lines (.jsonl) as {"tokens": ["a", "word"], "tags": ["O", "B-X"]}'


def _read_conll(path: Path, lines: Iterator[tuple[int, str]], columns: TagColumns, tagged: bool) -> TaggedSentences:
    sentences = TaggedSentences(path, [], [], [], [])
    separator, count, places, first = None, 0, (0, 0), True
    within = False
    for number, line in lines:
        line = line.removesuffix("\r")
        if not line.strip() or line.startswith(DOCUMENT):
            within = False
            continue
        if first:
            first, separator = False, "\t" if "\t" in line else None
            count = len(line.split(separator))
            places = _place(columns.word, 1, count, path), _place(columns.tag, -1, count, path)
            if tagged and places[0] == places[1]:
                raise UserError(
                    f"{path}, line {number}: {count} column{'s' * (count > 1)}, of which word and tag are the same; "
                    "expected a word and its tag, with a tab or blanks between"
                )
        fields = line.split(separator)
        if len(fields) != count:
            raise UserError(
                f"{path}, line {number}: {len(fields)} columns, expected {count} as in its first line, with "
                f"{'tabs' if separator else 'blanks'} between, and a blank line between sentences"
            )
        word, tag = fields[places[0]], fields[places[1]].strip()
        if not word:
            raise UserError(f"{path}, line {number}: the word is empty; expected one in column {places[0] + 1}")
        if not within:
            within = True
            for column in (sentences.words, sentences.tags, sentences.fields):
                column.append([])
            sentences.lines.append(number)
        sentences.words[-1].append(word)
        sentences.fields[-1].append(fields)
        if tagged:
            sentences.tags[-1].append(_checked(tag, path, number, "--label_column names another column"))
    return sentences


def _read_json(path: Path, lines: Iterator[tuple[int, str]], columns: TagColumns, tagged: bool) -> TaggedSentences:
    sentences = TaggedSentences(path, [], [], [], [])
    for number, record in _json_objects(path, lines):
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
        if words:
            sentences.words.append(words)
            sentences.tags.append(tags)
            sentences.lines.append(number)
    return sentences


def _json_objects(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of each line that is not blank; raises UserError for a line that is no object."""
    for number, line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: no JSON ({error}); expected {_OBJECT}") from error
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {number}: {shown(record)}; expected {_OBJECT}")
        if half := SURROGATE.search(json.dumps(record, ensure_ascii=False)):
            raise UserError(f"{path}, line {number}: {half[0]!r} in it is half a character; expected whole ones")
        yield number, record


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
