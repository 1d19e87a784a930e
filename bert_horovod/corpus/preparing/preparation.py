"""Makes a finished token store from input files: plan, work, duplicates, manifest."""

import os
import time
from collections import Counter
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.corpus.manifest import FORMAT, Source
from bert_horovod.corpus.preparing import destination
from bert_horovod.corpus.preparing.duplicates import count_tokens, find_duplicates
from bert_horovod.corpus.preparing.holding_out import hold_out_more
from bert_horovod.corpus.preparing.parts import (
    JoinJob,
    Part,
    PartArrays,
    PartFile,
    find_parts,
    group_parts,
    missing_parts,
    number_shards,
)
from bert_horovod.corpus.preparing.planning import Settings, ShardTask, plan_tasks
from bert_horovod.corpus.preparing.pool import local_pool, run_jobs
from bert_horovod.corpus.preparing.progress import ReadingProgress
from bert_horovod.corpus.preparing.summary import Result
from bert_horovod.corpus.preparing.workers import Done, PartsJob, disk_error, do
from bert_horovod.corpus.reading.finding import find_sources, standard_input
from bert_horovod.corpus.reading.formats import read_sections, require_text_field
from bert_horovod.corpus.reading.pieces import Piece, piece_reader
from bert_horovod.corpus.reading.sources import SourceFile, suffixes
from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer, TokenizerSettings
from bert_horovod.corpus.reading.vocabulary import read_vocabulary, vocabulary_hash, write_vocabulary
from bert_horovod.corpus.shard import COUNTS
from bert_horovod.corpus.store import (
    TOKENIZER_FILE,
    VOCABULARY_FILE,
    write_duplicates,
    write_manifest,
    write_sources,
)
from bert_horovod.errors import RunError, UserError
from bert_horovod.storage.writing import write_atomically
from bert_horovod.wording import counted

_MAXIMUM_WORKERS = 4096
_SMALL_BYTES = 32 << 20  # one process has read less than this before others have started
_TOTALS = ("held_out_sections", "held_out_tokens", "unknown_tokens", "dropped_documents")


def prepare(
    inputs: list[str],
    vocabulary_path: str | Path,
    output_dir: str | Path,
    *,
    vocabulary: list[str] | None = None,
    settings: Settings | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
) -> Result:
    """Make a token store from the inputs, continue an unfinished one, or find that it is finished already.

    Args:
        inputs: files, directories and globs, as find_sources takes them; "-" is standard input, which is copied into
            output_dir while the store is being made.
        vocabulary_path: a WordPiece vocab.txt, or the directory that `vocabulary` is of; copied into the store.
        output_dir: a directory that is new, empty, or holds an unfinished or finished store.
        vocabulary: tokens by id; None: those of the file vocabulary_path.
        settings: see Settings.
        workers: processes; None: one per core, but no more than there are jobs.
        executor: does the jobs instead of processes on this machine, such as `workers` ranks of an MPI world; they must
            see the same files.

    Raises UserError for every mistake in input, settings or directory, DamagedData for damaged input, RunError for a
    full disk or a worker that died. Shards that are finished by then are kept, and the same call continues from them;
    if there are none, all files of this call are removed.
    """
    settings = settings or Settings()
    settings.check()
    if workers is not None and not 1 <= workers <= _MAXIMUM_WORKERS:
        raise UserError(f"--workers {workers}: expected 1 to {_MAXIMUM_WORKERS}, about one a core")
    path = Path(output_dir)
    vocabulary = read_vocabulary(vocabulary_path) if vocabulary is None else vocabulary
    head = {
        "format": FORMAT,
        "settings": settings.described(),
        "vocabulary": {
            "sha256": vocabulary_hash(vocabulary),
            "size": len(vocabulary),
            **settings.tokenizer.recorded(),
        },
    }
    destination.refuse_foreign(path, vocabulary, vocabulary_path)
    with destination.own(path), standard_input(inputs, path) as files:
        sources = find_sources(files)
        require_text_field(sources, settings.text_field)
        finished, unchanged = destination.finished_store(path, head, sources)
        if finished is not None:
            return Result(path, finished.manifest, _size(path), 0.0, made=False)
        _look(sources, settings)
        start = time.monotonic()
        try:
            untrusted = destination.begin(path, head, sources, unchanged)
            _write_tokenizer(path, vocabulary, settings.tokenizer)
            tasks = plan_tasks(sources, head)
            trusted = [task for task in tasks if untrusted.isdisjoint(piece.source for piece in task.pieces)]
            kept = find_parts(path, trusted)
            jobs, text_bytes = _jobs(path, tasks, _parts_of(kept), settings)
            if workers is None:
                workers = 1 if text_bytes < _SMALL_BYTES else min(len(os.sched_getaffinity(0)), len(jobs))
            pool = local_pool(workers) if executor is None and workers > 1 else nullcontext(executor)
            with pool as executor:
                made = _work(path, jobs, text_bytes, executor)
                manifest = _finish(path, head, sources, tasks, [*kept, *made.files], made.hashes, executor)
        except OSError as error:
            raise disk_error(error, path) from error
        seconds = time.monotonic() - start
        made_bytes = sum(part.counts["bytes"] for file in made.files for part in file.parts)
        return Result(
            path,
            manifest,
            _size(path),
            seconds,
            True,
            workers,
            made.seconds,
            made_bytes,
            len(_parts_of(kept)),
            *made.memory,
        )


