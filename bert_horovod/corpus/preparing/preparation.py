"""Makes a finished token store from input files: plan, work, duplicates, manifest."""

import time
from concurrent.futures import Executor
from pathlib import Path

from bert_horovod.corpus.manifest import FORMAT
from bert_horovod.corpus.preparing import destination
from bert_horovod.corpus.preparing.finishing import finish
from bert_horovod.corpus.preparing.making_shards import make_shards
from bert_horovod.corpus.preparing.planning import Settings, plan_shards
from bert_horovod.corpus.preparing.summary import Result
from bert_horovod.corpus.preparing.workers import disk_error
from bert_horovod.corpus.reading.finding import find_sources, standard_input
from bert_horovod.corpus.reading.formats import read_sections, require_text_field
from bert_horovod.corpus.reading.pieces import Piece, piece_reader
from bert_horovod.corpus.reading.sources import SourceFile, suffixes
from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer, TokenizerSettings
from bert_horovod.corpus.reading.vocabulary import read_vocabulary, vocabulary_hash, write_vocabulary
from bert_horovod.corpus.store import TOKENIZER_FILE, VOCABULARY_FILE
from bert_horovod.errors import UserError
from bert_horovod.storage.writing import write_atomically

_MAXIMUM_WORKERS = 4096


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
            plan = plan_shards(sources, head)
            made = make_shards(
                path,
                plan,
                settings,
                untrusted=untrusted,
                vocabulary_size=len(vocabulary),
                workers=workers,
                executor=executor,
            )
            manifest = finish(path, head, sources, plan.tasks, made)
        except OSError as error:
            raise disk_error(error, path) from error
        return Result(
            path,
            manifest,
            _size(path),
            time.monotonic() - start,
            True,
            made.workers,
            made.worker_seconds,
            made.made_bytes,
            made.kept_parts,
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


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
