"""The registry behind `bert-horovod predict`: the predictor for each kind of checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bert_horovod.errors import UserError
from bert_horovod.inference.options import Options, Progress
from bert_horovod.inference.span_predictor import SpanPredictor
from bert_horovod.inference.tag_predictor import TagPredictor
from bert_horovod.inference.text_predictor import TextPredictor
from bert_horovod.interchange.pretrained import read_checkpoint, read_configuration
from bert_horovod.interchange.suitability import named_class
from bert_horovod.storage.reading import shown
from bert_horovod.tasks.label_attention import WINDOWS
from bert_horovod.tasks.span import ARCHITECTURE as SPAN_HEAD
from bert_horovod.tasks.text_head import ARCHITECTURE as TEXT_HEAD
from bert_horovod.tasks.token_classification import ARCHITECTURE as TAG_HEAD


class Predictor(Protocol):
    """Predicts with one kind of checkpoint; made as Predictor(directory, options)."""

    def predict_file(self, source: Path, output: Path, progress: Progress) -> str:
        """Write the answers for a file; returns a line about them to print. Raises ReportedError."""

    def predict_line(self, line: str) -> str:
        """The answer for a line of standard input, as a line."""


PREDICTORS: dict[str, Callable[[Path, Options], Predictor]] = {  # by BERT's class
    TEXT_HEAD: TextPredictor,
    SPAN_HEAD: SpanPredictor,
    TAG_HEAD: TagPredictor,
}


def open_predictor(checkpoint: Path, options: Options) -> Predictor:
    """The predictor for a checkpoint of any format, or a run's output_dir.

    Raises:
        ReportedError: `checkpoint` is not a checkpoint, is damaged, or is of a kind without a predictor.
    """
    return read_checkpoint(checkpoint, lambda directory: _predictor(directory, options))


def _predictor(directory: Path, options: Options) -> Predictor:
    config = read_configuration(directory)
    if config.get(WINDOWS):
        return TextPredictor(directory, options)
    kind = named_class(config)
    if kind not in PREDICTORS:
        named = config["architectures"][0] if kind else None
        raise UserError(
            f"--checkpoint {directory} is a {shown(named)}; expected {' or '.join(PREDICTORS)}, as fine-tuning makes "
            "them; masked words are guessed by bert-horovod fill-mask"
        )
    return PREDICTORS[kind](directory, options)
