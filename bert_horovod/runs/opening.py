"""Opens checkpoints: what a path is, is decided here alone, and its row of KINDS says what checks and what reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from bert_horovod.errors import DamagedData, ReportedError, UserError
from bert_horovod.interchange import google, huggingface, tokenizer_files
from bert_horovod.interchange.architectures import Architecture, whole_heads
from bert_horovod.interchange.huggingface import Pretrained
from bert_horovod.interchange.safetensors_file import INDEX_FILE, WEIGHTS_FILE, weight_files
from bert_horovod.interchange.tokenizer_files import TokenizerFound
from bert_horovod.recipe.sections import Model
from bert_horovod.runs import checkpoint
from bert_horovod.runs.mirror import fetched
from bert_horovod.storage.places import is_url
from bert_horovod.storage.reading import hash_file

if TYPE_CHECKING:
    from bert_horovod.tasks.base import Task

Read = TypeVar("Read")


class Contents(NamedTuple):
    """The content of a checkpoint, without values."""

    origin: str  # the format, for people
    model: Model
    shapes: dict[str, tuple[int, ...]]  # of all tensors; parameters have the names of model/parameters.py
    architectures: list[Architecture]  # classes whose parameters it has; its own class first
    optimizer: list[str]  # variables of the optimizer that trained it


@dataclass(frozen=True)
class HuggingFace:
    """Reads a Hugging Face directory; raises the errors of huggingface.read_directory."""

    place: Path  # the directory

    def sizes(self) -> Model:
        return huggingface.read_model(self.place / "config.json")

    def configuration(self) -> dict[str, Any]:
        return huggingface.read_configuration(self.place)

    def tokenizer(self) -> TokenizerFound:
        return tokenizer_files.read_tokenizer(self.place, self.sizes().vocab_size)

    def contents(self) -> Contents:
        model, shapes, architectures = huggingface.describe_directory(self.place)
        return Contents(f"{self.place}, a Hugging Face directory", model, shapes, architectures, [])

    def read(self, task: Task | Architecture | None = None, lowercase: bool | None = None) -> Pretrained:
        pretrained = huggingface.read_directory(self.place, task)
        return pretrained._replace(tokenizer_settings=pretrained.tokenizer_settings.cased_as(lowercase))

    def weights(self) -> list[Path]:
        return weight_files(self.place)


@dataclass(frozen=True)
class Tf1:
    """Reads a TF1 checkpoint of Google's; raises the errors of google.read_checkpoint."""

    place: Path  # its prefix

    def sizes(self) -> Model:
        return google.read_model(self.place)

    def configuration(self) -> dict[str, Any]:
        contents = self.contents()
        return contents.architectures[0].configuration(contents.model)

    def tokenizer(self) -> TokenizerFound:
        return google.read_tokenizer(self.place)

    def contents(self) -> Contents:
        model, variables = google.read_variables(self.place)
        shapes = variables.parameters | dict.fromkeys(variables.others, ())
        architectures = whole_heads(model, variables.parameters)
        origin = f"{self.place}, a TF1 checkpoint of Google's"
        return Contents(origin, model, shapes, architectures, variables.optimizer)

    def read(self, task: Task | Architecture | None = None, lowercase: bool | None = None) -> Pretrained:
        return google.read_checkpoint(self.place, task, lowercase)

    def weights(self) -> list[Path]:
        """The index, which has a checksum of each variable."""
        return [self.place.with_name(f"{self.place.name}.index")]


class Kind(NamedTuple):
    """What a path may be."""

    name: str  # for people
    place: Callable[[Path], Path | None]  # the directory, or the prefix, to read; None: the path is something else
    reader: type[HuggingFace] | type[Tf1]
    check: Callable[[Path, str], Path]  # the checkpoint that the path of a flag means; raises the errors of hashes


def _directory(path: Path) -> Path | None:
    """The path of a Hugging Face directory; its weights come before Google's files beside them."""
    weights = any((path / name).is_file() for name in (WEIGHTS_FILE, INDEX_FILE))
    return path if (path / "config.json").is_file() and (weights or not google.find_prefix(path)) else None


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


