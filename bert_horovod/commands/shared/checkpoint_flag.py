"""The flag --checkpoint of several commands, and the help text of every flag that takes a checkpoint."""

import argparse
import re
from pathlib import Path

from bert_horovod.commands.shared.flags import add_path
from bert_horovod.errors import UserError

CHECKPOINT = (
    "a Hugging Face directory of BERT, ALBERT, RoBERTa or ModernBERT, a TF1 checkpoint of Google's (its prefix or "
    "directory), or a run's output_dir (its newest checkpoint)"
)
_TF1_FILE = re.compile(r"\.(?:index|meta|data-\d+-of-\d+)$")


def add_checkpoint_path(parser: argparse.ArgumentParser) -> None:
    """Declare --checkpoint, which is required, and may be named without its flag."""
    add_path(parser, "RUN", "--checkpoint", "PATH", CHECKPOINT)


def add_checkpoint(parser: argparse.ArgumentParser, what: str = "") -> None:
    """Declare --checkpoint, which is required; `what` begins its help text."""
    parser.add_argument("--checkpoint", required=True, type=Path, metavar="PATH", help=what + CHECKPOINT)


def require_checkpoint(path: Path, flag: str = "--checkpoint") -> None:
    """Find mistakes in a checkpoint's path, and in the configuration and tokenizer of a Hugging Face directory.

    It is called before TensorFlow is imported, which takes seconds; runs.checkpoint.find_checkpoint reads every byte.
    Raises ReportedError.
    """
    prefix = path.with_name(_TF1_FILE.sub("", path.name)) if path.name else path
    if (path / "config.json").is_file() and not any(path.glob("*.index")):
        from bert_horovod.interchange.pretrained import read_tokenizer
        from bert_horovod.interchange.safetensors_file import weight_files

        read_tokenizer(path)
        weight_files(path)
        return
    if (path / "config.json").is_file() or prefix.with_name(f"{prefix.name}.index").is_file():
        return
    if any(path.glob("*.index")) or any((path / "checkpoints").glob("step-*")):
        return
    problem = (
        f"{path} is a run without a checkpoint yet" if (path / "run.json").is_file() else f"there is none at {path}"
    )
    raise UserError(f"{flag}: {problem}; expected {CHECKPOINT}")


def newest_configuration(path: Path) -> Path | None:
    """The config.json of a Hugging Face directory, or of a run's newest checkpoint; None if there is none."""
    files = [path / "config.json", *sorted((path / "checkpoints").glob("step-*/config.json"), reverse=True)]
    return next((file for file in files if file.is_file()), None)
