"""Reads minimal pairs: tables of two sentences, of which one is right and the other wrong."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bert_horovod.corpus.reading.finding import walk
from bert_horovod.corpus.reading.sources import JSON_SUFFIXES, suffixes
from bert_horovod.corpus.reading.table_files import read_table
from bert_horovod.errors import UserError

COLUMNS = ("sentence_good", "sentence_bad")  # as BLiMP names them
FILE = "file"
GROUPS = ("linguistics_term", "field")  # columns of BLiMP by which its authors group pairs too
_SUFFIXES = (*JSON_SUFFIXES, ".csv", ".tsv")
_EQUAL_SHARE = 0.01  # of a file's pairs may be of equal sentences; they are ties


class Pairs(NamedTuple):
    """Minimal pairs in the order of their files."""

    sentences: list[tuple[str, str]]  # the right one, and the wrong one
    places: list[tuple[Path, int]]  # file and line of each pair
    groups: dict[str, list[str]]  # by FILE and each of GROUPS: each pair's group; "": it has none

    def every(self, step: int) -> "Pairs":
        """The first pair of each file, and each `step`-th behind it."""
        begun: dict[str, int] = {}
        kept = []
        for number, name in enumerate(self.groups[FILE]):
            begun.setdefault(name, number)
            if (number - begun[name]) % step == 0:
                kept.append(number)
        return self._only(kept)

    def at_most(self, most: int) -> "Pairs":
        """So many pairs, spread over all, or all that there are."""
        count = len(self.sentences)
        return self._only([number * count // most for number in range(most)]) if count > most else self

    def _only(self, numbers: list[int]) -> "Pairs":
        groups = {kind: [names[number] for number in numbers] for kind, names in self.groups.items()}
        return Pairs([self.sentences[i] for i in numbers], [self.places[i] for i in numbers], groups)

    def equal(self) -> list[str]:
        """The places of pairs of equal sentences."""
        pairs = zip(self.sentences, self.places, strict=True)
        return [f"{path}, line {line}" for (good, bad), (path, line) in pairs if good == bad]

    @property
    def hash(self) -> str:
        """SHA-256 of the sentences, in hexadecimal."""
        return hashlib.sha256(repr(self.sentences).encode()).hexdigest()


def read_pairs(inputs: Sequence[Path], columns: tuple[str, ...] = COLUMNS, flag: str = "--pairs") -> Pairs:
    """Read all pairs of files (CSV, TSV or JSON Lines, plain or compressed) and of directories of such files.

    `columns`: those of the right and of the wrong sentence; `flag`: the flag that named the inputs. Raises the errors
    of read_table, and UserError for an empty sentence, and for a file in which more than one pair in 100 is of equal
    sentences.
    """
    if len(set(columns)) != 2 or len(columns) != 2:
        raise UserError(f"--text_columns {','.join(columns)}: expected two, of the right and of the wrong sentence")
    pairs = Pairs([], [], {kind: [] for kind in (FILE, *GROUPS)})
    for path, name in _files(inputs, flag).items():
        table = read_table(path, columns)
        good, bad = table.places(columns, "--text_columns" if flag == "--pairs" else "")
        others = {kind: table.columns.index(kind) for kind in GROUPS if kind in table.columns}
        for number, fields in table.rows:
            if not (fields[good].strip() and fields[bad].strip()):
                column = columns[bool(fields[good].strip())]
                raise UserError(f"{path}, line {number}: {column} is empty; expected two sentences")
            pairs.sentences.append((fields[good], fields[bad]))
            pairs.places.append((path, number))
            pairs.groups[FILE].append(name)
            for kind in GROUPS:
                pairs.groups[kind].append(fields[others[kind]] if kind in others else "")
        equal = [number for number, fields in table.rows if fields[good] == fields[bad]]
        if len(equal) > len(table.rows) * _EQUAL_SHARE:
            raise UserError(
                f"{path}, line {equal[0]}: its two sentences are equal, as in {len(equal):,} of {len(table.rows):,} "
                "pairs; expected a right and a wrong one"
            )
    return pairs


def _files(inputs: Sequence[Path], flag: str) -> dict[Path, str]:
    """The files, each once, with the name of its group: without suffixes, if no other file is called so."""
    names: dict[Path, str] = {}
    known: set[str] = set()
    for path in inputs:
        found = [path]
        if path.is_dir():
            found = _tables(path, flag)
        for file in found:
            if (real := os.path.realpath(file)) not in known:
                known.add(real)
                own = file.name if file == path else file.relative_to(path).as_posix()
                names[file] = own.removesuffix("".join(file.suffixes[-2 if suffixes(file)[1] else -1 :]))
    given = list(names.values())
    return {file: name if given.count(name) == 1 else str(file) for file, name in names.items()}


def _tables(directory: Path, flag: str) -> list[Path]:
    found = [path for path in walk(directory) if suffixes(path)[0] in _SUFFIXES]
    if not found:
        raise UserError(f"{flag} {directory}: no tables there; expected files of pairs: .jsonl, .csv or .tsv, or .gz")
    return found
