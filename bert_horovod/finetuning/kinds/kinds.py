"""The table of the kinds of labelled data, and what finds a task's or a checkpoint's kind in it."""

from typing import Any

from bert_horovod.errors import UserError
from bert_horovod.finetuning.kinds.base import Kind, Request
from bert_horovod.finetuning.kinds.embeddings import Embeddings
from bert_horovod.finetuning.kinds.rerankers import Rerankers
from bert_horovod.finetuning.kinds.spans import Spans
from bert_horovod.finetuning.kinds.tags import Tags
from bert_horovod.finetuning.kinds.texts import Texts
from bert_horovod.inference.options import Options
from bert_horovod.inference.predicting import Predictor
from bert_horovod.interchange.suitability import named_class
from bert_horovod.runs.opening import OpenCheckpoint
from bert_horovod.storage.reading import shown

KINDS: tuple[type[Kind], ...] = (Texts, Tags, Spans, Rerankers, Embeddings)


def tasks() -> tuple[str, ...]:
    """The values of --task."""
    return tuple(task for kind in KINDS for task in kind.tasks)


def kind_of_task(task: str) -> type[Kind]:
    """The kind that has a value of --task."""
    return next(kind for kind in KINDS if task in kind.tasks)


def kind_of_checkpoint(config: dict[str, Any]) -> type[Kind] | None:
    """The kind of a checkpoint, by the content of its config.json; None: none. The table's last one chooses first."""
    return next((kind for kind in reversed(KINDS) if kind.claims(config)), None)


def score_file(task: str, request: Request) -> dict[str, Any]:
    """The official scores of a file of predictions, without a model; raises ReportedError."""
    return kind_of_task(task).score(task, request)


def open_predictor(checkpoint: OpenCheckpoint, options: Options) -> Predictor:
    """The predictor for a checkpoint; raises ReportedError if it is damaged, or of a kind without a predictor."""
    return checkpoint.whole(lambda whole: _predictor(whole, options))


def _predictor(checkpoint: OpenCheckpoint, options: Options) -> Predictor:
    config = checkpoint.reader.configuration
    if (kind := kind_of_checkpoint(config)) is None:
        named = config["architectures"][0] if named_class(config) else None
        heads = dict.fromkeys(kind.head for kind in KINDS)
        raise UserError(
            f"--checkpoint {checkpoint} is a {shown(named)}; expected {' or '.join(heads)}, as fine-tuning makes "
            "them; masked words are guessed by bert-horovod fill-mask"
        )
    return kind.predictor(checkpoint, options)
