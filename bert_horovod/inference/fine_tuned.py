"""A fine-tuned checkpoint, read for predictions."""

from pathlib import Path

from bert_horovod.errors import DamagedData, UserError
from bert_horovod.interchange.huggingface import Pretrained
from bert_horovod.interchange.pretrained import read_pretrained
from bert_horovod.runs.checkpoint import recorded_length
from bert_horovod.tasks.base import PredictingTask


def read_fine_tuned(directory: Path, task: PredictingTask) -> Pretrained:
    """Read a checkpoint, as read_pretrained takes it, with a task's whole head and a vocabulary.

    Raises:
        ReportedError: it is damaged, or lacks one of them.
    """
    found = read_pretrained(directory, task)
    if missing := sorted(task.parameters(found.model).keys() - found.parameters.keys()):
        raise DamagedData(f"{directory} lacks {', '.join(missing)}: its head is not whole; fine-tune it again")
    if found.vocabulary is None:
        raise UserError(f"--checkpoint {directory} has no vocabulary; expected vocab.txt beside its configuration")
    return found


def row_length(directory: Path, asked: int | None, most: int, usual: int, least: int) -> int:
    """Positions of a row: what the user asked for, else what the checkpoint was trained at, else what is usual.

    Raises:
        UserError: that is not between `least` and `most`, the model's positions.
    """
    length = asked or min(most, recorded_length(directory) or usual)
    if not least <= length <= most:
        raise UserError(f"--sequence_length {length}: expected {least} to {most}, the model's positions")
    return length