def _write_tokenizer(path: Path, vocabulary: list[str], settings: TokenizerSettings) -> None:
    (path / VOCABULARY_FILE).unlink(missing_ok=True)
    if isinstance(settings, JsonTokenizer):
        write_atomically(path / TOKENIZER_FILE, settings.text)
    else:
        write_vocabulary(path / VOCABULARY_FILE, vocabulary)


def _look(sources: list[SourceFile], settings: Settings) -> None:
    """Begin to read the first file of each suffix, to find wrong columns before workers are started."""
    for source in {suffixes(source.path): source for source in reversed(sources)}.values():
        with piece_reader(Piece(source, 0, source.bytes), settings.text_field, settings.bad_lines) as reader:
            next(read_sections(reader, settings.documents), None)


@dataclass
class _Made:
    """Results of the jobs: files of parts, SHA-256 of files read in pieces, and the workers' costs."""

    files: list[PartFile]
    hashes: dict[SourceFile, str]
    seconds: float = 0.0
    memory: tuple[int, int] = (0, 0)

    def take(self, done: Done) -> None:
        """Add the parts that a job has made."""
        self.seconds += done.seconds
        self.files += done.files
        before, peak = self.memory
        self.memory = min(before or done.memory_before, done.memory_before), max(peak, done.memory_peak)


def _parts_of(files: list[PartFile]) -> dict[tuple[str, int], Part]:
    return {(part.task, part.number): part for file in files for part in file.parts}


def _jobs(
    path: Path, tasks: list[ShardTask], kept_parts: dict[tuple[str, int], Part], settings: Settings
) -> tuple[list[PartsJob | SourceFile], int]:
    """The parts that are missing, and the files to hash, those that are read in pieces; bytes to read for parts."""
    jobs: list[PartsJob | SourceFile] = [
        PartsJob(path, task, number, begin, stop_before, settings)
        for task in tasks
        for number, begin, stop_before in missing_parts(task, kept_parts)
    ]
    if kept_parts:
        runs_left = counted(len(jobs), "run")
        print(f"{path}: finished already: {counted(len(kept_parts), 'part')}; left to make: {runs_left} of parts")
    text_bytes = sum(job.task.bytes for job in jobs if isinstance(job, PartsJob))
    jobs += dict.fromkeys(piece.source for task in tasks for piece in task.pieces if not piece.is_whole)
    return jobs, text_bytes


def _work(path: Path, jobs: list[PartsJob | SourceFile], text_bytes: int, executor: Executor | None) -> _Made:
    """Do the jobs."""
    made = _Made([], {})
    with ReadingProgress("prepare", text_bytes) as progress:
        far = np.zeros((len(jobs), 2), np.int64)  # bytes and documents by job

        def report(number: int, done_bytes: int, documents: int) -> None:
            far[number] = done_bytes, documents
            progress.at(*map(int, far.sum(axis=0)))

        for number, done in run_jobs(executor, do, jobs, path, report):
            job = jobs[number]
            if isinstance(job, SourceFile):
                made.hashes[job] = done
            else:
                made.take(done)
                parts = [part for file in done.files for part in file.parts]
                report(number, job.task.bytes, sum(part.counts["documents"] for part in parts))
            _refuse_unknown(path, list(_parts_of(made.files).values()))
    return made


