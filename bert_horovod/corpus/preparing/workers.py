"""A worker's job: read a task's pieces and write its shards, from any block on."""

import functools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bert_horovod.corpus.preparing.blocks import BlockFile, JoinJob, join_blocks, write_block
from bert_horovod.corpus.preparing.builder import ShardBuilder
from bert_horovod.corpus.preparing.planning import Position, Settings, ShardTask
from bert_horovod.corpus.reading.formats import read_sections
from bert_horovod.corpus.reading.pieces import piece_reader
from bert_horovod.corpus.reading.sources import SourceFile, SourceReader
from bert_horovod.corpus.reading.text import Section
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer, TokenizerSettings
from bert_horovod.corpus.reading.vocabulary import read_vocabulary
from bert_horovod.corpus.store import VOCABULARY_FILE
from bert_horovod.errors import NO_ROOM, RunError, file_error
from bert_horovod.runtime.host import peak_resident_bytes

Report = Callable[[int, int], None]  # takes the bytes read on the disk and the documents so far


@dataclass(frozen=True)
class BlocksJob:
    """A run of blocks to make."""

    store: Path
    task: ShardTask
    number: int  # of the first block
    begin: Position  # where the first block begins
    stop_before: int | None  # number of the next block that exists; None: go on to the task's end
    settings: Settings


@dataclass(frozen=True)
class Done:
    """A worker's result: its blocks' files, its time, and its memory in bytes, before the first text and at most."""

    files: list[BlockFile]
    seconds: float  # without its start
    memory_before: int
    memory_peak: int


def do(job: BlocksJob | SourceFile | JoinJob, report: Report) -> Done | str | BlockFile:
    """Do a job: make blocks, hash a file that is read in pieces, or join blocks to a shard."""
    if isinstance(job, JoinJob):
        return join_blocks(job)
    return make_blocks(job, report) if isinstance(job, BlocksJob) else hash_source(job)


def make_blocks(job: BlocksJob, report: Report) -> Done:
    """Make the blocks of a job; raises ReportedError for bad input and for a disk without room."""
    tokenizer = _tokenizer(job.store / VOCABULARY_FILE, job.settings.tokenizer)
    memory_before, start = _forget_peak(), time.monotonic()
    builder = ShardBuilder(
        tokenizer,
        len(tokenizer.vocabulary),
        tokenizer.unknown_id,
        lines=job.settings.documents not in ("file", "paragraph_lines"),
        held_out=job.settings.held_out,
        shard_bytes=job.settings.shard_bytes,
        joint=tokenizer.joint,
    )
    with disk_errors(job.store):
        files = list(_blocks(job, builder, report))
    return Done(files, time.monotonic() - start, memory_before, peak_resident_bytes())


def hash_source(source: SourceFile) -> str:
    """SHA-256, in hexadecimal, of a whole file as it lies on the disk."""
    with SourceReader(source) as reader:
        return reader.sha256()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise the error to report for a full disk, or for a directory that cannot be written."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise RunError(
                f"no room left for {path} ({error.strerror}); a store needs about 2 bytes per token, half the size of "
                "the plain text: make room and run the same command again, which goes on where this one stopped, or "
                "choose another --output_dir"
            ) from error
        raise file_error(
            error, f"cannot write {error.filename or path}: {error.strerror or error}; choose another --output_dir"
        ) from error


def _blocks(job: BlocksJob, builder: ShardBuilder, report: Report) -> Iterator[BlockFile]:
    """Yield the files of the job's blocks as they are written."""
    reading = _Reading(job, report)
    number = job.number
    for section, piece in reading.sections():
        if builder.add(section, piece):
            yield reading.write(builder, number, last=False)
            number += 1
            if number == job.stop_before:
                return
    yield reading.write(builder, number, last=True)


class _Reading:
    """Reads the pieces of a job's task from the job's first block on, and collects the fields of the next Block."""

    def __init__(self, job: BlocksJob, report: Report):
        self._job, self._report = job, report
        self._position = job.begin
        self._reader: SourceReader | None = None
        self._documents = 0
        self._passed_over: Counter[str] = Counter()
        self._hashes: dict[str, str] = {}

    def sections(self) -> Iterator[tuple[Section, int]]:
        """Yield the sections from the job's beginning on, each with its piece's number."""
        pieces, begin, settings = self._job.task.pieces, self._job.begin, self._job.settings
        for number in range(begin.piece, len(pieces)):
            piece = pieces[number]
            with piece_reader(piece, settings.text_field, settings.bad_lines) as self._reader:
                yield from ((section, number) for section in self._sections_of_piece(self._reader))
                if piece.is_whole:
                    self._hashes[str(number)] = self._reader.sha256()
                self._drain()
            self._position = Position(number + 1)

    def write(self, builder: ShardBuilder, number: int, last: bool) -> BlockFile:
        """Write the builder's shard as a block that ends here."""
        shard, totals = builder.take()
        self._drain()
        block = write_block(
            self._job.store,
            shard,
            totals,
            task=self._job.task.key,
            number=number,
            end=tuple(self._position),
            last=last,
            passed_over=dict(self._passed_over),
            hashes=self._hashes,
        )
        self._passed_over, self._hashes = Counter(), {}
        return block

    def _sections_of_piece(self, reader: SourceReader) -> Iterator[Section]:
        begin = self._position
        pieces = self._job.task.pieces
        bytes_before = sum(piece.end - piece.begin for piece in pieces[: begin.piece])
        size = pieces[begin.piece].end - pieces[begin.piece].begin
        for i, section in enumerate(read_sections(reader, self._job.settings.documents, begin.documents)):
            if i < begin.sections:
                reader.passed_over.clear()
                continue
            piece, documents, sections = self._position
            if section.ends_document:
                self._position = Position(piece, documents + 1)
                self._documents += 1
            else:
                self._position = Position(piece, documents, sections + 1)
            # min(): a piece of a file is read past its end, to the end of its last document.
            self._report(bytes_before + min(reader.bytes_read, size), self._documents)
            yield section

    def _drain(self) -> None:
        if self._reader is not None:
            self._passed_over += self._reader.passed_over
            self._reader.passed_over.clear()


@functools.lru_cache(1)
def _tokenizer(vocabulary: Path, settings: TokenizerSettings) -> Tokenizer:
    # Workers are processes: threads of the library beside them would only compete for cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    known = settings.facts.vocabulary if isinstance(settings, JsonTokenizer) else read_vocabulary(vocabulary)
    return Tokenizer(known, settings)


def _forget_peak() -> int:
    """Reset the peak of this process's memory, if the system allows it; returns the peak in bytes."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_resident_bytes()
