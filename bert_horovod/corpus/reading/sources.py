"""Reads input files, plain or compressed, as bytes or as checked UTF-8 lines; memory does not grow with the file."""

import hashlib
import io
import lzma
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import zstandard

from bert_horovod.corpus.reading.compression import COMPRESSIONS, MAGIC, MAGIC_BYTES, MAXIMUM_WINDOW_BYTES, WideWindow
from bert_horovod.errors import DamagedData, UserError, file_error
from bert_horovod.storage.places import Place
from bert_horovod.storage.reading import open_regular
from bert_horovod.storage.remote import Entry, RangeFile, entries

BLOCK_BYTES = 1 << 20
MAXIMUM_LINE_BYTES = 64 << 20
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
DUMP_SUFFIX = ".xml"
STRICT_LINES = 1000  # by default, a bad line among the first ones of a file is an error
# What --bad_lines is about: names in SourceReader.passed_over, for each format.
NOT_TEXT, ROW_NOT_TEXT, RECORD_NOT_TEXT = (f"{each} that are not UTF-8 text" for each in ("lines", "rows", "records"))
TOO_LONG, ROW_TOO_LONG, RECORD_TOO_LONG = (
    f"{each} longer than {MAXIMUM_LINE_BYTES >> 20} MiB" for each in ("lines", "rows", "records")
)
NO_TEXT, ROW_NO_TEXT = "lines without text", "rows without text"
NOT_JSON = "lines that are not JSON objects"
NO_ROW = "rows that do not fit the table's header"
BAD_LINES = (
    *(NOT_TEXT, ROW_NOT_TEXT, RECORD_NOT_TEXT, TOO_LONG, ROW_TOO_LONG, RECORD_TOO_LONG),
    *(NO_TEXT, ROW_NO_TEXT, NOT_JSON, NO_ROW),
)
_ENCODING_FLAG = "name its encoding (for tables, finetune, predict, mine and score have --encoding latin-1)"
_DUMP_PART = re.compile(r"\.xml-p\d+p\d+")  # as Wikimedia names the parts of a dump


@dataclass(frozen=True)
class SourceFile:
    """An input file; `name` is its name in the manifest: relative to the given directory, or the file's own name."""

    path: Path | Place
    name: str
    bytes: int
    tag: str = ""  # of a file elsewhere, as remote.Entry has it

    @property
    def compression(self) -> str:
        """The compression's suffix, a key of COMPRESSIONS, or "" for a plain file."""
        return suffixes(self.path)[1]

    def open(self) -> io.RawIOBase:
        """Open the file for reading and seeking; raises OSError, and ReportedError for a file elsewhere."""
        if isinstance(self.path, Place):
            return RangeFile(Entry(self.path, self.bytes, self.tag))
        return open_regular(self.path).detach()

    def state(self) -> list[int | str]:
        """Another state is, as far as can be told without reading it, another content."""
        return [self.bytes, self.tag if isinstance(self.path, Place) else self.path.stat().st_mtime_ns]


