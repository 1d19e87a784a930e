"""Documents of JSON Lines: an object a line, with the text in a string field."""

import json
from collections.abc import Iterator
from typing import Any

from bert_horovod.corpus.reading.sources import SourceReader
from bert_horovod.corpus.reading.text import Section, record_sections
from bert_horovod.storage.reading import shown

NOT_JSON = "lines that are not JSON objects"  # names in SourceReader.passed_over
NO_TEXT = "lines without text"
BAD_LINES = (NOT_JSON, NO_TEXT)
_MISSING = object()


def json_documents(reader: SourceReader, documents: str) -> Iterator[Iterator[Section]]:
    """A document a line; see formats.read_sections."""
    for number, line in reader.lines():
        if line.strip():
            text_and_title = _json_text(line, number, reader)
            if text_and_title is not None:
                yield record_sections(number, *text_and_title, documents, reader)


def _json_text(line: str, number: int, reader: SourceReader) -> tuple[str, str] | None:
    """The text and the title of a line of JSON; None for a bad line that is skipped."""
    where, name = reader.place(number), reader.text_field
    mend = f'expected one JSON object a line, with the text in a string field "{name}" (see --text_field): mend it'
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        reader.pass_over(number, NOT_JSON, f"{where}: not JSON ({error}); {mend}")
        return None
    if not isinstance(record, dict):
        reader.pass_over(number, NOT_JSON, f"{where}: a {type(record).__name__} instead of an object; {mend}")
        return None
    text, title = _field(record, name), record.get("title")
    if not isinstance(text, str):
        problem = "no field" if text is _MISSING else f"a {type(text).__name__} in the field"
        message = f'{where}: {problem} "{name}", its fields are {shown(list(record))}; {mend}'
        reader.pass_over(number, NO_TEXT, message)
        return None
    return _whole_characters(text), _whole_characters(title) if isinstance(title, str) else ""


def _field(record: dict[str, Any], name: str) -> Any:
    """The value of a field, which may be within others, as in article.abstract; or _MISSING."""
    if name in record:
        return record[name]
    head, dot, rest = name.partition(".")
    within = record.get(head) if dot else None
    return _field(within, rest) if isinstance(within, dict) else _MISSING


def _whole_characters(text: str) -> str:
    """The text with U+FFFD in place of lone surrogates (escaped halves of a pair), which are no characters."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
