"""Checkpoints of any origin, opened by one function: Hugging Face's directories and Google's TF1 checkpoints."""

from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.interchange import google
from bert_horovod.interchange.architectures import Architecture
from bert_horovod.interchange.huggingface import Pretrained, describe_directory, read_directory, read_model
from bert_horovod.interchange.safetensors_file import INDEX_FILE, WEIGHTS_FILE
from bert_horovod.interchange.tokenizer_files import (
    read_json,
    read_lowercase,
    read_stated_casing,
    read_vocabulary,
)
from bert_horovod.recipe.sections import Model
from bert_horovod.tasks.base import Task

FORMATS = "a Hugging Face directory of BERT or ALBERT, a TF1 checkpoint of Google's"


class Contents(NamedTuple):
    """What is in a checkpoint, before its values are read."""

    origin: str  # the format, for people
    model: Model
    shapes: dict[str, tuple[int, ...]]  # of all tensors, by the names of model/parameters.py where they are known there
    architectures: list[Architecture]  # what it can be taken for; first what it is
    optimizer: list[str]  # variables of the training that made it


class TokenizerFound(NamedTuple):
    """The tokenizer of a checkpoint."""

    vocabulary: list[str] | None  # tokens by id; None if there is none
    lowercase: bool | None  # None if nothing tells
    reason: str  # what tells whether text is lower-cased


def is_pretrained(path: Path) -> bool:
    """Whether there is a checkpoint at a path; raises UserError where there are several."""
    return (path / "config.json").is_file() or google.find_prefix(path) is not None


def read_pretrained(path: Path, task: Task | Architecture | None = None, lowercase: bool | None = None) -> Pretrained:
    """Read a checkpoint, with the heads of pre-training and of `task`, as far as it has them.

    Args:
        path: a Hugging Face directory, or prefix or directory of a TF1 checkpoint of Google's.
        task: what it is read for.
        lowercase: whether its tokenizer lower-cases, where the caller knows better than its files.

    Raises ReportedError as huggingface.read_directory and google.read_checkpoint.
    """
    if prefix := _google_prefix(path):
        return google.read_checkpoint(prefix, task, lowercase)
    found = read_directory(path, task)
    return found if lowercase is None else found._replace(lowercase=lowercase)


def describe(path: Path) -> Contents:
    """What is in a checkpoint; reads no values. Raises ReportedError as read_pretrained."""
    if prefix := _google_prefix(path):
        model, found = google.read_variables(prefix)
        shapes = found.parameters | dict.fromkeys(found.others, ())
        origin = f"{prefix}, a TF1 checkpoint of Google's"
        return Contents(origin, model, shapes, google.architectures(prefix), found.optimizer)
    model, shapes, architectures = describe_directory(path)
    return Contents(f"{path}, a Hugging Face directory", model, shapes, architectures, [])


def read_configuration(path: Path) -> dict[str, Any]:
    """What config.json says of heads and labels; of a TF1 checkpoint what `import` would write there.

    Raises ReportedError as read_pretrained.
    """
    if prefix := _google_prefix(path):
        return google.architectures(prefix)[0].configuration(google.read_variables(prefix)[0])
    return read_json(path / "config.json")


def read_tokenizer(path: Path) -> TokenizerFound:
    """The tokenizer of a checkpoint; raises ReportedError as read_pretrained."""
    if prefix := _google_prefix(path):
        return TokenizerFound(*google.read_tokenizer(prefix))
    vocabulary = read_vocabulary(path, read_model(path / "config.json").vocab_size)
    reason = "as its tokenizer says" if read_stated_casing(path) is not None else "transformers' default"
    return TokenizerFound(vocabulary, read_lowercase(path), reason)


def _google_prefix(path: Path) -> Path | None:
    """The prefix, if that is what the path means; a Hugging Face directory may hold Google's files too."""
    if any((path / name).is_file() for name in (WEIGHTS_FILE, INDEX_FILE)):
        return None
    return google.find_prefix(path)
