"""Makes a finished token store from input files: plan, work, duplicates, manifest."""

import functools
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert_horovod.corpus.manifest import FORMAT
from bert_horovod.corpus.preparing import destination
from bert_horovod.corpus.preparing.blocks import in_order
from bert_horovod.corpus.preparing.finishing import finish_store
from bert_horovod.corpus.preparing.making_shards import Made, join_shards, make_shards
from bert_horovod.corpus.preparing.parts import (
    claim_joining,
    claimant,
    claimed,
    join_parts,
    part_directory,
    part_head,
    refuse_others,
    refuse_unlike,
    remove_parts,
    take_files,
    take_hashes,
    unfinished,
    write_record,
)
from bert_horovod.corpus.preparing.planning import Part, Plan, Settings, part_plan, plan_shards
from bert_horovod.corpus.preparing.summary import Result, SharedResult
from bert_horovod.corpus.preparing.workers import disk_errors
from bert_horovod.corpus.reading.finding import STANDARD_INPUT, find_sources, standard_input
from bert_horovod.corpus.reading.formats import read_sections, require_text_field
from bert_horovod.corpus.reading.pieces import Piece, piece_reader
from bert_horovod.corpus.reading.sources import SourceFile, suffixes
from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer, TokenizerSettings
from bert_horovod.corpus.reading.vocabulary import vocabulary_hash, write_vocabulary
from bert_horovod.corpus.store import TOKENIZER_FILE, VOCABULARY_FILE
from bert_horovod.errors import UserError
from bert_horovod.storage.writing import write_atomically

_MAXIMUM_WORKERS = 4096


