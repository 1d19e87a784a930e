"""The fine-tuning that fits a task's data: of texts, or of words."""

from pathlib import Path

from bert_horovod.finetuning.classifier import TextFinetuning
from bert_horovod.finetuning.tag_data import TagData
from bert_horovod.finetuning.tagger import TagFinetuning
from bert_horovod.finetuning.text_data import TextData


def open_finetuning(data: TagData | TextData, checkpoint: Path) -> TagFinetuning | TextFinetuning:
    """Open a checkpoint to fine-tune it on these data; raises ReportedError if it cannot be read or does not fit."""
    return TagFinetuning(data, checkpoint) if isinstance(data, TagData) else TextFinetuning(data, checkpoint)
