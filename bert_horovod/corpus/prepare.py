"""From input files to a finished token store, whole or not at all."""

import errno
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bert_horovod.corpus.builder import StoreBuilder
from bert_horovod.corpus.progress import Progress
from bert_horovod.corpus.sources import Source, SourceReader, find_sources
from bert_horovod.corpus.store import FORMAT, Store, open_store, verify, write_manifest
from bert_horovod.corpus.text import SECTION_BYTES, read_sections
from bert_horovod.corpus.tokenizer import Tokenizer
from bert_horovod.corpus.vocabulary import read_vocabulary, vocabulary_hash, vocabulary_text, write_vocabulary
from bert_horovod.errors import UserError

_OWN_NAMES = re.compile(
    r"vocab\.txt|index|manifest\.json|shard-\d{5,}|\.(vocab\.txt|manifest\.json|shard-\d{5,})\.partial"
)
_MAXIMUM_SHARD_BYTES = 1 << 31  # offsets are uint32


@dataclass(frozen=True)
class Settings:
    """What decides a store's content beside its sources and its vocabulary."""

    documents: str = "file"  # where a plain text's documents end: "file" or "blank_line"
    held_out: float = 0.01  # fraction of sections
    shard_bytes: int = 64 << 20  # of text
    section_bytes: int = SECTION_BYTES  # of text, at most

    def check(self) -> None:
        """Raise UserError for a value that makes no sense."""
        if not 0 <= self.held_out <= 0.5:
            raise UserError(f"--held_out {self.held_out}: expected a fraction from 0 to 0.5")
        if not 1 <= self.shard_bytes <= _MAXIMUM_SHARD_BYTES:
            raise UserError(f"--shard_bytes {self.shard_bytes}: expected 1 to {_MAXIMUM_SHARD_BYTES}")


@dataclass(frozen=True)
class Result:
    """What became of a prepare command."""

    path: Path
    manifest: dict[str, Any]
    store_bytes: int
    seconds: float  # of reading and tokenizing, without the imports
    made: bool  # false: the store was there already, and is whole


def prepare(
    inputs: list[str],
    vocabulary_path: str | Path,
    output_dir: str | Path,
    *,
    lowercase: bool = True,
    settings: Settings | None = None,
) -> Result:
    """Make a token store of the inputs, or find that it is there already.

    Args:
        inputs: files, directories and globs, as find_sources takes them.
        vocabulary_path: a WordPiece vocab.txt; copied into the store.
        output_dir: a directory that is new, empty, or holds an unfinished or finished store.
        lowercase: whether the model is uncased.
        settings: see Settings.

    Raises UserError for every mistake in input, settings or directory, and then leaves nothing that this call made.
    """
    settings = settings or Settings()
    settings.check()
    path = Path(output_dir)
    sources = find_sources(inputs)
    vocabulary = read_vocabulary(vocabulary_path)
    head = {
        "format": FORMAT,
        "settings": asdict(settings),
        "vocabulary": {"sha256": vocabulary_hash(vocabulary), "size": len(vocabulary), "lowercase": lowercase},
    }
    _refuse_foreign(path, vocabulary, vocabulary_path)
    finished = _finished(path, head, sources)
    if finished is not None:
        return Result(path, finished.manifest, _size(path), 0.0, made=False)
    tokenizer = Tokenizer(vocabulary, lowercase)
    with _whole_or_nothing(path):
        write_vocabulary(path / "vocab.txt", vocabulary)
        start = time.monotonic()
        builder = StoreBuilder(
            path,
            tokenizer,
            len(vocabulary),
            tokenizer.unknown_id,
            lines=settings.documents == "blank_line",
            held_out=settings.held_out,
            shard_bytes=settings.shard_bytes,
        )
        with closing(builder):
            described = list(_read(sources, settings, builder))
            builder.finish()
        _refuse_empty(builder, sources)
        _refuse_unknown(builder)
        manifest = {**head, "sources": described, "shards": builder.entries, "totals": builder.totals}
        write_manifest(path, manifest)
        return Result(path, manifest, _size(path), time.monotonic() - start, made=True)


def summary(result: Result) -> str:
    """What prepare says at its end, with the command that comes next."""
    totals = result.manifest["totals"]
    lines = [
        f"{result.path}: finished"
        if result.made
        else f"{result.path}: was finished already; sources, settings and vocabulary are the same and all hashes are "
        "right"
    ]
    unknown = 100 * totals["unknown_tokens"] / totals["tokens"]
    lines.append(
        f"{totals['documents']:,} documents, {totals['sentences']:,} sentences, {totals['tokens']:,} tokens "
        f"({unknown:.2f} % [UNK]), {totals['held_out_sections']:,} of {totals['sections']:,} sections "
        f"held out, {result.store_bytes / 1e6:,.1f} MB on disk"
    )
    if totals["dropped_documents"]:
        lines.append(f"{totals['dropped_documents']:,} documents had no tokens and were dropped")
    if result.made:
        megabytes = totals["bytes"] / 1e6
        lines.append(
            f"{megabytes:,.1f} MB of text in {result.seconds:.1f} s: {megabytes / max(result.seconds, 1e-9):.1f} MB/s"
        )
    if not totals["held_out_sections"] and result.manifest["settings"]["held_out"]:
        lines.append(
            "warning: no section is held out, as there are so few; a larger --held_out makes evaluation possible"
        )
    lines.append(f"next: bert-horovod pretrain --recipe RECIPE.toml --data_dir {result.path} --output_dir RUN")
    return "\n".join(lines)


