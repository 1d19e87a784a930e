"""Queries, their right passages, and the passages of a corpus, for mining.py: many texts, in little memory.

About 100 bytes of memory a text: the texts lie in a nameless file beside the output.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_horovod.corpus.reading.sources import suffixes
from bert_horovod.corpus.reading.table_files import Dialect, kind_of, require_columns, table_blocks
from bert_horovod.corpus.reading.tagged_files import text_blocks
from bert_horovod.errors import UserError, file_error
from bert_horovod.finetuning.embedding_files import passages_of
from bert_horovod.wording import counted

_TEXTS = 4096  # of a block
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd: query and passage together have a key too


class NumberedTexts:
    """Texts by their numbers; equal ones have one number.

    `first`: the place at which each was added; `numbers`: of each text that was added; `keys`: uint64, equal for texts
    that differ in blanks and in upper and lower case alone. They are there after `number`.
    """

    def __init__(self, directory: Path) -> None:
        try:
            self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - it ends with the process
        except OSError as error:
            raise file_error(error, f"--output: cannot write to {directory}: {error.strerror}; name another") from error
        self._ends, self._hashes, self._keys = array("q", [0]), array("Q"), array("Q")

    def __len__(self) -> int:
        """Texts that were added, equal ones too."""
        return len(self._hashes)

    def add(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._file.write(data := text.encode())
            self._ends.append(self._ends[-1] + len(data))
            self._hashes.append(_hash(data))
            self._keys.append(_hash(" ".join(text.casefold().split()).encode()))

    def number(self) -> None:
        self._file.flush()
        _, first, numbers = np.unique(np.frombuffer(self._hashes, np.uint64), return_index=True, return_inverse=True)
        order = np.argsort(first)
        self.first, self.numbers = first[order], np.argsort(order)[numbers]
        self.keys = np.frombuffer(self._keys, np.uint64)[self.first]
        self.digest = hashlib.sha256(self._hashes).hexdigest()

    def __call__(self, numbers: np.ndarray) -> list[str]:
        places = ((self._ends[at], self._ends[at + 1]) for at in self.first[numbers].tolist())
        return [os.pread(self._file.fileno(), end - begin, begin).decode() for begin, end in places]


class QueryPassages(NamedTuple):
    """What is read: pair i is of the query `query[i]` and the right passage `passage[i]`, numbers of texts."""

    columns: tuple[str, str]
    queries: NumberedTexts
    passages: NumberedTexts
    query: np.ndarray
    passage: np.ndarray
    given: int  # passages of the corpus, or without it of the pairs, equal ones too

    def _never(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys of queries, and of a passage each that is no negative of it: right, its own text, or an empty one."""
        queries, passages = self.queries.keys, self.passages.keys
        empty = np.full_like(queries, _hash(b""))
        return (
            np.concatenate([queries[self.query], queries, queries]),
            np.concatenate([passages[self.passage], queries, empty]),
        )

    def right(self) -> np.ndarray:
        """The keys of pairs of a query and a passage that is no negative of it, sorted."""
        return np.unique(pair_keys(*self._never()))

    def most(self) -> int:
        """How many passages are no negatives of a query, at most."""
        keys, counts = np.unique(self.passages.keys, return_counts=True)
        queries, passages = self._never()
        _, once = np.unique(pair_keys(queries, passages), return_index=True)
        place = np.searchsorted(keys, passages[once]).clip(max=len(keys) - 1)
        found = np.where(keys[place] == passages[once], counts[place], 0)
        return int(np.bincount(np.unique(queries[once], return_inverse=True)[1], found).max())


def pair_keys(queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """Keys of queries and passages together, uint64, from theirs."""
    return queries * _MIX + passages


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def read_query_passages(
    source: Path, columns: tuple[str, str], corpus: Path | None, directory: Path, dialect: Dialect, added: bool = True
) -> QueryPassages:
    """Read the pairs of a table, in JSON Lines with lists of right passages too, and the passages of a corpus.

    `corpus`: further passages, a plain text (.txt) of one a line or a table; `added`: whether right passages that it
    lacks are candidates too; else they are refused. Raises ReportedError.
    """
    queries, passages, right, query = (
        NumberedTexts(directory),
        NumberedTexts(directory),
        NumberedTexts(directory),
        array("q"),
    )
    for table in table_blocks(source, columns, dialect, columns[1:]):
        one, other = table.places(columns, "--text_columns")
        for line, fields in table.rows:
            own = passages_of(fields[other])
            if not own:
                raise UserError(f"{source}, line {line}: no passage in the column {columns[1]!r}; expected one")
            query.extend([len(queries)] * len(own))
            queries.add([fields[one]])
            right.add(own)
    if corpus is None:
        passages, further = right, 0
    else:
        for block in _corpus_blocks(corpus, columns[1], dialect):
            passages.add(block)
        if not (further := len(passages)):
            raise UserError(f"--corpus {corpus} is empty; expected a passage in each line, or no --corpus")
        right.number()
        for begin in range(0, len(right), _TEXTS):
            passages.add(right(right.numbers[begin : begin + _TEXTS]))
    for texts in (queries, passages):
        texts.number()
    if not added and further and (missing := np.flatnonzero(passages.first >= further)).size:
        (text,) = passages(missing[:1])
        raise UserError(
            f"{source}: {counted(missing.size, 'passage')} of its pairs, as {text[:40]!r}, not in --corpus {corpus}; "
            "expected all of them there, because --vectors has vectors of its texts alone"
        )
    number = queries.numbers[np.frombuffer(query, np.int64)]
    return QueryPassages(columns, queries, passages, number, passages.numbers[further:], further or len(passages))


def _corpus_blocks(path: Path, name: str, dialect: Dialect) -> Iterator[list[str]]:
    if suffixes(path)[0] == ".txt":
        for block in text_blocks(path, "text"):
            yield [line.removesuffix("\r") for line in block]
        return
    there = require_columns(path, (), "", dialect)
    is_number = name.removeprefix("-").isdecimal() and kind_of(path) != "json"  # then there is no header
    column = name if len(there) > 1 else "1" if is_number else there[0]
    for table in table_blocks(path, (column,), dialect):
        (place,) = table.places((column,), "--text_columns")
        yield [fields[place] for _, fields in table.rows]