@dataclass(frozen=True)
class Preparation:
    """A store to make, whole, by parts, or of parts.

    Raises UserError for every mistake in input, settings or directory, DamagedData for damaged input, RunError for a
    full disk or a worker that died. Shards that are finished by then are kept, and the same call continues from them;
    if there are none, all files of this call are removed.
    """

    inputs: list[str]  # files, directories and globs, as find_sources takes them; "-" is standard input
    vocabulary_path: str | Path  # a WordPiece vocab.txt, or the directory that `vocabulary` is of
    path: Path  # a directory that is new, empty, or holds an unfinished or finished store
    vocabulary: list[str]  # tokens by id
    settings: Settings
    workers: int | None = None  # processes; None: one per core, but no more than there are jobs

    def __post_init__(self) -> None:
        self.settings.check()
        if self.workers is not None and not 1 <= self.workers <= _MAXIMUM_WORKERS:
            raise UserError(f"--workers {self.workers}: expected 1 to {_MAXIMUM_WORKERS}, about one a core")
        destination.refuse_foreign(self.path, self.vocabulary, self.vocabulary_path)

    def make(self) -> Result:
        """Make the whole store, continue an unfinished one, or find that it is finished already."""
        path = self.path
        if not (path / "manifest.json").exists():
            refuse_others(path, None)
        with destination.own(path), standard_input(self.inputs, path) as files:
            sources = self._find(files)
            finished, unchanged = destination.finished_store(path, self._head, sources)
            remove_parts(path)  # a join that was killed may have left them
            if finished is not None:
                return Result(path, finished.manifest, _size(path), 0.0, None)
            self._look(sources)
            start = time.monotonic()
            with disk_errors(path):
                untrusted = self._begin(path, self._head, sources, unchanged)
                plan = plan_shards(sources, self._head)
                made = self._make_shards(path, plan, untrusted)
                manifest = finish_store(path, self._head, sources, plan.tasks, made)
            return _result(path, manifest, made, start)

    def make_part(self, part: Part, command: str) -> Result | SharedResult:
        """Make a part of the store, and join all if the others are complete; a message shows `command` and --part."""
        path, was_there = self.path, self.path.is_dir()
        if (path / "manifest.json").exists():
            destination.require_same(path, self._head)
            return SharedResult(path, part, None, [], None)
        refuse_others(path, part)
        sources = self._find()
        head = part_head(self._head, part, sources)
        refuse_unlike(path, part, head)
        other = claimant(path)
        if other is not None and other != part:
            return SharedResult(path, part, None, [], other)
        result = None
        if other is None and unfinished(path, part.of):
            try:
                result = self._make_part(part, head, sources)
            except BaseException:
                with suppress(OSError):  # it holds other parts
                    (path / f"parts-of-{part.of}").rmdir()
                    if not was_there:
                        path.rmdir()
                raise
            missing = unfinished(path, part.of)
            if missing and claimant(path) is None:
                return SharedResult(path, part, result, missing, None)
        if other is None and not claim_joining(path, part):
            return SharedResult(path, part, result, [], claimant(path))
        return self.join([], command)

    def join(self, told: list[Path], command: str) -> Result:
        """Make the store of its parts, which lie in it or in the directories told; see make_part."""
        path = self.path
        if (path / "manifest.json").exists():
            return self.make()
        with destination.own(path), claimed(path, told) as directories:
            sources = self._find()
            plan = plan_shards(sources, self._head)
            start = time.monotonic()
            with disk_errors(path):
                gathered = join_parts(path, directories, plan, self._head, sources, command)
                self._begin(path, self._head, sources, unchanged=True)
                files = take_files(path, gathered)
                shards = join_shards(path, files, plan, len(self.vocabulary))
                made = Made(in_order(files, plan.tasks), shards, gathered.hashes)
                manifest = finish_store(path, self._head, sources, plan.tasks, made)
            remove_parts(path)
            return _result(path, manifest, made, start)

    def _make_part(self, part: Part, head: dict[str, Any], sources: list[SourceFile]) -> Result:
        """Make the shards and the record of a part."""
        path = part_directory(self.path, part)
        with destination.own(path):
            self._look(sources)
            start = time.monotonic()
            with disk_errors(path):
                plan = plan_shards(sources, self._head)
                mine = part_plan(plan, part.of)[part.number - 1]
                untrusted = self._begin(path, head, sources, unchanged=False)
                refuse_unlike(self.path, part, head)  # of two calls that begin at once, one at least finds the other
                known = take_hashes(self.path, part, sources)
                kept = {source: known[source] for source in mine.to_hash if source in known.keys() - untrusted}
                to_hash = [source for source in mine.to_hash if source not in kept]
                made = self._make_shards(path, replace(mine, to_hash=to_hash), untrusted)
                made.hashes |= kept
                write_record(self.path, part, head, sources, mine, made)
            return _result(path, {}, made, start)

    @functools.cached_property
    def _head(self) -> dict[str, Any]:
        """The head of the store's manifest."""
        return {
            "format": FORMAT,
            "settings": self.settings.described(),
            "vocabulary": {
                "sha256": vocabulary_hash(self.vocabulary),
                "size": len(self.vocabulary),
                **self.settings.tokenizer.recorded(),
            },
        }

    def _find(self, files: list[str] | None = None) -> list[SourceFile]:
        if files is None and STANDARD_INPUT in self.inputs:
            raise UserError("--input - with --part or --join: expected files, because each call looks at all of them")
        sources = find_sources(files or self.inputs)
        require_text_field(sources, self.settings.text_field)
        return sources

    def _look(self, sources: list[SourceFile]) -> None:
        """Begin to read the first file of each suffix, to find wrong columns before workers are started."""
        for source in {suffixes(source.path): source for source in reversed(sources)}.values():
            piece = Piece(source, 0, source.bytes)
            with piece_reader(piece, self.settings.text_field, self.settings.bad_lines) as reader:
                next(read_sections(reader, self.settings.documents), None)

    def _begin(self, path: Path, head: dict[str, Any], sources: list[SourceFile], unchanged: bool) -> set[SourceFile]:
        """Begin in a directory; returns the sources whose parts there must be made again."""
        untrusted = destination.begin(path, head, sources, unchanged)
        _write_tokenizer(path, self.vocabulary, self.settings.tokenizer)
        return untrusted

    def _make_shards(self, path: Path, plan: Plan, untrusted: set[SourceFile]) -> Made:
        return make_shards(
            path,
            plan,
            self.settings,
            untrusted=untrusted,
            vocabulary_size=len(self.vocabulary),
            workers=self.workers,
        )


def _result(path: Path, manifest: dict[str, Any], made: Made, start: float) -> Result:
    return Result(path, manifest, _size(path), time.monotonic() - start, made)


def _write_tokenizer(path: Path, vocabulary: list[str], settings: TokenizerSettings) -> None:
    (path / VOCABULARY_FILE).unlink(missing_ok=True)
    if isinstance(settings, JsonTokenizer):
        write_atomically(path / TOKENIZER_FILE, settings.text)
    else:
        write_vocabulary(path / VOCABULARY_FILE, vocabulary)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