class SourceReader(io.RawIOBase):
    """An open source: counts and hashes the bytes as they lie on the disk, and gives checked lines of text.

    Attributes: `source`; `text_field`, where rows and objects have their text; `begin`, the byte to begin with;
    `bytes_read`, compressed bytes so far; `passed_over`, how many lines, rows, pages or paragraphs were left out so
    far, by kind: the functions that use the reader count here too; `look`, which is called once, with the file's name
    and the first block of its text, and may raise.
    """

    look: Callable[[str, bytes], None] | None = None

    def __init__(self, source: SourceFile, text_field: str = "text", bad_lines: str | None = "stop"):
        """Read the file from its beginning.

        `bad_lines`: "stop": a line that cannot be read is an error; "skip": it is counted and passed over; None: it is
        an error among a file's first STRICT_LINES; "refuse": as "stop", in a command without --bad_lines.
        """
        super().__init__()
        self.source, self.begin, self.text_field = source, 0, text_field
        self._strict_lines = {"stop": math.inf, "refuse": math.inf, "skip": 0, None: STRICT_LINES}[bad_lines]
        self._may_skip = bad_lines != "refuse"
        self.bytes_read = 0
        self.passed_over: Counter[str] = Counter()
        self._cr_is_space = suffixes(source.path)[0] in (*JSON_SUFFIXES, DUMP_SUFFIX)
        self._cr_ends: bool | None = None  # whether lines end with CR alone, as on old Macs; None: not known yet
        self._digest = hashlib.sha256()
        try:
            self._file = source.open()
        except OSError as error:
            raise file_error(error, f"cannot read {source.path}: {error.strerror}") from error

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer) -> int:
        """Read bytes as they lie on the disk."""
        count = self._file.readinto(buffer)
        self._digest.update(memoryview(buffer)[:count])
        self.bytes_read += count
        return count

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._file.close()
        super().close()

    def sha256(self) -> str:
        """SHA-256, in hexadecimal, of the whole file as it lies on the disk; reads what is left of it."""
        while self.read(BLOCK_BYTES):
            pass
        return self._digest.hexdigest()

    def place(self, position: int) -> str:
        """The name, in a message, of a position that lines() yields."""
        return f"{self.source.path}, line {position}"

    def pass_over(self, position: int, reason: str, message: str) -> None:
        """Count a bad line of kind `reason`, or raise UserError with this message if bad lines are an error there.

        `position` is the one that lines() yields for the line, or would yield.
        """
        if self._is_strict(position):
            raise UserError(message + ", or pass over such lines with --bad_lines skip" * self._may_skip)
        self.passed_over[reason] += 1

    def lines(self, _is_cut: Callable[[str], bool] | None = None) -> Iterator[tuple[int, str]]:
        """Yield (line number from 1, line without its end); anything that is not UTF-8 text is a bad line.

        `_is_cut` tells PartReader whether a part of the source may begin or end at a line; a whole source ignores it.
        """
        for offset, number, encoded in self._whole_lines(self._decompressed()):
            text = None if encoded is None else text_of(encoded, offset)
            if text is not None:
                yield from enumerate(text.removesuffix("\n").split("\n"), number)
            elif encoded is None:
                self._pass_over_long(number)
            else:
                for own_number, (begin, line) in enumerate(line_offsets(encoded, offset), number):
                    text = text_of(line, begin)
                    if text is None:
                        self._pass_over_bytes(own_number, line, begin)
                    else:
                        yield own_number, text

    def blocks(self) -> Iterator[tuple[bool, bytes]]:
        """Yield (False, block of decompressed bytes); PartReader yields True with blocks after its part."""
        return ((False, block) for block in self._decompressed())

    def _begins_with_cr_ends(self, first: bytes) -> bool:
        """Whether the text's lines end with CR alone, as far as its first block tells."""
        return b"\r" in first[:-1] and b"\n" not in first

    def _is_strict(self, position: int) -> bool:
        """Whether a bad line at this position, as lines() yields it, is an error."""
        return position <= self._strict_lines

    def _whole_lines(self, blocks: Iterator[bytes], offset: int = 0) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield (byte, number of the first line, one or more whole lines); None in place of a line that is too long.

        The first block begins at byte `offset`.
        """
        held: list[bytes] = []
        number, held_bytes, is_long = 1, 0, False
        for block in blocks:
            end = (block.find if is_long else block.rfind)(b"\n") + 1
            if not end:
                held_bytes += len(block)
                if held_bytes > MAXIMUM_LINE_BYTES and not is_long:
                    is_long = True
                    held.clear()
                    yield offset, number, None
                if not is_long:
                    held.append(block)
                continue
            if is_long:
                number += 1
                offset += held_bytes + end
                held, held_bytes, is_long, block = [], 0, False, block[end:]
                end = block.rfind(b"\n") + 1
            whole = b"".join((*held, block[:end]))
            if whole:
                yield offset, number, whole
            number += whole.count(b"\n")
            offset += len(whole)
            held = [block[end:]]
            held_bytes = len(held[0])
        if held_bytes and not is_long:
            yield offset, number, b"".join(held)

    def _pass_over_long(self, position: int) -> None:
        self.pass_over(
            position,
            TOO_LONG,
            f"{self.place(position)}: longer than {MAXIMUM_LINE_BYTES >> 20} MiB; expected text in lines: put line "
            "ends into the file",
        )

    def _pass_over_bytes(self, position: int, line: bytes, offset: int) -> None:
        """Pass over a line that is not text; it begins at byte `offset` of the text."""
        place = line.find(b"\0")
        try:
            line.decode()
        except UnicodeDecodeError as error:
            place = error.start
        byte_text = "a NUL byte" if line[place] == 0 else f"the byte 0x{line[place]:02x}, which is not UTF-8"
        self.pass_over(
            position,
            NOT_TEXT,
            f"{self.place(position)}, byte {offset + place} of the text: {byte_text}; expected UTF-8 text: convert the "
            "file (iconv -f OLD -t UTF-8)"
            + (", leave it out" if self._may_skip else f", {_ENCODING_FLAG}, or mend the line"),
        )

    def _decompressed(self) -> Iterator[bytes]:
        kind = self.source.compression
        try:
            file: Any = COMPRESSIONS[kind](self) if kind else self
            while block := file.read(BLOCK_BYTES):
                if self._cr_ends is None:
                    if self.look:
                        self.look(str(self.source.path), block)
                    self._cr_ends = not self._cr_is_space and self._begins_with_cr_ends(block)
                yield block.replace(b"\r", b"\n") if self._cr_ends else block
        except WideWindow as error:
            raise UserError(
                f"{self.source.path} {error}; expected at most {MAXIMUM_WINDOW_BYTES >> 20:,} MiB: decompress it, or "
                "compress it again, with zstd --long=27"
            ) from error
        except (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError) as error:
            # Damaged gzip and bz2 data raise an OSError without a number.
            if isinstance(error, OSError) and not (kind and error.errno is None):
                raise file_error(error, f"cannot read {self.source.path}: {error.strerror}") from error
            with self.source.open() as file:
                if not MAGIC[kind].match(file.read(MAGIC_BYTES) or b""):
                    raise DamagedData(
                        f"{self.source.path} does not begin as {kind} data do: it is damaged, or a server or a program "
                        f"has decompressed it on the way (then name it without {kind}); fetch or compress it again"
                    ) from error
            raise DamagedData(
                f"{self.source.path} is truncated or damaged ({error}); expected whole {kind} data: "
                "fetch or compress the file again"
            ) from error


def text_of(line: bytes, offset: int) -> str | None:
    """Decode bytes that begin at byte `offset` of a text; None if they are not UTF-8 text."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    return text.removeprefix("\ufeff") if offset == 0 else text


