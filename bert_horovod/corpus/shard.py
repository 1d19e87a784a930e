"""A shard: one file with the arrays of many documents, at offsets that the manifest states.

The file is in the safetensors format (an 8-byte length, a JSON header, the arrays without gaps), so that other programs
read it too. The arrays, in this order:

    tokens           uint16 (uint32 when the vocabulary needs it) [tokens], and zeros up to a whole page of 4 KiB
    document_hashes  uint64 [documents, 2]    first 128 bits of the SHA-256 of the document's text
    checksums        uint32 [pages]           CRC-32 of each page of tokens
    sentences        uint32 [sentences + 1]   sentence i is tokens[sentences[i]:sentences[i + 1]]
    sections         uint32 [sections + 1]    section i is sentences sections[i] to sections[i + 1]
    documents        uint32 [documents + 1]   document i is sections documents[i] to documents[i + 1]
    parts            uint32 [parts + 1]       block i, a unit of preparation, is documents parts[i] to parts[i + 1]
    held_out         bool   [sections]        true: never trained on
    titles           uint8  [bytes]           UTF-8, a line for each document: its title, or nothing
    record           uint8  [bytes]           JSON: how the blocks were made (see preparing/blocks.py)

No sentence and no document is empty, none lies in two blocks or shards. No masks, no padding and no special tokens.
"""

import hashlib
import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bert_horovod.errors import DamagedData, damaged
from bert_horovod.storage.reading import check_type, open_regular, parse_json, shown

SUFFIX = ".safetensors"
COUNTS = ("documents", "sections", "sentences", "tokens", "bytes")  # of a shard, in the manifest
PAGE_BYTES = 4096
ARRAYS = (
    "tokens",
    "document_hashes",
    "checksums",
    "sentences",
    "sections",
    "documents",
    "parts",
    "held_out",
    "titles",
    "record",
)
_OFFSETS = ("sentences", "sections", "documents")
_DTYPES = {"uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL", "uint8": "U8"}
_HEADER_LIMIT = 1 << 20
_BLOCK = 1 << 20
MOST_TOKENS = 1 << 31  # of a shard, because offsets are uint32


@dataclass(frozen=True)
class Shard:
    """One shard's arrays, as the module's docstring states them; tokens end without the zeros."""

    tokens: np.ndarray
    sentences: np.ndarray
    sections: np.ndarray
    documents: np.ndarray
    held_out: np.ndarray
    document_hashes: np.ndarray
    titles: np.ndarray
    parts: np.ndarray | None = None  # None: all documents are one part

    def split(self) -> "list[Shard]":
        """The parts, each with offsets of its own."""
        if self.parts is None or len(self.parts) == 2:
            return [self]
        ends = np.flatnonzero(self.titles == ord("\n")) + 1
        lines = np.concatenate(([0], ends))
        return [
            self._between(int(low), int(high), lines) for low, high in zip(self.parts[:-1], self.parts[1:], strict=True)
        ]

    def _between(self, low: int, high: int, lines: np.ndarray) -> "Shard":
        documents = self.documents[low : high + 1]
        sections = self.sections[documents[0] : documents[-1] + 1]
        sentences = self.sentences[sections[0] : sections[-1] + 1]
        return Shard(
            tokens=self.tokens[sentences[0] : sentences[-1]],
            sentences=sentences - sentences[0],
            sections=sections - sections[0],
            documents=documents - documents[0],
            held_out=self.held_out[documents[0] : documents[-1]],
            document_hashes=self.document_hashes[low:high],
            titles=self.titles[lines[low] : lines[high]],
        )


