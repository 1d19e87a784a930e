"""Compressed files, read as a stream: an error where data are damaged or truncated, no text lost."""

import bz2
import gzip
import io
import lzma
import re
from collections.abc import Callable
from typing import Any

import zstandard

COMPRESSIONS = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".bz2": lambda raw: _Streams(raw, bz2.BZ2Decompressor),
    ".xz": lambda raw: _Streams(raw, lzma.LZMADecompressor, padding=b"\0"),
    ".zst": lambda raw: _ZstandardFile(raw),
}
MAGIC = {  # the first bytes; Zstandard's also of a frame to skip
    ".gz": re.compile(rb"\x1f\x8b"),
    ".bz2": re.compile(rb"BZh"),
    ".xz": re.compile(rb"\xfd7zXZ\0|\x5d\0\0"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
}
MAGIC_BYTES = 6
STREAM = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")  # first bytes of a bz2 stream; \x17...: of an empty one
STREAM_HEAD_BYTES = 10
MAXIMUM_WINDOW_BYTES = 1 << 31  # of Zstandard, the most that the library reads (zstd --long=31)
_FIRST_STREAM_BYTES = 4 << 20  # a longer first stream is assumed to be the only one
_READ_BYTES = 1 << 20


class WideWindow(Exception):
    """A frame of Zstandard has a window above MAXIMUM_WINDOW_BYTES."""


def has_streams(open_file: Callable[[], io.RawIOBase]) -> bool:
    """Whether a .bz2 file, which `open_file` opens, has a short first stream and another one after it."""
    decompressor = bz2.BZ2Decompressor()
    try:
        with open_file() as file:
            beginning = file.read(_FIRST_STREAM_BYTES)
        while not decompressor.eof:
            decompressor.decompress(beginning, _READ_BYTES)
            if not beginning and decompressor.needs_input:
                return False
            beginning = b""
    except (OSError, EOFError):
        return False  # whoever reads the file reports the error later
    return STREAM.match(decompressor.unused_data) is not None


class _Streams:
    """Reads bzip2 or xz streams, one after another, as one file.

    Python's own readers treat bytes that begin no stream as the end of the file, so text would be lost without an error
    if the first bytes of a stream are damaged; here this is an error.
    """

    def __init__(self, raw: io.RawIOBase, make: Callable[[], Any], padding: bytes = b""):
        """`padding`: the byte that may follow a stream."""
        self._raw, self._make, self._padding = raw, make, padding
        self._stream: Any = None
        self._waiting = b""

    def read(self, size: int) -> bytes:
        while True:
            compressed = b""
            if self._stream is None or self._stream.needs_input:
                compressed = self._waiting or self._raw.read(1 << 14)
                self._waiting = b""
                if not compressed and self._stream is not None:
                    raise EOFError("the data ends in the middle of a stream")
                if not compressed:
                    return b""
            if self._stream is None:
                compressed = compressed.lstrip(self._padding) if self._padding else compressed
                if not compressed:
                    continue
                self._stream = self._make()
            block = self._stream.decompress(compressed, size)
            if self._stream.eof:
                self._waiting, self._stream = self._stream.unused_data, None
            if block:
                return block


class _ZstandardFile:
    """Reads Zstandard frames as one file; unlike the library's own reader, it reports a truncated frame."""

    def __init__(self, raw: io.RawIOBase):
        self._raw, self._waiting = raw, b""
        self._frame: Any = None

    def read(self, _size: int) -> bytes:
        while True:
            compressed = self._waiting or self._raw.read(1 << 14)
            self._waiting = b""
            if not compressed:
                if self._frame is not None:
                    raise EOFError("the data ends in the middle of a frame")
                return b""
            frame = self._frame or _new_frame(compressed)
            block = frame.decompress(compressed)
            self._frame = None if frame.eof else frame
            self._waiting = frame.unused_data if frame.eof else b""
            if block:
                return block


def _new_frame(compressed: bytes) -> Any:
    """A decompressor of the frame that begins these bytes; raises WideWindow."""
    # The frame's header (RFC 8878): magic number, descriptor, and exponent and mantissa of the window, if it has one.
    if compressed[:4] == zstandard.FRAME_HEADER and len(compressed) > 5 and not compressed[4] & 0x20:
        window_bytes = (8 + (compressed[5] & 7)) << (7 + (compressed[5] >> 3))
        if window_bytes > MAXIMUM_WINDOW_BYTES:
            raise WideWindow(f"was compressed with a window of {window_bytes >> 20:,} MiB")
    return zstandard.ZstdDecompressor(max_window_size=MAXIMUM_WINDOW_BYTES).decompressobj()
