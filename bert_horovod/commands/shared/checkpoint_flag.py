"""The flag --checkpoint of several commands, and the help text of every flag that takes a checkpoint."""

import argparse
from pathlib import Path

CHECKPOINT = (
    "a Hugging Face directory of BERT or ALBERT, a TF1 checkpoint of Google's (its prefix or directory), or a run's "
    "output_dir (its newest checkpoint)"
)


def add_checkpoint(parser: argparse.ArgumentParser, what: str = "") -> None:
    """Declare --checkpoint, which is required; `what` begins its help text."""
    parser.add_argument("--checkpoint", required=True, type=Path, metavar="PATH", help=what + CHECKPOINT)
