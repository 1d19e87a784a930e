"""Tables that are written as text, CSV and TSV: a document a row."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from bert_horovod.corpus.reading.sources import NO_ROW, SourceReader
from bert_horovod.corpus.reading.table_files import columns_and_rows
from bert_horovod.corpus.reading.text import Section, record_sections
from bert_horovod.errors import UserError
from bert_horovod.storage.reading import shown


def table_documents(reader: SourceReader, documents: str) -> Iterator[Iterator[Section]]:
    """A document a row; see formats.read_sections."""
    path, name = cast("Path", reader.source.path), reader.text_field  # a Place has the same names of its parts
    columns, rows = columns_and_rows(path, reader, broken=lambda number, text: reader.pass_over(number, NO_ROW, text))
    if columns.count(name) != 1:
        raise UserError(
            f"{path} has {'two columns' if name in columns else 'no column'} {name!r}, its first line is "
            f"{shown(columns)}; expected the names of its columns there, and that of the text: --text_field NAME"
        )
    text, title = columns.index(name), columns.index("title") if "title" in columns else None
    for number, fields in rows:
        where = reader.place(number)
        if len(fields) != len(columns):
            message = f"{where}: {len(fields)} fields, expected {len(columns)} as in the first line"
        elif '""' in fields[text][1:-1] and fields[text][0] == fields[text][-1] == '"':
            message = f"{where}: the text stands within quotation marks"  # only TSV keeps them
        else:
            yield record_sections(number, fields[text], fields[title] if title is not None else "", documents, reader)
            continue
        quoted = '"' in "".join(fields)
        mend = "; if a TSV's fields are quoted, as spreadsheets and pandas write them: let its name end with .csv"
        reader.pass_over(number, NO_ROW, message + mend * quoted)
