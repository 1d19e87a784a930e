"""Finding and reading input files: plain or compressed, as bytes or as checked UTF-8 lines, in memory that does not
grow with the file."""

import bz2
import glob
import gzip
import hashlib
import io
import lzma
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from bert_horovod.errors import DamagedData, UserError, file_error

BLOCK_BYTES = 1 << 20
MAXIMUM_LINE_BYTES = 64 << 20
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
DUMP_SUFFIX = ".xml"
TEXT_SUFFIXES = (".txt", ".text", "", DUMP_SUFFIX, *JSON_SUFFIXES)  # what a directory is searched for
_DUMP_PART = re.compile(r"\.xml-p\d+p\d+")  # as Wikimedia names the parts of a dump
_DUMP_INDEX = "-multistream-index"  # in the name of a list that comes with a dump and is no text
COMPRESSIONS = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": lambda raw: _ZstandardFile(raw),
}


@dataclass(frozen=True)
class SourceFile:
    """An input file; `name` is what the manifest calls it: relative to the directory that was given, or the file's
    own name."""

    path: Path
    name: str
    bytes: int

    @property
    def kind(self) -> str:
        """What the file holds, by its name: "json" (one object a line), "wikipedia" (a dump) or "text"."""
        suffix = _suffixes(self.path)[0]
        return "json" if suffix in JSON_SUFFIXES else "wikipedia" if suffix == DUMP_SUFFIX else "text"

    @property
    def compression(self) -> str:
        """The compression's suffix, a key of COMPRESSIONS, or "" for a plain file."""
        return _suffixes(self.path)[1]


def find_sources(inputs: list[str]) -> list[SourceFile]:
    """List the files that `--input` values mean, each file once, in a fixed order.

    A value is a file, a directory (searched recursively, sorted by name; hidden files and files with other suffixes
    than TEXT_SUFFIXES are passed over, the latter named on stderr) or a glob (sorted). Raises UserError when a value
    matches no file.
    """
    found: dict[str, SourceFile] = {}
    for value in inputs:
        for path, name in _matches(value):
            try:
                source = SourceFile(path, name, path.stat().st_size)
            except OSError as error:
                raise file_error(error, f"cannot read {path}: {error.strerror}") from error
            found.setdefault(os.path.realpath(path), source)
    return list(found.values())