def token_dtype(vocabulary_size: int) -> np.dtype:
    """The narrowest dtype that holds every id of a vocabulary."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)


def shard_file(store: Path, name: str) -> Path:
    """The file of a shard of this name."""
    return store / f"{name}{SUFFIX}"


def write_shard(
    path: Path, parts: Sequence[Shard], text_bytes: int, record: Callable[[str], bytes] = lambda _: b"{}"
) -> dict[str, Any]:
    """Write parts, one after another, as a shard's file, and sync it; return its entry in the manifest.

    Tokens are read part by part, so they may be mapped. `record` makes the file's record, of a fixed length, from the
    SHA-256 (hexadecimal) of all that comes before it.
    """
    small = _joined(parts)
    tokens = sum(len(part.tokens) for part in parts)
    dtype = parts[0].tokens.dtype
    pages = -(-tokens * dtype.itemsize // PAGE_BYTES)
    record_bytes = len(record("0" * 64))
    shapes = {
        "tokens": (dtype, (pages * PAGE_BYTES // dtype.itemsize,)),
        "checksums": (np.dtype(np.uint32), (pages,)),
        "record": (np.dtype(np.uint8), (record_bytes,)),
    } | {name: (array.dtype, array.shape) for name, array in small.items()}
    header, begins = _header(shapes)
    arrays: dict[str, list[int]] = {}
    with open(path, "xb") as file:
        digest = _Hashing(file)
        digest.write(header)
        small["checksums"] = np.fromiter(_write_pages(digest, (part.tokens for part in parts)), np.uint32, pages)
        for name in ARRAYS[1:]:
            content = record(digest.hexdigest()) if name == "record" else _bytes_of(small[name])
            arrays[name] = [begins[name], len(content), digest.write(content)]
        file.flush()
        os.fsync(file.fileno())
    arrays["tokens"] = [begins["tokens"], pages * PAGE_BYTES, 0]  # `checksums` has their CRCs
    counts = (*(len(small[name]) - 1 for name in COUNTS[:3]), tokens, text_bytes)
    return {
        "name": path.name.removesuffix(SUFFIX),
        **dict(zip(COUNTS, map(int, counts), strict=True)),
        "parts": len(parts),
        "arrays": arrays,
        "sha256": digest.hexdigest(),
    }


class _Hashing:
    """Writes to a file and hashes what it writes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()

    def write(self, content: bytes | memoryview) -> int:
        """Write bytes; returns their CRC-32."""
        self._file.write(content)
        self._digest.update(content)
        return zlib.crc32(content)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _joined(parts: Sequence[Shard]) -> dict[str, np.ndarray]:
    """All arrays but tokens, checksums and record, of parts one after another."""
    arrays: dict[str, np.ndarray] = {}
    for name in _OFFSETS:
        lengths = [np.diff(getattr(part, name)) for part in parts]
        arrays[name] = np.concatenate([[0], np.cumsum(np.concatenate(lengths), dtype=np.int64)]).astype(np.uint32)
    documents = [len(part.documents) - 1 for part in parts]
    arrays["parts"] = np.concatenate([[0], np.cumsum(documents)]).astype(np.uint32)
    for name in ("held_out", "titles", "document_hashes"):
        arrays[name] = np.ascontiguousarray(np.concatenate([getattr(part, name) for part in parts]))
    return arrays


def _header(shapes: dict[str, tuple[np.dtype, tuple[int, ...]]]) -> tuple[bytes, dict[str, int]]:
    """The beginning of the file, padded to a whole page, and where each array begins in the file."""
    table: dict[str, Any] = {}
    begin = 0
    for name in ARRAYS:
        dtype, shape = shapes[name]
        end = begin + dtype.itemsize * math.prod(shape)
        table[name] = {"dtype": _DTYPES[dtype.name], "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(table).encode()
    text += b" " * (-(8 + len(text)) % PAGE_BYTES)
    header = struct.pack("<Q", len(text)) + text
    return header, {name: len(header) + table[name]["data_offsets"][0] for name in ARRAYS}


def _write_pages(file: _Hashing, arrays: Iterable[np.ndarray]) -> Iterator[int]:
    """Write arrays one after another, and zeros up to a whole page; yield the CRC-32 of each page."""
    rest = b""
    for array in arrays:
        data = _bytes_of(array)
        for begin in range(0, len(data), _BLOCK):
            block = rest + bytes(data[begin : begin + _BLOCK])
            whole = len(block) // PAGE_BYTES * PAGE_BYTES
            yield from _write_whole(file, block[:whole])
            rest = block[whole:]
    if rest:
        yield from _write_whole(file, rest.ljust(PAGE_BYTES, b"\0"))


def _write_whole(file: _Hashing, block: bytes) -> Iterator[int]:
    file.write(block)
    yield from page_crcs(block, PAGE_BYTES)


def page_crcs(data: bytes | memoryview, page_bytes: int) -> Iterator[int]:
    """The CRC-32 of each page of some bytes; the last one may be shorter."""
    for begin in range(0, len(data), page_bytes):
        yield zlib.crc32(data[begin : begin + page_bytes])


def describe_shard(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a shard's file says where no manifest describes it: the entry's arrays and sha256, and the record.

    Raises OSError, and ValueError or KeyError if the file is not whole.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))
        if length > min(_HEADER_LIMIT, size):
            raise ValueError("its header is too long")
        head = file.read(length)
        table = parse_json(head)
        check_type(table, dict[str, dict[str, Any]], "its header")
        digest = hashlib.sha256(struct.pack("<Q", length) + head)
        arrays: dict[str, list[int]] = {}
        before_record = ""
        for name in ARRAYS:
            check_type(table[name].get("data_offsets"), tuple[int, int], f"{name}.data_offsets")
            begin, end = table[name]["data_offsets"]
            if 8 + length + begin != file.tell():
                raise ValueError(f"{name} does not begin where the array before it ends")
            before_record = digest.hexdigest()
            content, crc = b"", 0
            for block in _blocks(file, end - begin):
                digest.update(block)
                crc = 0 if name == "tokens" else zlib.crc32(block, crc)
                content = content + block if name == "record" else b""
            arrays[name] = [8 + length + begin, end - begin, crc]
        if file.read(1):
            raise ValueError("it goes on after its record")
    record = parse_json(content)
    check_type(record, dict[str, Any], "its record")
    if record.get("sha256") != before_record:
        raise ValueError("its SHA-256 is another")
    return {"arrays": arrays, "sha256": digest.hexdigest()}, record


