"""Stub until merged."""

from dataclasses import dataclass

from bert_horovod.corpus.sources import Source, SourceReader


@dataclass(frozen=True)
class Piece:
    source: Source
    begin: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its source."""
        return (self.begin, self.end) == (0, self.source.bytes)


def split_source(source: Source, documents: str, piece_bytes: int) -> list[Piece]:
    return [Piece(source, 0, source.bytes)]


def piece_reader(piece: Piece) -> SourceReader:
    return SourceReader(piece.source)