class SourceReader(io.RawIOBase):
    """An open source: counts and hashes the bytes as they lie on the disk, and gives checked lines of text.

    Attributes: `source`; `begin`, the byte to begin with; `bytes_read`, compressed bytes so far; `passed_over`, how
    much of what was read so far is left out of the text on purpose, by what it is: filled by those who read.
    """

    def __init__(self, source: SourceFile):
        super().__init__()
        self.source, self.begin = source, 0
        self.bytes_read = 0
        self.passed_over: Counter[str] = Counter()
        self._digest = hashlib.sha256()
        try:
            self._file: BinaryIO = open(source.path, "rb", buffering=0)  # noqa: SIM115 (closed by close)
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
        """What a message says of the place to which lines() gives this position."""
        return f"{self.source.path}, line {position}"

    def lines(self, _is_cut: Callable[[str], bool] | None = None) -> Iterator[tuple[int, str]]:
        """Yield (line number from 1, line without its end); raises UserError for anything that is not UTF-8 text.

        `_is_cut`, whether a part of the source may begin or end with a line, means nothing to a whole source.
        """
        for offset, number, data in self._whole_lines(self._decompressed()):
            yield from enumerate(self._decode(data, offset, number).removesuffix("\n").split("\n"), number)

    def blocks(self) -> Iterator[tuple[bool, bytes]]:
        """Yield (False, block of decompressed bytes); in a part of a source, True for what lies beyond the part."""
        return ((False, block) for block in self._decompressed())

    def _position(self, _offset: int, number: int) -> int:
        """What lines() gives as the position of the line that begins at this byte and has this number."""
        return number

    def _whole_lines(self, blocks: Iterator[bytes], offset: int = 0) -> Iterator[tuple[int, int, bytes]]:
        """Yield (byte, number of the first line, one or more whole lines); the first block begins at byte `offset`."""
        number, held, held_bytes = 1, [], 0
        for block in blocks:
            end = block.rfind(b"\n") + 1
            if not end:
                held.append(block)
                held_bytes += len(block)
                if held_bytes > MAXIMUM_LINE_BYTES:
                    raise UserError(
                        f"{self.place(self._position(offset, number))}: longer than {MAXIMUM_LINE_BYTES >> 20} MiB; "
                        "expected text in lines: put line ends into the file"
                    )
                continue
            whole = b"".join((*held, block[:end]))
            yield offset, number, whole
            number += whole.count(b"\n")
            offset += len(whole)
            held = [block[end:]]
            held_bytes = len(held[0])
        if held_bytes:
            yield offset, number, b"".join(held)

    def _decompressed(self) -> Iterator[bytes]:
        kind = self.source.compression
        try:
            file = COMPRESSIONS[kind](self) if kind else self
            while block := file.read(BLOCK_BYTES):
                yield block
        except (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile) as error:
            raise DamagedData(
                f"{self.source.path} is truncated or damaged ({error}); expected whole {kind} data: "
                "fetch or compress the file again"
            ) from error
        except OSError as error:
            if kind and error.errno is None:  # as bz2 reports damaged data
                raise DamagedData(
                    f"{self.source.path} is damaged ({error}); expected whole {kind} data: "
                    "fetch or compress the file again"
                ) from error
            raise file_error(error, f"cannot read {self.source.path}: {error.strerror}") from error

    def _decode(self, data: bytes, offset: int, number: int | None = None) -> str:
        try:
            text = data.decode()
            nul = data.find(b"\0")
        except UnicodeDecodeError as error:
            text, nul = "", error.start
        if nul >= 0:
            what = "a NUL byte" if data[nul] == 0 else f"the byte 0x{data[nul]:02x}, which is not UTF-8"
            line = "" if number is None else f"line {number + data.count(10, 0, nul)}, "
            raise UserError(
                f"{self.source.path}, {line}byte {offset + nul} of the text: {what}; "
                "expected UTF-8 text: convert the file (iconv -f OLD -t UTF-8) or leave it out"
            )
        return text.removeprefix("\ufeff") if offset == 0 else text


class _ZstandardFile:
    """Zstandard frames as a file; unlike the library's own reader it notices a truncated one."""

    def __init__(self, raw: io.RawIOBase):
        self._raw, self._frame, self._waiting = raw, None, b""

    def read(self, _size: int) -> bytes:
        while True:
            data = self._waiting or self._raw.read(1 << 14)
            self._waiting = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("the data ends in the middle of a frame")
                return b""
            frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            block = frame.decompress(data)
            self._frame = None if frame.eof else frame
            self._waiting = frame.unused_data if frame.eof else b""
            if block:
                return block


def _suffixes(path: Path) -> tuple[str, str]:
    compression = path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else ""
    inner = (path.with_suffix("") if compression else path).suffix.lower()
    return DUMP_SUFFIX if _DUMP_PART.fullmatch(inner) else inner, compression


def _matches(value: str) -> list[tuple[Path, str]]:
    path = Path(value)
    if path.is_dir():
        files = _walk(path)
        texts = [file for file in files if _is_text(file)]
        others = [file.name for file in files if not _is_text(file)]
        if not texts:
            raise UserError(
                f"--input {value}: the directory holds no text; expected .txt, .jsonl or .xml files, plain or "
                "compressed; name files with other suffixes one by one or by a glob pattern"
            )
        if others:
            print(
                f"passing over {len(others)} files in {value} that are not named as text: {', '.join(others[:5])}"
                f"{', ...' if len(others) > 5 else ''}",
                file=sys.stderr,
            )
        return [(file, file.relative_to(path).as_posix()) for file in texts]
    paths = [path] if path.exists() else sorted(map(Path, glob.glob(value, recursive=True)))
    files = [file for file in paths if not file.is_dir()]
    if not files:
        raise UserError(f"--input {value}: no such file; expected a file, a directory or a glob pattern in quotes")
    return [(file, file.name) for file in files]


def _is_text(file: Path) -> bool:
    return _suffixes(file)[0] in TEXT_SUFFIXES and _DUMP_INDEX not in file.name


def _walk(directory: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise file_error(error, f"cannot read {error.filename}: {error.strerror}") from error

    files = []
    for folder, folders, names in os.walk(directory, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted(files, key=lambda file: file.relative_to(directory).as_posix())
