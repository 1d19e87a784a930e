"""Pieces of one input file, so that several workers can share it: together the pieces hold every document once."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from bert_horovod.corpus.reading.compression import STREAM, STREAM_HEAD_BYTES
from bert_horovod.corpus.reading.formats import format_of
from bert_horovod.corpus.reading.sources import BLOCK_BYTES, SourceFile, SourceReader, line_offsets, text_of


@dataclass(frozen=True)
class Piece:
    """The documents that begin between two bytes of a source's file on the disk."""

    source: SourceFile
    begin: int
    end: int  # exclusive

    @property
    def is_whole(self) -> bool:
        """Whether this is all of the source."""
        return self.begin == 0 and self.end == self.source.bytes


def split_source(source: SourceFile, documents: str, piece_bytes: int) -> list[Piece]:
    """Cut a source into pieces of `piece_bytes` on the disk, or into one if its format cannot be cut."""
    if not format_of(source).may_be_cut(source, documents):
        return [Piece(source, 0, source.bytes)]
    return [
        Piece(source, begin, min(begin + piece_bytes, source.bytes))
        for begin in range(0, max(1, source.bytes), piece_bytes)
    ]


def piece_reader(piece: Piece, text_field: str = "text", bad_lines: str | None = "stop") -> SourceReader:
    """Open a piece, as SourceReader opens a file; use sha256() only if the piece is the whole file."""
    if own_reader := format_of(piece.source).reader:
        return own_reader(piece.source, text_field, bad_lines, (piece.begin, piece.end))
    if piece.is_whole:
        return SourceReader(piece.source, text_field, bad_lines)
    return PartReader(piece, text_field, bad_lines)


class PartReader(SourceReader):
    """An open part of a source, from any byte to any other; positions are bytes on the disk.

    It begins with the first line (or bz2 stream) that begins in the part, and reads on after the part's end until its
    last document is complete.
    """

    def __init__(self, piece: Piece, text_field: str = "text", bad_lines: str | None = "stop"):
        super().__init__(piece.source, text_field, bad_lines)
        self.begin, self.end = piece.begin, piece.end
        self._line = 0  # lines of this part seen so far
        self._limit: int | None = None  # readinto() stops at this byte as if the file ended there

    def readinto(self, buffer) -> int:
        """Read bytes as they lie on the disk."""
        bytes_left = len(buffer) if self._limit is None else max(0, self._limit - self._file.tell())
        count = self._file.readinto(memoryview(buffer)[:bytes_left])
        self.bytes_read += count
        return count

    def sha256(self) -> str:
        """Raise ValueError, as only a whole file has a hash."""
        raise ValueError(f"a part of {self.source.path} has no hash")

    def place(self, position: int) -> str:
        """The name, in a message, of a position that lines() yields."""
        return f"{self.source.path}, byte {position}"

    def lines(self, is_cut: Callable[[str], bool] | None = None) -> Iterator[tuple[int, str]]:
        """Yield (byte, line without its end) of a plain file; anything that is not UTF-8 text is a bad line.

        Lines at which parts may be cut are those for which `is_cut` is true (None: all). The lines of this part go from
        the first such line that begins in it (or byte 0) up to the first such line that begins after it, exclusive.
        """
        inside = self.begin == 0
        for offset, _, encoded in self._whole_lines(*self._from_line()):
            text = None if encoded is None else text_of(encoded, offset)
            lines: list[str | None] = [None] if text is None else [*text.removesuffix("\n").split("\n")]
            raws = [b""] if encoded is None else encoded.split(b"\n")
            if text is None and encoded is not None:
                lines = [text_of(raw, begin) for begin, raw in line_offsets(encoded, offset)]
            for line, raw in zip(lines, raws, strict=False):
                may_cut = is_cut is None or (line is not None and is_cut(line))
                if may_cut and offset >= self.end:
                    return
                inside = inside or may_cut
                self._line += 1
                if inside and line is not None:
                    yield offset, line
                elif inside and encoded is None:
                    self._pass_over_long(offset)
                elif inside:
                    self._pass_over_bytes(offset, raw, offset)
                offset += len(raw) + 1

    def blocks(self) -> Iterator[tuple[bool, bytes]]:
        """Yield (whether the block is after this part, block of decompressed bytes), up to the end of the file.

        In a compressed file, a stream belongs to the part in which it begins.
        """
        align = self._next_stream if self.source.compression else int
        begin, end = align(self.begin), align(self.end)
        for beyond, start, stop in ((False, begin, end), (True, end, self.source.bytes)):
            if start < stop:
                self._file.seek(start)
                self._limit = stop
                yield from ((beyond, block) for block in self._decompressed())

    def _begins_with_cr_ends(self, first: bytes) -> bool:
        if self.begin == 0:
            return super()._begins_with_cr_ends(first)
        with self.source.open() as file:
            return super()._begins_with_cr_ends(file.read(BLOCK_BYTES))

    def _is_strict(self, _position: int) -> bool:
        # A part that begins later does not know how many lines come before it: assume more than the strict ones.
        return self._strict_lines == math.inf or (self.begin == 0 and self._line <= self._strict_lines)

    def _from_line(self) -> tuple[Iterator[bytes], int]:
        """The blocks from the first line that begins at or after `begin`, and the byte where this line begins."""
        if self.begin == 0:
            return self._decompressed(), 0
        offset = self._file.seek(self.begin - 1)
        blocks = self._decompressed()
        for block in blocks:
            end = block.find(b"\n") + 1
            if end:
                return chain([block[end:]], blocks), offset + end
            offset += len(block)
        return blocks, offset

    def _next_stream(self, begin: int) -> int:
        """The byte of the first bz2 stream at or after byte `begin`, or the file's end; 0 gives 0 without a search."""
        if begin == 0:
            return 0
        offset = self._file.seek(begin)
        held = b""
        while block := self._file.read(BLOCK_BYTES):
            held += block
            if match := STREAM.search(held):
                return offset + match.start()
            cut = max(0, len(held) - STREAM_HEAD_BYTES + 1)
            offset += cut
            held = held[cut:]
        return offset + len(held)
