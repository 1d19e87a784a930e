"""Rows of Parquet files and of Arrow files, as `datasets` saves them, a few at a time; needs pyarrow (extra: parquet).

A file consists of row groups (Parquet) or record batches (Arrow). A group or batch belongs to the part of the file in
which it begins. Only Arrow streams tell where that is; in the other formats, number i of n is assumed to begin at byte
i * size // n.
"""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from bert_horovod.corpus.reading.sources import (
    MAXIMUM_LINE_BYTES,
    ROW_NO_TEXT,
    ROW_NOT_TEXT,
    ROW_TOO_LONG,
    SourceFile,
    SourceReader,
)
from bert_horovod.corpus.reading.text import Section, record_sections
from bert_horovod.errors import DamagedData, UserError, file_error
from bert_horovod.storage.reading import shown

_ROWS = 64  # made into Python strings at a time
_BUFFER_BYTES = 1 << 20
_FILE_MAGIC = b"ARROW1"  # an .arrow file that does not begin so is a stream, as `datasets` writes it


class ArrowReader(SourceReader):
    """An open Parquet or Arrow file, or the part of it between two bytes."""

    def __init__(
        self,
        source: SourceFile,
        text_field: str = "text",
        bad_lines: str | None = "stop",
        part: tuple[int, int] | None = None,
    ):
        """As SourceReader. `part`: (begin, end) in bytes; only row groups that begin there are read. None: all."""
        super().__init__(source, text_field, bad_lines)
        self.begin, self._end = part or (0, source.bytes)
        self._path: tuple[str, ...] = ()  # of the text: its column, and fields within it

    def place(self, position: int) -> str:
        """The name of a row in a message."""
        return f"{self.source.path}, row {position}"

    def rows(self) -> Iterator[tuple[int, str, str]]:
        """Yield (row number in the file from 1, text, title or ""); a row without text is a bad line.

        Raises UserError if the text column or pyarrow is missing, DamagedData if the file is not Parquet or Arrow.
        """
        pa = _pyarrow(self.source)
        groups = self._parquet(pa) if self.source.path.suffix.lower() == ".parquet" else self._arrow(pa)
        try:
            for number, batch in groups:
                yield from self._rows_of(number, batch)
        except pa.ArrowException as error:
            raise DamagedData(
                f"{self.source.path} is truncated or damaged ({shown(str(error))}); expected a whole "
                f"{self.source.path.suffix} file: fetch or write it again"
            ) from error
        except OSError as error:
            raise file_error(error, f"cannot read {self.source.path}: {error.strerror or error}") from error

    def _parquet(self, pa: ModuleType) -> Iterator[tuple[int, Any]]:
        import pyarrow.parquet as pq

        with self.source.open() as raw, pq.ParquetFile(raw, buffer_size=_BUFFER_BYTES) as file:
            names = [".".join(path) for path in self._columns(file.schema_arrow, pa)]
            first = 1
            for i in range(file.num_row_groups):
                byte = i * self.source.bytes // file.num_row_groups
                number = first
                first += file.metadata.row_group(i).num_rows
                if self.begin <= byte < self._end:
                    for batch in file.iter_batches(_ROWS, [i], names, use_threads=False):
                        yield number, batch
                        number += batch.num_rows
                    self.bytes_read = byte - self.begin

    def _arrow(self, pa: ModuleType) -> Iterator[tuple[int, Any]]:
        with self.source.open() as raw:
            is_file = raw.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        # Memory-mapped, or by ranges, so that only the batches of this part are read.
        path = self.source.path
        with pa.memory_map(str(path)) if isinstance(path, Path) else pa.PythonFile(self.source.open(), "r") as mapped:
            number = 1
            batches = self._file_batches(pa, mapped) if is_file else self._stream_batches(pa, mapped)
            for at, batch in batches:
                if self.begin <= at < self._end:
                    for begin in range(0, batch.num_rows, _ROWS):
                        yield number + begin, batch.slice(begin, _ROWS)
                    self.bytes_read = at - self.begin
                number += batch.num_rows

    def _file_batches(self, pa: ModuleType, mapped: Any) -> Iterator[tuple[int, Any]]:
        with pa.ipc.open_file(mapped, options=self._only(pa, pa.ipc.open_file(mapped).schema)) as reader:
            for i in range(reader.num_record_batches):
                yield i * self.source.bytes // reader.num_record_batches, reader.get_batch(i)

    def _stream_batches(self, pa: ModuleType, mapped: Any) -> Iterator[tuple[int, Any]]:
        options = self._only(pa, pa.ipc.open_stream(mapped).schema)
        mapped.seek(0)
        with pa.ipc.open_stream(mapped, options=options) as reader:
            while (at := mapped.tell()) < self._end:
                try:
                    yield at, reader.read_next_batch()
                except StopIteration:
                    return

    def _only(self, pa: ModuleType, schema: Any) -> Any:
        indices = list(dict.fromkeys(schema.get_field_index(path[0]) for path in self._columns(schema, pa)))
        return pa.ipc.IpcReadOptions(included_fields=indices, use_threads=False)

    def _columns(self, schema: Any, pa: ModuleType) -> list[tuple[str, ...]]:
        """The paths of the columns to read: the text's, and "title" if it holds text; raises UserError."""
        for name in {self.text_field, "title"}:
            if schema.names.count(name) > 1:
                raise UserError(f"{self.source.path} has two columns of the name {name!r}; expected one: rename one")
        types = {".".join(path): (path, kind) for path, kind in _types(schema, pa)}
        self._path, kind = types.get(self.text_field, ((), None))
        if kind is None or not _is_text(kind, pa):
            problem = f"no column {self.text_field!r}"
            if kind is not None:
                problem = f"a column {self.text_field!r} of the type {kind}"
            texts = [name for name, (_, kind) in types.items() if _is_text(kind, pa)]
            raise UserError(
                f"{self.source.path} has {problem}; expected a column of text: --text_field NAME, where NAME is one of "
                f"{shown(texts)}"
            )
        title, kind = types.get("title", ((), None))
        return list(dict.fromkeys([self._path, *([title] if kind is not None and _is_text(kind, pa) else [])]))

    def _rows_of(self, first: int, batch: Any) -> Iterator[tuple[int, str, str]]:
        texts = batch.column(self._path[0])
        titles = batch.column("title") if "title" in batch.schema.names else None
        if self._path[1:]:
            import pyarrow.compute as pc

            texts = pc.struct_field(texts, list(self._path[1:]))
            titles = None if self._path[0] == "title" else titles
        for i in range(batch.num_rows):
            title_and_text = self._row(first + i, texts[i], titles[i] if titles is not None else None)
            if title_and_text is not None:
                yield first + i, *title_and_text

    def _row(self, number: int, text: Any, title: Any) -> tuple[str, str] | None:
        """Text and title of a row; None for a bad one that is passed over."""
        where, mend = self.place(number), f"expected text in the column {self.text_field!r}: mend or leave out the row"
        buffer = text.value.as_buffer() if hasattr(text, "value") else text.as_buffer()
        if buffer is None:
            self.pass_over(number, ROW_NO_TEXT, f"{where}: no value; {mend}")
        elif buffer.size > MAXIMUM_LINE_BYTES:
            self.pass_over(number, ROW_TOO_LONG, f"{where}: longer than {MAXIMUM_LINE_BYTES >> 20} MiB; {mend}")
        else:
            try:
                return _decoded(text.as_py()), _decoded(title.as_py() or "") if title is not None else ""
            except UnicodeDecodeError as error:
                self.pass_over(number, ROW_NOT_TEXT, f"{where}: not UTF-8 text ({error}); {mend}")
        return None


def _types(fields: Any, pa: ModuleType, within: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (path, type) of columns, and of the fields of those that are structures; a path is names from outside."""
    for field in fields:
        yield (*within, field.name), field.type
        if pa.types.is_struct(field.type):
            yield from _types(field.type, pa, (*within, field.name))


def _is_text(kind: Any, pa: ModuleType) -> bool:
    """Whether a type is text, or bytes, as which Hive writes text."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
    return any(getattr(pa.types, f"is_{name}")(kind) for name in tests)


def _decoded(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode()


def row_documents(reader: ArrowReader, documents: str) -> Iterator[Iterator[Section]]:
    """A document a row; see formats.read_sections."""
    for number, text, title in reader.rows():
        yield record_sections(number, text, title, documents, reader)


def _pyarrow(source: SourceFile) -> ModuleType:
    try:
        import pyarrow
    except ImportError as error:
        raise UserError(
            f"{source.path} needs pyarrow, which cannot be imported ({error}); install it: pip install "
            "'.[parquet]' in the project's directory"
        ) from error
    return pyarrow