def _finish(
    path: Path,
    head: dict[str, Any],
    sources: list[SourceFile],
    tasks: list[ShardTask],
    files: list[PartFile],
    hashes: dict[SourceFile, str],
    executor: Executor | None,
) -> dict[str, Any]:
    """Find duplicates, put the parts into shards, write the manifest."""
    pieces = {task.key: task.pieces for task in tasks}
    order = {key: number for number, key in enumerate(pieces)}
    parts = sorted(_parts_of(files).values(), key=lambda part: (order[part.task], part.number))
    _refuse_empty(path, parts, sources)
    _refuse_unknown(path, parts)
    totals = Counter(dict.fromkeys((*COUNTS, *_TOTALS), 0))
    passed_over: Counter[str] = Counter()
    of_source = {source: Counter(dict.fromkeys(("documents", "tokens", "unknown_tokens"), 0)) for source in sources}
    hashes = dict(hashes)
    for part in parts:
        totals.update(part.counts)
        totals.update({name: part.totals[name] for name in _TOTALS})
        passed_over.update(part.passed_over)
        for number, counts in part.totals["pieces"].items():
            of_source[pieces[part.task][int(number)].source].update(counts)
        hashes |= {pieces[part.task][int(number)].source: digest for number, digest in part.hashes.items()}
    changed = [source.name for source in sources if source.path.stat().st_size != source.bytes]
    if changed:
        raise RunError(f"{', '.join(changed[:3])} changed while being read; run the same command again")
    described = [
        Source(
            name=source.name,
            bytes=source.bytes,
            sha256=hashes[source],
            documents=counts["documents"],
            tokens=counts["tokens"],
            unknown_tokens=counts["unknown_tokens"],
        )
        for source, counts in of_source.items()
    ]
    filled = [part for part in parts if part.counts["tokens"]]
    arrays = PartArrays(path, filled, files, head["vocabulary"]["size"])
    duplicates = find_duplicates(arrays)
    repeated_tokens = count_tokens(arrays, duplicates)
    if head["settings"]["held_out"]:
        arrays, sections, tokens = hold_out_more(arrays, duplicates)
        totals.update({"held_out_sections": sections, "held_out_tokens": tokens})
    shard_entries = number_shards(path, _join(arrays, executor))
    manifest = {
        **head,
        "sources": write_sources(path, described),
        "shards": shard_entries,
        "totals": dict(totals),
        "passed_over": dict(passed_over),
        "duplicates": {
            "documents": len(duplicates),
            "tokens": repeated_tokens,
            "sha256": write_duplicates(path, duplicates),
        },
    }
    write_manifest(path, manifest)
    (path / "plan.json").unlink()
    return manifest


def _join(arrays: PartArrays, executor: Executor | None) -> list[PartFile]:
    """The files of the store's shards, in order; parts are joined where that is needed."""
    shards = [arrays.joined(group) for group in group_parts(arrays.parts)]
    files = {number: shard for number, shard in enumerate(shards) if isinstance(shard, PartFile)}
    jobs = [shard for shard in shards if isinstance(shard, JoinJob)]
    numbers = sorted(set(range(len(shards))) - files.keys())
    total = sum(part.counts["bytes"] for job in jobs for part in job.parts)
    with ReadingProgress("join", total) as progress:
        done_bytes = documents = 0
        for number, joined in run_jobs(executor, do, jobs, arrays.store, lambda *_: None):
            files[numbers[number]] = joined
            done_bytes += joined.entry["bytes"]
            documents += joined.entry["documents"]
            progress.at(done_bytes, documents)
    return [files[number] for number in range(len(shards))]


def _refuse_empty(path: Path, parts: list[Part], sources: list[SourceFile]) -> None:
    if not any(part.counts["tokens"] for part in parts):
        destination.clear(path)
        names = ", ".join(str(source.path) for source in sources[:3]) + (", ..." if len(sources) > 3 else "")
        raise UserError(
            f"the input yields no tokens ({counted(len(sources), 'file')}: {names}; "
            f"{sum(source.bytes for source in sources):,} bytes); expected text: look at --input"
        )


def _refuse_unknown(path: Path, parts: list[Part]) -> None:
    unknown = sum(part.totals["unknown_tokens"] for part in parts)
    tokens = sum(part.counts["tokens"] for part in parts)
    if unknown > tokens / 2:
        destination.clear(path)
        raise UserError(
            f"{100 * unknown / tokens:.0f} % of the tokens are [UNK]; expected a vocabulary that knows "
            "the text: is --vocab for this language, and --cased given exactly when it is a cased one? "
            "Make one for this text with: bert-horovod vocab"
        )


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