def _blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0:
        block = file.read(min(_BLOCK, size))
        if not block:
            raise ValueError("it ends too early")
        size -= len(block)
        yield block


def layout(shard_entry: dict[str, Any], vocabulary_size: int) -> dict[str, tuple[np.dtype, tuple[int, ...], int]]:
    """The arrays of an entry by name: dtype, shape, and where it begins; raises ValueError if they contradict."""
    dtype, word, byte = token_dtype(vocabulary_size), np.dtype(np.uint32), np.dtype(np.uint8)
    pages = -(-shard_entry["tokens"] * dtype.itemsize // PAGE_BYTES)
    shapes: dict[str, tuple[np.dtype, tuple[int, ...] | None]] = {
        "tokens": (dtype, (pages * PAGE_BYTES // dtype.itemsize,)),
        "document_hashes": (np.dtype(np.uint64), (shard_entry["documents"], 2)),
        "checksums": (word, (pages,)),
        **{name: (word, (shard_entry[name] + 1,)) for name in (*_OFFSETS, "parts")},
        "held_out": (np.dtype(bool), (shard_entry["sections"],)),
        "titles": (byte, None),
        "record": (byte, None),
    }
    arrays = {}
    for name, (dtype, shape) in shapes.items():
        begin, size = shard_entry["arrays"][name][:2]
        shape = (size,) if shape is None else shape
        if size != dtype.itemsize * math.prod(shape) or begin % dtype.itemsize:
            raise ValueError(
                f"{shard_entry['name']}.arrays.{name} has {size} bytes, expected {shown(shape)} of {dtype}"
            )
        arrays[name] = (dtype, shape, begin)
    return arrays


def map_shard(store: Path, shard_entry: dict[str, Any], vocabulary_size: int) -> Shard:
    """Map a shard's file, and check all but the tokens (their CRCs, their ids); raises ReportedError."""
    file = shard_file(store, shard_entry["name"])
    try:
        arrays = layout(shard_entry, vocabulary_size)
        with open_regular(file, inside=store) as opened:
            size, expected = os.fstat(opened.fileno()).st_size, file_bytes(shard_entry)
            if size != expected:
                raise ValueError(f"it has {size:,} bytes, expected {expected:,}")
            content = np.memmap(opened, np.uint8, "r")
        views = {}
        for name, (dtype, shape, begin) in arrays.items():
            view = np.asarray(content[begin : begin + shard_entry["arrays"][name][1]])
            if name != "tokens" and zlib.crc32(view.data) != shard_entry["arrays"][name][2]:
                raise ValueError(f"the CRC of {name} is another")
            views[name] = view.view(dtype).reshape(shape)
    except (OSError, ValueError) as error:
        raise damaged(error, file, see_which(store)) from error
    views["tokens"] = views["tokens"][: shard_entry["tokens"]]
    del views["checksums"], views["record"]
    return checked(Shard(**views), file)


def file_bytes(shard_entry: dict[str, Any]) -> int:
    """The size of a shard's file."""
    return max(begin + size for begin, size, _ in shard_entry["arrays"].values())


def see_which(store: Path) -> str:
    """What mends a shard, for a message."""
    return f"see which shards with: bert-horovod verify {store}"


def checked(shard: Shard, path: Path) -> Shard:
    """The shard; raises DamagedData if its arrays contradict each other."""
    problem = shard_problem(shard)
    if problem:
        raise DamagedData(
            f"{path} is damaged: {problem}; run the same prepare command again: it makes the damaged shards anew"
        )
    return shard


def shard_problem(shard: Shard) -> str | None:
    """Describe the first error in a shard's arrays, or return None."""
    ends = {"sentences": len(shard.tokens), "sections": len(shard.sentences) - 1, "documents": len(shard.sections) - 1}
    if shard.parts is not None:
        ends["parts"] = len(shard.documents) - 1
    for name, end in ends.items():
        offsets = getattr(shard, name)
        if offsets[0] != 0 or offsets[-1] != end or np.any(offsets[1:] <= offsets[:-1]):
            return f"the offsets in {name} do not rise from 0 to {end}"
    if shard.held_out.view(np.uint8).max(initial=0) > 1:  # NumPy counts other values wrongly and then copies too much
        return "held_out has values other than true and false"
    if np.count_nonzero(shard.titles == ord("\n")) != len(shard.documents) - 1:
        return "there is not one title a document"
    return None
