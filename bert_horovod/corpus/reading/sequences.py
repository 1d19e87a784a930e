"""Sequences, such as DNA, RNA and proteins, in parts of bounded size; FASTA files.

    >name and description        begins a document, and is its title
    ACGTNNacgtac                 lines are joined; lower case, which marks repeats, becomes upper case

Sequences have no sentences: --split says how they are cut into tokens, letters or k-mers.
"""

import re
import string
from collections.abc import Iterable, Iterator
from typing import Any

from bert_horovod.corpus.reading.sources import SourceReader
from bert_horovod.errors import UserError
from bert_horovod.storage.reading import shown

LETTERS = "letters"  # what --split may be, beside the letters of a k-mer
LONGEST_TOKEN = 16
_UPPER = bytes.maketrans(string.ascii_lowercase.encode(), string.ascii_uppercase.encode())
_LETTERS = f"{string.ascii_uppercase}*-".encode()  # and a stop codon and a gap
_BLANKS = string.whitespace.encode()
_BOM = b"\xef\xbb\xbf"
_NAME_BYTES = 1 << 20  # at most
_CUT = re.compile(r"\.\{(\d{1,2})\}\|\.")
_FASTA = re.compile(rb"(?:\xef\xbb\xbf)?\s*>[^\n]*\n[A-Za-z*-]{20,}\r?(?:\n|\Z)")


def parse_split(given: str) -> str:
    """What --split says, LETTERS or the letters of a k-mer from 2 on; raises UserError for anything else."""
    if given in (LETTERS, "1"):
        return LETTERS
    if not (given.isascii() and given.isdecimal() and 1 < int(given) <= LONGEST_TOKEN):
        raise UserError(f"--split {shown(given)}: expected letters, or the letters of a k-mer, 1 to {LONGEST_TOKEN}")
    return str(int(given))


def token_letters(documents: str) -> int:
    """The letters of a token, if this rule of documents is one that parse_split gives; else 0."""
    return 1 if documents == LETTERS else int(documents) if documents.isdecimal() else 0


def cut_letters(pre_tokenizer: dict[str, Any] | None) -> int:
    """The letters of a token, if the pre_tokenizer of a tokenizer.json cuts as sequence_tokenizer.py has it; else 0."""
    part = pre_tokenizer or {}
    cut = part.get("type") == "Split" and part.get("behavior") == "Isolated" and not part.get("invert")
    match = _CUT.fullmatch(part["pattern"].get("Regex", "")) if cut else None
    return int(match[1]) if match else 0


def refuse_fasta(where: str, head: bytes) -> None:
    """Raise UserError if a text that is to be read as prose begins as FASTA."""
    if _FASTA.match(head):
        raise UserError(
            f"{where} is FASTA (it begins with {shown(head[:40].strip().decode('latin-1'))}): expected --split "
            "letters, or --split K for k-mers; if these lines are prose, put them into JSON Lines"
        )


def fasta_records(reader: SourceReader) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the name of each record and its sequence, as it is written, in parts; raises UserError for other files."""
    return _Fasta(reader).records()


class _Fasta:
    """A file of FASTA, or a part of one; a record is in the part that has the line end before its ">"."""

    def __init__(self, reader: SourceReader):
        self._blocks, self._path, self._is_first = reader.blocks(), reader.source.path, reader.begin == 0
        self._held, self._at, self._mark = b"\n" * self._is_first, 0, _BOM * self._is_first
        self._end: int | None = None  # the place in `_held` of what is after the part, once it is reached

    def records(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        for other in self._sequence():
            if self._is_first and (text := other.strip()):
                raise UserError(
                    f"{self._path} begins with {shown(text[:40].decode('utf-8', 'replace'))}; expected FASTA with "
                    "--split: a line >NAME before each sequence"
                )
            if not self._is_inside():
                return
        while self._is_inside() and self._at < len(self._held):
            name, sequence = self._name(), self._sequence()
            yield name, sequence
            for _ in sequence:
                pass

    def _is_inside(self) -> bool:
        return self._end is None or self._at < self._end

    def _sequence(self) -> Iterator[bytes]:
        """Take all up to the next record, or to the end of the file."""
        while (end := self._held.find(b"\n>", self._at)) < 0:
            yield self._take(len(self._held) - self._held.endswith(b"\n"))  # a ">" may follow
            if not self._more():
                end = len(self._held)
                break
        yield self._take(end)

    def _name(self) -> str:
        while (end := self._held.find(b"\n", self._at + 1)) < 0:
            if len(self._held) - self._at > _NAME_BYTES:
                raise UserError(f"{self._path}: the name of a sequence is longer than 1 MiB; expected FASTA")
            if not self._more():
                end = len(self._held)
                break
        return self._take(end)[2:].decode("utf-8", "replace").strip()

    def _take(self, end: int) -> bytes:
        part, self._at = self._held[self._at : end], end
        return part

    def _more(self) -> bool:
        is_after, block = next(self._blocks, (True, b""))
        block, self._mark = block.removeprefix(self._mark), b""
        held = self._held[self._at :]
        if self._end is not None:
            self._end -= self._at
        elif is_after:
            self._end = len(held)
        self._held, self._at = held + block, 0
        return bool(block)


def sequence_parts(sequence: Iterable[bytes], most: int, where: str) -> Iterator[tuple[str, bool]]:
    """Yield (letters in upper case, whether they are the last), `most` letters at once, of the last maybe none.

    Raises UserError for what is no letter; `where` names the sequence in a message.
    """
    held, taken = b"", 0
    for part in sequence:
        letters = part.translate(_UPPER, _BLANKS)
        if wrong := letters.translate(None, _LETTERS):
            characters: Iterator[str | bytes] = (
                each for each in part.decode("utf-8", "replace") if each.encode()[:1] == wrong[:1]
            )
            character = next(characters, wrong[:1])
            raise UserError(
                f"{where}: {shown(character)} is letter {taken + len(held) + letters.index(wrong[:1]) + 1:,}; expected "
                "letters, * or -: --split is for sequences alone"
            )
        held += letters
        begin = 0
        while len(held) - begin > most:
            yield held[begin : begin + most].decode(), False
            begin += most
        held = held[begin:]
        taken += begin
    yield held.decode(), True
