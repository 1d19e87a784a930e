"""The flag --checkpoint of several commands, and the help text of every flag that takes a checkpoint."""

import argparse
from pathlib import Path

from bert_horovod.commands.shared.flags import add_path
from bert_horovod.commands.shared.parser import takes_urls

CHECKPOINT = (
    "a Hugging Face directory of BERT, ALBERT, RoBERTa or ModernBERT, a TF1 checkpoint of Google's (its prefix or "
    "directory), or a run's output_dir (its newest checkpoint)"
)


def add_checkpoint_path(parser: argparse.ArgumentParser) -> None:
    """Declare --checkpoint, which is required, and may be named without its flag."""
    add_path(parser, "RUN", "--checkpoint", "PATH", CHECKPOINT)
    for action in parser._actions:
        if action.dest == "checkpoint":
            takes_urls(action)


def add_checkpoint(parser: argparse.ArgumentParser, what: str = "") -> None:
    """Declare --checkpoint, which is required; `what` begins its help text."""
    takes_urls(parser.add_argument("--checkpoint", required=True, type=Path, metavar="PATH", help=what + CHECKPOINT))