RUN = Kind("a run's output_dir (its newest checkpoint)", _newest, HuggingFace, _newest_undamaged)
KINDS = (  # a path is of the first kind that fits
    Kind("a checkpoint of a run", _saved, HuggingFace, _undamaged),
    Kind("a Hugging Face directory of BERT, ALBERT, RoBERTa or ModernBERT", _directory, HuggingFace, _as_it_is),
    Kind("a TF1 checkpoint of Google's (its prefix or directory)", google.find_prefix, Tf1, _as_it_is),
    RUN,
)


def kind_of(path: Path, flag: str = "--checkpoint") -> tuple[Kind, HuggingFace | Tf1]:
    """What the path of a flag is, and what reads it (of a run, its newest checkpoint).

    Raises UserError if it is none of KINDS, or holds several TF1 checkpoints.
    """
    path = fetched(path, flag) if is_url(path) else path
    for kind in KINDS:
        if place := kind.place(path):
            return kind, kind.reader(place)
    run = (path / "run.json").is_file()
    problem = f"{path} is a run without a checkpoint yet" if run else f"there is none at {path}"
    raise UserError(f"{flag}: {problem}; expected {', '.join(kind.name for kind in KINDS[1:-1])}, or {RUN.name}")


def is_checkpoint(path: Path) -> bool:
    """Whether a path is one of KINDS; raises UserError if it holds several TF1 checkpoints."""
    return any(kind.place(path) for kind in KINDS)


def require_checkpoint(path: Path, flag: str = "--checkpoint") -> None:
    """Find mistakes in a path, its configuration and tokenizer, without TensorFlow and hashes; raises ReportedError."""
    kind, reader = kind_of(path, flag)
    if kind is not RUN:  # of a run another checkpoint may be read, if the newest is damaged
        reader.tokenizer()
        reader.weights()


def read_checkpoint(path: Path, read: Callable[[Path], Read], flag: str = "--checkpoint") -> Read:
    """What `read` makes of the checkpoint that a flag's path means: the path itself, or a run's newest undamaged one.

    A run's damaged checkpoints are named on stderr. If a run removes its checkpoint while it is read, the next newest
    one is read. Raises UserError if the path is neither a checkpoint nor a run with checkpoints, DamagedData if a file
    does not match its hash, or all checkpoints of the run are damaged, and what `read` raises.
    """
    while True:
        path = fetched(path, flag) if is_url(path) else path
        directory = kind_of(path, flag)[0].check(path, flag)
        try:
            return read(directory)
        except (OSError, ReportedError) as error:
            if not checkpoint.is_removed(directory):
                raise
            if directory == path:
                raise _removed(path, flag) from error


def _removed(path: Path, flag: str) -> UserError:
    return UserError(f"{flag} {path} was removed while it was read; give another checkpoint")


def reader_of(path: Path) -> HuggingFace | Tf1:
    """What reads a path; raises UserError as kind_of does."""
    return kind_of(path)[1]


def read_pretrained(path: Path, task: Task | Architecture | None = None, lowercase: bool | None = None) -> Pretrained:
    """Read a checkpoint of any kind, with the heads of pre-training and of `task`, if it has them; checks no hashes."""
    return reader_of(path).read(task, lowercase)


def read_configuration(path: Path) -> dict[str, Any]:
    """The content of config.json with heads and labels; for a TF1 checkpoint, as `import` would write it."""
    return reader_of(path).configuration()


def weights_of(path: Path) -> str:
    """SHA-256 of a checkpoint's weights, in hexadecimal: of its one file, or of the hashes of several files.

    Of a run's checkpoint it is read, not computed; of a TF1 checkpoint it is that of the index. Raises ReportedError as
    read_pretrained does, and OSError.
    """
    if recorded := checkpoint.recorded_hash(path):
        return recorded
    hashes = [hash_file(file) for file in reader_of(path).weights()]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()
