"""Reads best.json, in a fine-tuning's output directory: the checkpoint with the best dev score."""

from dataclasses import dataclass
from pathlib import Path

from bert_horovod.runs.checkpoint import path_of
from bert_horovod.storage.reading import check_type, read_json

BEST = "best.json"  # finetuning/best_checkpoint.py writes it


@dataclass
class Best:
    """The content of best.json."""

    metric: str  # the dev score that decides
    score: float
    step: int  # of the checkpoint, which saving.py keeps
    evaluations_since: int  # without a better score
    last_step: int  # of the last evaluation
    ended: bool  # whether the run has ended for that


def best_record(output_dir: Path) -> Best | None:
    """What a run has recorded of its best checkpoint; None if it has not, the file is damaged or that is gone."""
    try:
        record = read_json(output_dir / BEST, inside=output_dir)
        check_type(record, Best, BEST)
        best = Best(**record)
        return best if path_of(output_dir, best.step).is_dir() else None
    except (OSError, ValueError, TypeError):
        return None
