"""Opens checkpoints of any format with one function: Hugging Face directories and Google's TF1 checkpoints."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_horovod.interchange import google, tokenizer_files
from bert_horovod.interchange.architectures import Architecture
from bert_horovod.interchange.huggingface import Pretrained, describe_directory, read_directory, read_model
from bert_horovod.interchange.safetensors_file import INDEX_FILE, WEIGHTS_FILE, weight_files
from bert_horovod.interchange.tokenizer_files import TokenizerFound, read_json
from bert_horovod.recipe.sections import Model
from bert_horovod.storage.reading import hash_file

if TYPE_CHECKING:
    from bert_horovod.tasks.base import Task

FORMATS = "a Hugging Face directory of BERT, ALBERT, RoBERTa or ModernBERT, a TF1 checkpoint of Google's"


class Contents(NamedTuple):
    """The content of a checkpoint, without values."""

    origin: str  # the format, for people
    model: Model
    shapes: dict[str, tuple[int, ...]]  # of all tensors; parameters have the names of model/parameters.py
    architectures: list[Architecture]  # classes whose parameters it has; its own class first
    optimizer: list[str]  # variables of the optimizer that trained it


def is_pretrained(path: Path) -> bool:
    """Whether the path is a checkpoint; raises UserError if it holds several."""
    return (path / "config.json").is_file() or google.find_prefix(path) is not None


def has_weights(path: Path) -> bool:
    """Whether a checkpoint, or a directory that has only a tokenizer or a configuration, has weights."""
    files = [path / WEIGHTS_FILE, path / INDEX_FILE, path.with_name(f"{path.name}.index")]
    return any(file.is_file() for file in files) or any(path.glob("*.index"))


def read_pretrained(path: Path, task: Task | Architecture | None = None, lowercase: bool | None = None) -> Pretrained:
    """Read a checkpoint, with the heads of pre-training and of `task`, if it has them.

    Args:
        path: a Hugging Face directory, or the prefix or directory of one of Google's TF1 checkpoints.
        task: the task to use it for.
        lowercase: whether its tokenizer lower-cases; None: as its files say.

    Raises the errors of huggingface.read_directory and google.read_checkpoint.
    """
    if prefix := _google_prefix(path):
        return google.read_checkpoint(prefix, task, lowercase)
    pretrained = read_directory(path, task)
    return pretrained._replace(tokenizer_settings=pretrained.tokenizer_settings.cased_as(lowercase))


def describe(path: Path) -> Contents:
    """The content of a checkpoint; reads no values. Raises ReportedError as read_pretrained does."""
    if prefix := _google_prefix(path):
        model, variables = google.read_variables(prefix)
        shapes = variables.parameters | dict.fromkeys(variables.others, ())
        origin = f"{prefix}, a TF1 checkpoint of Google's"
        return Contents(origin, model, shapes, google.architectures(prefix), variables.optimizer)
    model, shapes, architectures = describe_directory(path)
    return Contents(f"{path}, a Hugging Face directory", model, shapes, architectures, [])


def read_sizes(path: Path) -> Model:
    """The model that a checkpoint's configuration describes; raises ReportedError as read_pretrained does."""
    if prefix := _google_prefix(path):
        return google.read_model(prefix)
    return read_model(path / "config.json")


def read_configuration(path: Path) -> dict[str, Any]:
    """The content of config.json with heads and labels; for a TF1 checkpoint, as the command `import` would write it.

    Raises ReportedError as read_pretrained does.
    """
    if prefix := _google_prefix(path):
        return google.architectures(prefix)[0].configuration(google.read_variables(prefix)[0])
    return read_json(path / "config.json")


def read_tokenizer(path: Path) -> TokenizerFound:
    """The tokenizer of a checkpoint; raises ReportedError as read_pretrained does."""
    if prefix := _google_prefix(path):
        return google.read_tokenizer(prefix)
    return tokenizer_files.read_tokenizer(path, read_model(path / "config.json").vocab_size)


def weights_hash(path: Path) -> str:
    """SHA-256 of a checkpoint's weights, in hexadecimal: of its one file, or of the hashes of several files.

    Of a TF1 checkpoint it is that of the index, which has a checksum of each variable. Raises ReportedError as
    read_pretrained does, and OSError.
    """
    if prefix := _google_prefix(path):
        return hash_file(prefix.with_name(f"{prefix.name}.index"))
    hashes = [hash_file(file) for file in weight_files(path)]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _google_prefix(path: Path) -> Path | None:
    """The prefix of a TF1 checkpoint; None for a Hugging Face directory, even if it holds Google's files too."""
    if any((path / name).is_file() for name in (WEIGHTS_FILE, INDEX_FILE)):
        return None
    return google.find_prefix(path)
