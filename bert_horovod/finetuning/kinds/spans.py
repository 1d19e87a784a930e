"""Questions whose answers are spans of a context: SQuAD 1.1 and 2.0."""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.batches.examples.span_rows import STRIDE, SpanDataset, SpanRows
from bert_horovod.batches.examples.span_tokens import NOT_FOUND, SpanTokens, open_spans, span_texts
from bert_horovod.batches.layout import require_pairs
from bert_horovod.corpus.reading.squad_files import Questions, find_squad_file, read_squad
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.kinds.base import Kind, Request
from bert_horovod.finetuning.squad_scores import squad_scores
from bert_horovod.inference.answers import PREDICTIONS, AnswerRules, Answers, find_answers, write_answers
from bert_horovod.inference.span_predictor import SpanPredictor
from bert_horovod.interchange.suitability import require_segments
from bert_horovod.interchange.tokenizer_files import read_json_object
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe.settings import SPANS
from bert_horovod.runs.opening import OpenCheckpoint
from bert_horovod.storage.reading import shown
from bert_horovod.tasks.span import ARCHITECTURE, Span

SQUAD = "squad"  # 1.1 and 2.0: the data tell the version


@dataclass(frozen=True)
class SpanData:
    """SQuAD's files, read, and the options that are not in the recipe."""

    train: Questions
    dev: dict[str, Questions]  # the one that there is is called ""
    doc_stride: int = STRIDE  # tokens from one window of a context to the next
    null_score_threshold: float = 0.0  # of SQuAD 2.0: no answer if the null odds are above it
    index_dir: Path | None = None  # where tokens are kept; None: index/ beside the train file
    test: dict[str, Questions] = field(default_factory=dict)  # none
    name = SQUAD


def squad_data(files: Files, **options: Any) -> SpanData:
    """Read SQuAD's files; `options` are those fields of SpanData.

    Raises ReportedError if a file is missing or invalid, they are of two versions, or an option is invalid.
    """
    stride, threshold = options.get("doc_stride", STRIDE), options.get("null_score_threshold", 0.0)
    if stride < 1:
        raise UserError(f"--doc_stride {stride}: expected at least 1 token")
    if not math.isfinite(threshold):
        raise UserError(f"--null_score_threshold {threshold}: expected a number that is not infinite")
    if files.test or len(files.dev) > 1:
        raise UserError("--task squad takes one --dev_file and no --test_file; answer further files with: predict")
    train, dev = (
        read_squad(_path(files.data_dir, split, file), scored=True)
        for split, file in (("train", files.train), ("dev", files.dev[0] if files.dev else None))
    )
    if train.version_2 != dev.version_2:
        versions = ["2.0" if questions.version_2 else "1.1" for questions in (train, dev)]
        raise UserError(
            f"{train.path} is SQuAD {versions[0]} and {dev.path} is {versions[1]} (2.0 has is_impossible); expected "
            "one version: name the files with --train_file and --dev_file"
        )
    return SpanData(train, {"": dev}, **options)


