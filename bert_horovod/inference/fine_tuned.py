"""Read a fine-tuned checkpoint for predictions."""

from pathlib import Path

from bert_horovod.errors import DamagedData, UserError
from bert_horovod.interchange.huggingface import Pretrained
from bert_horovod.interchange.pretrained import read_pretrained
from bert_horovod.interchange.suitability import require_vocabulary
from bert_horovod.runs.checkpoint import recorded_length
from bert_horovod.tasks.base import PredictingTask


def read_fine_tuned(directory: Path, task: PredictingTask) -> Pretrained:
    """Read a checkpoint that read_pretrained accepts, with a task's whole head and a vocabulary.

    Raises:
        ReportedError: the checkpoint is damaged, or lacks a part of the head or the vocabulary.
    """
    pretrained = read_pretrained(directory, task)
    if missing := sorted(task.parameters(pretrained.model).keys() - pretrained.parameters.keys()):
        raise DamagedData(f"{directory} lacks {', '.join(missing)}: its head is not whole; fine-tune it again")
    require_vocabulary(directory, pretrained.vocabulary)
    return pretrained


def row_length(directory: Path, asked: int | None, most: int, usual: int, least: int) -> int:
    """Positions of a row: the number asked for, else the length at which the checkpoint was trained, else `usual`.

    Raises:
        UserError: the length is not between `least` and `most`, the model's positions.
    """
    length = min(most, recorded_length(directory) or usual) if asked is None else asked
    if not least <= length <= most:
        raise UserError(f"--sequence_length {length}: expected {least} to {most}, the model's positions")
    return length


def line_length(tokens: int, most: int) -> int:
    """Positions of a row for one line: 16 or the next power of two that holds it, so that few graphs are traced."""
    return min(most, max(16, 1 << (tokens - 1).bit_length()))