def line_offsets(block: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield (byte, line without its end) for whole lines, of which the first begins at byte `offset`."""
    for line in block.removesuffix(b"\n").split(b"\n"):
        yield offset, line
        offset += len(line) + 1


def changed_names(sources: list[SourceFile]) -> list[str]:
    """The names of the sources whose files have changed since they were found."""
    elsewhere = {source.path: source for source in sources if isinstance(source.path, Place)}
    now = {found.place: [found.bytes, found.tag] for found in entries(list(elsewhere))} if elsewhere else {}
    changed = [source for place, source in elsewhere.items() if now[place] != source.state()]
    here = [(source, source.path) for source in sources if isinstance(source.path, Path)]
    changed += [source for source, path in here if not path.exists() or path.stat().st_size != source.bytes]
    return [source.name for source in changed]


def suffixes(path: Path | Place) -> tuple[str, str]:
    """The suffixes in a file's name: of the content, and of the compression (or ""), such as (".txt", ".gz")."""
    compression = path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else ""
    inner = (path.with_suffix("") if compression else path).suffix.lower()
    return DUMP_SUFFIX if _DUMP_PART.fullmatch(inner) else inner, compression


Item = TypeVar("Item")
ITEMS_BYTES = 4 << 20  # of a block's characters, and of _ITEM_BYTES for each item
WHOLE = math.inf  # for one block
_ITEM_BYTES = 1024  # an item's own share of a block's size: a block has at most 4,096 items


def in_blocks(items: Iterable[Item], most: float, characters: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield items in their order, in lists that end when their size reaches `most` bytes.

    >>> [len(block) for block in in_blocks(["a" * 1000] * 5, 4000, len)]
    [2, 2, 1]
    """
    block: list[Item] = []
    size = 0
    for item in items:
        block.append(item)
        size += _ITEM_BYTES + characters(item)
        if size >= most:
            yield block
            block, size = [], 0
    if block:
        yield block