def _read(sources: list[Source], settings: Settings, builder: StoreBuilder) -> Iterator[dict[str, Any]]:
    done = shards = 0
    with Progress("prepare", sum(source.bytes for source in sources)) as progress:
        for source in sources:
            with SourceReader(source) as reader:
                for section in read_sections(reader, settings.documents):
                    builder.add(section)
                    progress.at(done + reader.bytes_read)
                    if len(builder.entries) > shards:
                        shards = len(builder.entries)
                        _refuse_unknown(builder)
                yield {"name": source.name, "sha256": reader.sha256(), "bytes": reader.bytes_read}
                done += reader.bytes_read


def _refuse_empty(builder: StoreBuilder, sources: list[Source]) -> None:
    if not builder.totals["tokens"]:
        names = ", ".join(str(source.path) for source in sources[:3]) + (", ..." if len(sources) > 3 else "")
        raise UserError(
            f"the input yields no tokens ({len(sources)} files: {names}; "
            f"{sum(source.bytes for source in sources):,} bytes); expected text: look at --input"
        )


def _refuse_unknown(builder: StoreBuilder) -> None:
    unknown, tokens = builder.totals["unknown_tokens"], sum(entry["tokens"] for entry in builder.entries)
    if unknown > tokens / 2:
        raise UserError(
            f"{100 * unknown / tokens:.0f} % of the tokens are [UNK]; expected a vocabulary that knows "
            "the text: is --vocab for this language, and --cased given exactly when it is a cased one? "
            "Make one for this text with: bert-horovod vocab"
        )


def _refuse_foreign(path: Path, vocabulary: list[str], vocabulary_path: str | Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise UserError(f"--output_dir {path} is a file; expected a new or empty directory")
    if path.resolve() in Path(vocabulary_path).resolve().parents:
        raise UserError(
            f"--vocab {vocabulary_path} lies in --output_dir {path}, which is cleared if it must be made "
            "again; expected it to lie elsewhere"
        )
    names = sorted(entry.name for entry in path.iterdir())
    foreign = [name for name in names if not _OWN_NAMES.fullmatch(name)]
    if names == ["vocab.txt"] and (path / "vocab.txt").read_bytes() != vocabulary_text(vocabulary).encode():
        foreign = names  # not ours, and perhaps somebody's only copy
    if foreign:
        raise UserError(
            f"--output_dir {path} holds other things "
            f"({', '.join(foreign[:3])}{', ...' if len(foreign) > 3 else ''}); expected a new or empty "
            "directory, or an unfinished store"
        )


def _finished(path: Path, head: dict[str, Any], sources: list[Source]) -> Store | None:
    """The store at path, if it is finished, whole and the one that is asked for; None if it must be made (again)."""
    if not (path / "manifest.json").exists():
        return None
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        old = {"settings": {**manifest["settings"], **manifest["vocabulary"]}, "sources": manifest["sources"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    new = {**head["settings"], **head["vocabulary"]}
    before = old["settings"]
    changed = [f"{key}: {before.get(key)} -> {value}" for key, value in new.items() if before.get(key) != value]
    if not changed:
        changed = _changed_sources(old["sources"], sources)
    if changed:
        raise UserError(
            f"--output_dir {path} holds a finished store that was made otherwise "
            f"({'; '.join(changed[:3])}); expected the same command, or another --output_dir"
        )
    try:
        verify(path)
        return open_store(path)
    except UserError as error:
        print(f"{error}. Making the store anew")
        return None


def _changed_sources(old: list[dict[str, Any]], sources: list[Source]) -> list[str]:
    if [entry["name"] for entry in old] != [source.name for source in sources]:
        return [f"sources: {len(old)} files -> {len(sources)} files, or other names or order"]
    changed = [source.name for entry, source in zip(old, sources, strict=True) if entry["bytes"] != source.bytes]
    for entry, source in zip(old, sources, strict=True):
        if changed:
            break
        with SourceReader(source) as reader:
            if reader.sha256() != entry["sha256"]:
                changed.append(source.name)
    return [f"source {name} has changed" for name in changed]


@contextmanager
def _whole_or_nothing(path: Path) -> Iterator[None]:
    """Clear what an earlier run left; on any failure take away what was made; say what is wrong with the disk."""
    was_there = path.is_dir()
    try:
        try:
            path.mkdir(parents=True, exist_ok=True)
            _clear(path)
            yield
        except BaseException:
            if path.is_dir():
                _clear(path)
                if not was_there:
                    path.rmdir()
            raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no room left for {path} ({error.strerror}); a store needs about 2 bytes per token, "
                "half the size of the plain text: make room or choose another --output_dir"
            ) from error
        raise UserError(
            f"cannot write {error.filename or path}: {error.strerror or error}; choose another --output_dir"
        ) from error


def _clear(path: Path) -> None:
    # The manifest first: without it the rest is an unfinished store.
    for entry in sorted(path.iterdir(), key=lambda entry: entry.name != "manifest.json"):
        if _OWN_NAMES.fullmatch(entry.name):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
