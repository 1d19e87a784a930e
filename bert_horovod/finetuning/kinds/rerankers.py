"""Pairs of a query and a passage with a relevance from 0 to 1, for models that put candidates in order."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bert_horovod.batches.examples.labelled import LabelledRows
from bert_horovod.corpus.reading.table_files import read_table
from bert_horovod.errors import UserError
from bert_horovod.finetuning.embedding_scores import PLACES
from bert_horovod.finetuning.examples import Files, LabelFormat, Split, real
from bert_horovod.finetuning.kinds.base import Kind, Request
from bert_horovod.finetuning.kinds.texts import Texts
from bert_horovod.finetuning.scoring import PREDICTED, predictions_of
from bert_horovod.finetuning.text_data import TextData, own_data, own_options
from bert_horovod.inference.text_predictor import RerankPredictor, sigmoid
from bert_horovod.recipe.sections import Recipe
from bert_horovod.tasks.text_head import Reranking, ranks

_MRR = f"mrr_{PLACES}"
_NO_MRR = "no query has both relevant passages (0.5 and more) and others: MRR@10 has no value; accuracy decides"


def ranking_scores(scores: np.ndarray, relevance: np.ndarray, queries: Sequence[str]) -> dict[str, float]:
    """MRR@10 over the queries that have relevant candidates and others, and the accuracy at 0.5.

    Equal scores count against the model. Without a query that has both kinds of candidates there is no MRR. Scores,
    relevance (0 to 1; relevant is what has 0.5 and more) and queries are of the candidates.

    >>> ranking_scores(np.array([0.9, 0.2, 0.7, 0.4]), np.array([0, 1, 1, 0]), ["a", "a", "b", "b"])
    {'mrr_10': 0.75, 'accuracy': 0.5}
    """
    relevant = relevance >= 0.5
    _, query = np.unique(np.array(queries, object), return_inverse=True)
    reciprocal = []
    for mine in np.split(np.argsort(query, kind="stable"), np.flatnonzero(np.diff(np.sort(query))) + 1):
        right, wrong = scores[mine][relevant[mine]], scores[mine][~relevant[mine]]
        if len(right) and len(wrong):
            rank = 1 + np.count_nonzero(wrong >= right.max())
            reciprocal.append(1 / rank if rank <= PLACES else 0.0)
    mrr = {_MRR: float(np.mean(reciprocal))} if reciprocal else {}
    return mrr | {"accuracy": float(np.mean((scores >= 0.5) == relevant))}


class Rerankers(Texts):
    """See Kind. A split is examples.Split, its answers are probabilities, float64 [examples, 1]."""

    tasks: ClassVar = ("reranking",)
    help = "on pairs of a query and a candidate passage, with a label 1 or 0, or a score between: reranking"
    predictor = RerankPredictor
    noun = "pairs"

    @classmethod
    def read(cls, task: str, files: Files, flags: Mapping[str, Any]) -> "Rerankers":
        columns = _columns(flags.get("text_columns"))
        data = own_data(task, files, columns, flags.get("label_column") or "label", own_options(flags))
        for split in (data.train, *data.dev.values()):
            labels = split.examples.label_array()
            wrong = labels[(labels < 0) | (labels > 1)]
            if len(wrong):
                raise UserError(
                    f"{split.path}: a label is {wrong[0]:g}; --task reranking expects relevance from 0 to 1: divide "
                    "the scores by the highest one"
                )
        return cls(data)

    def __init__(self, data: TextData) -> None:
        super().__init__(data)
        examples = data.dev[""].examples
        labels = examples.label_array()
        self.decides = next(iter(ranking_scores(labels, labels, examples.texts[0])))

    @classmethod
    def score_flags(cls, task: str) -> tuple[str, ...]:
        return ("text_columns", "label_column", "encoding", "quoted_tsv")

    @classmethod
    def claims(cls, config: dict[str, Any]) -> bool:
        return super().claims(config) and ranks(config)

    def task(self, recipe: Recipe) -> Reranking:
        return Reranking(self.data.format.label_column, self.data.format.columns)

    def answers(self, task: Any, rows: LabelledRows, outputs: dict[str, np.ndarray], split: Split) -> np.ndarray:
        return sigmoid(super().answers(task, rows, outputs, split)).round(6)  # as files have them

    def scores(self, task: Any, answers: np.ndarray, split: Split) -> dict[str, float]:
        return ranking_scores(answers[:, 0], split.examples.label_array(), split.examples.texts[0])

    @classmethod
    def score_table(cls, scores: dict[str, Any]) -> str:
        return "" if _MRR in scores else f"warning: {_NO_MRR}"

    def notices(self, recipe: Recipe) -> list[str]:
        dev = self.data.dev[""].name
        return super().notices(recipe) + [f"warning: {dev}: {_NO_MRR}"] * (self.decides != _MRR)

    def verdict(self, task: Any, split: Split, answers: np.ndarray, scores: dict[str, float]) -> list[str]:
        (line,) = Kind.verdict(self, task, split, answers, scores)
        if np.ptp(answers) == 0:
            return [line, "collapsed: every pair gets the same score; try a lower learning rate or more epochs"]
        return [line]

    @classmethod
    def score(cls, task: str, request: Request) -> dict[str, Any]:
        if request.dev_file is None:
            raise UserError(f"--task {task}: expected --dev_file, the file with the labels")
        columns = _columns(",".join(request.text_columns) or None)
        form = LabelFormat(columns[:1], request.label_column, {}, own=True, dialect=request.dialect)
        gold = form.table(request.dev_file)
        places = gold.places((columns[0], request.label_column))
        queries, labels = zip(*([fields[place] for place in places] for _, fields in gold.rows), strict=True)
        relevance = np.array([real(gold.path, line, label) for (line, _), label in zip(gold.rows, labels, strict=True)])
        answers = predictions_of(read_table(request.predictions, PREDICTED), gold.path, len(labels), {})
        return ranking_scores(answers, relevance, list(queries))


def _columns(named: str | None) -> tuple[str, ...]:
    columns = tuple((named or "query,passage").split(","))
    if len(columns) != 2:
        raise UserError(f"--text_columns {named}: --task reranking expects two names, of the query and the passage")
    return columns
