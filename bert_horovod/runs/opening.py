"""Opens checkpoints: what a path is, is decided here, once; its row of KINDS says what checks and what reads it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from bert_horovod.errors import DamagedData, ReportedError, UserError
from bert_horovod.interchange.google import Tf1, find_prefix
from bert_horovod.interchange.huggingface import HuggingFace
from bert_horovod.interchange.safetensors_file import INDEX_FILE, WEIGHTS_FILE
from bert_horovod.runs import checkpoint
from bert_horovod.storage.reading import hash_file

Read = TypeVar("Read")


class CheckpointKind(NamedTuple):
    """What a path may be."""

    name: str  # for people
    place: Callable[[Path], Path | None]  # the directory, or the prefix, to read; None: the path is something else
    reader: type[HuggingFace] | type[Tf1]
    check: Callable[[Path, str], Path]  # the checkpoint that the path of a flag means; raises the errors of hashes


def _directory(path: Path) -> Path | None:
    """The path of a Hugging Face directory; its weights come before Google's files beside them."""
    weights = any((path / name).is_file() for name in (WEIGHTS_FILE, INDEX_FILE))
    return path if (path / "config.json").is_file() and (weights or not find_prefix(path)) else None


def _saved(path: Path) -> Path | None:
    return _directory(path) if (path / checkpoint.HASHES).is_file() else None


def _newest(path: Path) -> Path | None:
    return next(reversed(checkpoint.paths(path)), None)


def _as_it_is(path: Path, _flag: str) -> Path:
    return path


def _undamaged(path: Path, flag: str) -> Path:
    # A copy may lack training/, which only a resumed run reads.
    if damaged := [name for name in checkpoint.damaged_files(path) if not name.startswith("training/")]:
        if checkpoint.is_removed(path):
            raise _removed(path, flag)
        raise DamagedData(f"{flag} {path} is damaged: {', '.join(damaged)}; take another checkpoint")
    return path


def _newest_undamaged(path: Path, _flag: str) -> Path:
    for directory in checkpoint.whole_checkpoints(path):
        return directory
    raise checkpoint.all_damaged(path)


RUN = CheckpointKind("a run's output_dir (its newest checkpoint)", _newest, HuggingFace, _newest_undamaged)
KINDS = (  # a path is of the first kind that fits
    CheckpointKind("a checkpoint of a run", _saved, HuggingFace, _undamaged),
    CheckpointKind(
        "a Hugging Face directory of BERT, ALBERT, RoBERTa or ModernBERT", _directory, HuggingFace, _as_it_is
    ),
    CheckpointKind("a TF1 checkpoint of Google's (its prefix or directory)", find_prefix, Tf1, _as_it_is),
    RUN,
)


@dataclass(frozen=True)
class OpenCheckpoint:
    """A checkpoint that the user names, opened once and handed on; as a text it is its name in messages."""

    given: Path  # what the user names, on this machine
    flag: str
    kind: CheckpointKind
    directory: Path  # the checkpoint there: of a run one of its checkpoints, else `given`
    reader: HuggingFace | Tf1  # what the checkpoint says of itself, and its parameters
    url: str = ""  # where `given` was fetched from; "": it was here

    def __str__(self) -> str:
        return self.url + str(self.directory).removeprefix(str(self.given)) if self.url else str(self.directory)

    def whole(self, read: Callable[[OpenCheckpoint], Read]) -> Read:
        """What `read` makes of the checkpoint once its hashes are checked: of a run of its newest undamaged one.

        A run's damaged checkpoints are named on stderr. If a run removes its checkpoint while it is read, the next
        newest one is read. Raises DamagedData if a file does not match its hash, or all checkpoints of the run are
        damaged, and what `read` raises.
        """
        while True:
            directory = self.kind.check(self.given, self.flag)
            opened = self
            if directory != self.directory:
                opened = dataclasses.replace(self, directory=directory, reader=HuggingFace(directory))
            try:
                return read(opened)
            except (OSError, ReportedError) as error:
                if not checkpoint.is_removed(directory):
                    raise
                if directory == self.given:
                    raise _removed(directory, self.flag) from error

    def weights_hash(self) -> str:
        """SHA-256 of the weights, in hexadecimal: of the one file, or of the hashes of several files.

        Of a run's checkpoint it is read, not computed; of a TF1 checkpoint it is that of the index. Raises OSError, and
        ReportedError if files are missing.
        """
        if recorded := checkpoint.recorded_hash(self.directory):
            return recorded
        hashes = [hash_file(file) for file in self.reader.weights()]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def find_checkpoint(path: Path, flag: str = "--checkpoint", url: str = "") -> OpenCheckpoint:
    """What the path of a flag is, and what reads it; `url`: where it was fetched from. Reads none of its files.

    Raises UserError if it is none of KINDS, or holds several TF1 checkpoints.
    """
    for kind in KINDS:
        if place := kind.place(path):
            return OpenCheckpoint(path, flag, kind, place if kind is RUN else path, kind.reader(place), url)
    run = (path / "run.json").is_file()
    problem = f"{path} is a run without a checkpoint yet" if run else f"there is none at {path}"
    raise UserError(f"{flag}: {problem}; expected {', '.join(kind.name for kind in KINDS[1:-1])}, or {RUN.name}")


def kept_checkpoints(run: OpenCheckpoint) -> list[OpenCheckpoint]:
    """All checkpoints of a run, oldest first; reads none of their files: a damaged one is told when it is read."""
    saved = KINDS[0]
    return [OpenCheckpoint(path, run.flag, saved, path, saved.reader(path)) for path in checkpoint.paths(run.given)]


def open_checkpoint(path: Path, flag: str = "--checkpoint", url: str = "") -> OpenCheckpoint:
    """As find_checkpoint; mistakes in configuration and tokenizer are found too, without TensorFlow and hashes.

    Raises ReportedError.
    """
    opened = find_checkpoint(path, flag, url)
    if opened.kind is not RUN:  # of a run another checkpoint may be read, if the newest is damaged
        _ = opened.reader.tokenizer
        opened.reader.weights()
    return opened


def is_checkpoint(path: Path) -> bool:
    """Whether a path is one of KINDS; raises UserError if it holds several TF1 checkpoints."""
    return any(kind.place(path) for kind in KINDS)


def _removed(path: Path, flag: str) -> UserError:
    return UserError(f"{flag} {path} was removed while it was read; give another checkpoint")