class Spans(Kind):
    """See Kind. A split is squad_files.Questions, its answers are Answers for each question."""

    tasks = (SQUAD,)
    help = f"{SQUAD}, 1.1 or 2.0"
    head = ARCHITECTURE
    kind_of_rows, kind_of_dataset = SpanRows, SpanDataset
    predictor = SpanPredictor
    noun, outputs = "windows", "answers"
    trained = SPANS
    phase = Kind.phase | {"sequence_length": 384}
    epochs = 2.0
    packing_pays = 1.1
    has_tests = stops_early = False
    best_score = 100.0
    last_file = Path(PREDICTIONS)
    reads = ("data_dir", "doc_stride", "null_score_threshold", "index_dir")
    score_reads = ("data_dir", "null_odds")
    data: SpanData

    def __init__(self, data: SpanData) -> None:
        super().__init__(data)
        self._problem: str | None = None  # of the cache of tokens
        self._skipped = 0  # train questions

    @classmethod
    def read(cls, task: str, files: Files, flags: Mapping[str, Any]) -> "Spans":
        names = ("doc_stride", "null_score_threshold", "index_dir")
        return cls(squad_data(files, **{name: flags[name] for name in names if flags.get(name) is not None}))

    @classmethod
    def add_flags(cls, group: argparse._ArgumentGroup) -> None:
        group.add_argument(
            "--doc_stride", type=int, metavar="N", help="tokens from one window of a context to the next (default: 128)"
        )
        group.add_argument(
            "--null_score_threshold",
            type=float,
            metavar="X",
            help="SQuAD 2.0: give no answer if the null odds, a difference of logits, are above (default: 0)",
        )
        group.add_argument(
            "--index_dir",
            type=Path,
            metavar="DIR",
            help="directory that keeps tokens for the next start (default: index/ beside the train file)",
        )

    def content(self, split: Questions) -> Any:
        return vars(split) | {"path": ""}

    def check(self, checkpoint: OpenCheckpoint, model: Model, settings: TokenizerSettings) -> None:
        require_pairs(settings, str(checkpoint))
        require_segments(checkpoint, model, settings, "question", "context")

    def tokenizer(self, vocabulary: list[str], settings: TokenizerSettings) -> Any:
        directory = self.data.index_dir or self.data.train.path.parent / "index"
        return partial(open_spans, vocabulary=vocabulary, tokenizer_settings=settings, directory=directory)

    def tokens(self, split: Questions, tokenizer: Any) -> SpanTokens:
        is_train = split is self.data.train
        tokens, problem = tokenizer(span_texts(split, labelled=is_train))
        if is_train:
            self._problem, self._skipped = problem, int(np.count_nonzero(tokens.answers[:, 0] == NOT_FOUND))
            if self._skipped == len(split.ids):
                raise UserError(
                    f"{split.path}: no answer of its {len(split.ids):,} questions is in its context at answer_start, "
                    "so that there is nothing to train on"
                )
        return tokens

    def rows(self, recipe: Recipe) -> tuple[type[SpanRows], dict[str, Any]]:
        return SpanRows, {"stride": self.data.doc_stride}

    def task(self, recipe: Recipe) -> Span:
        return Span(recipe.data.packing, self.data.train.version_2, self.data.doc_stride)

    def lasting(self) -> list[tuple[str, str, str, str]]:
        return [("--doc_stride", str(self.data.doc_stride), str(STRIDE), "which cuts other windows")]

    def answers(self, task: Any, rows: SpanRows, outputs: dict[str, np.ndarray], split: Questions) -> list[Answers]:
        rules = AnswerRules(split.version_2, self.data.null_score_threshold)
        return find_answers(rows, outputs, split.contexts, rules)

    def scores(self, task: Any, answers: list[Answers], split: Questions) -> dict[str, float]:
        """The official scores, and for version 2.0 also the best thresholds and their scores."""
        by_id = dict(zip(split.ids, answers, strict=True))
        scores = squad_scores(split, {number: answer.best.text for number, answer in by_id.items()})
        scores = {name: score for name, score in scores.items() if not name.endswith("total")}
        if not split.version_2:
            return scores
        # The best thresholds are searched with each question's best answer that is not "".
        never = {
            number: next((candidate.text for candidate in answer.n_best if candidate.text), "")
            for number, answer in by_id.items()
        }
        best = squad_scores(split, never, {number: answer.null_odds for number, answer in by_id.items()})
        return scores | {name: score for name, score in best.items() if name.startswith("best_")}

    @classmethod
    def score(cls, task: str, request: Request) -> dict[str, Any]:
        if request.dev_file is None and request.data_dir is None:
            raise UserError("expected --data_dir, with dev-v1.1.json or dev-v2.0.json, or --dev_file")
        questions = read_squad(request.dev_file or find_squad_file(request.data_dir, "dev"), scored=True)
        if request.null_odds is not None and not questions.version_2:
            raise UserError(
                f"--null_odds {request.null_odds}: {questions.path} is SQuAD 1.1, where every question has an answer "
                "(2.0 has is_impossible); leave it out, or give the dev file of 2.0"
            )
        predictions = _by_id(request.predictions, questions.ids, str, "a text")
        odds = None
        if request.null_odds is not None:
            odds = _by_id(request.null_odds, questions.ids, float, "a number")
            if missing_ids := [number for number in questions.ids if number not in odds]:
                raise UserError(
                    f"{request.null_odds} has no value for {len(missing_ids):,} questions, such as {missing_ids[0]}"
                )
        return squad_scores(questions, predictions, odds, request.threshold)

    def notices(self, recipe: Recipe) -> list[str]:
        train, dev = self.data.train, self.data.dev[""]
        notices = [f"SQuAD {'2.0' if train.version_2 else '1.1'}: {train.path.name} and {dev.path.name}"]
        notices += [self._problem] if self._problem else []
        if self._skipped:
            notices.append(
                f"{self._skipped:,} train questions are skipped: their answer is not in their context at answer_start"
            )
        return notices

    def size(self, split: Questions, rows: SpanRows) -> str:
        return f"{len(split.ids):,} questions in {len(rows.lengths):,} windows"

    def verdict(self, task: Any, split: Questions, answers: list[Answers], scores: dict[str, float]) -> list[str]:
        exact = scores.get("exact_match", scores.get("exact"))
        said = [f"dev set: exact match {exact:.2f}, F1 {scores['f1']:.2f}, of {len(answers):,} questions"]
        if "best_f1" in scores:
            said.append(
                f"best thresholds: --null_score_threshold {scores['best_f1_thresh']} gives F1 {scores['best_f1']:.2f}, "
                f"{scores['best_exact_thresh']} exact match {scores['best_exact']:.2f}"
            )
        texts = {answer.best.text for answer in answers}
        if len(answers) > 1 and len(texts) == 1:
            said.append(
                f"collapsed: {f'{texts.pop()!r} is answered' if any(texts) else 'nothing is answered'} to every "
                "question; try another data.seed, a lower learning rate or more epochs"
            )
        return said

    def write(self, output_dir: Path, name: str, split: Questions, answers: list[Answers], task: Any) -> list[str]:
        write_answers(output_dir, split.ids, answers)
        return []


def _path(data_dir: Path | None, split: str, file: Path | None) -> Path:
    if file is None and data_dir is None:
        raise UserError(f"expected --data_dir, or --{split}_file")
    if file is not None and not file.is_file():
        raise UserError(f"--{split}_file {file}: there is no such file; expected one in SQuAD's format")
    return file or find_squad_file(data_dir, split)


def _by_id(path: Path, ids: list[str], kind: type, expected: str) -> dict[str, Any]:
    """Read a JSON object with a value for each question's id; it must have at least one of `ids`."""
    by_id = read_json_object(path)
    for number, answer in by_id.items():
        is_number = isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer)
        if not (is_number if kind is float else isinstance(answer, str)):
            raise UserError(f"{path}: {shown(number)} has {shown(answer)}; expected {expected} for each question's id")
    if by_id.keys().isdisjoint(ids):
        raise UserError(f"{path} has none of the dev file's {len(ids):,} questions; expected an object by their ids")
    return by_id
