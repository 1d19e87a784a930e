"""Fine-tuning for SQuAD: the job that the loop trains, its recipe, its scores, and the files that it writes."""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_horovod.batches.examples.span_cache import open_spans
from bert_horovod.batches.examples.span_rows import SpanDataset, SpanRows
from bert_horovod.batches.examples.span_windows import STRIDE, cut_spans
from bert_horovod.batches.examples.spans import NOT_FOUND, SpanTokens, span_texts
from bert_horovod.batches.packing import templates_of
from bert_horovod.batches.special_tokens import require_pairs, special_ids
from bert_horovod.corpus.reading.squad_files import Questions, find_squad_file, read_squad
from bert_horovod.errors import UserError
from bert_horovod.finetuning.dev_scores import DevScores, run_outputs
from bert_horovod.finetuning.initialisation import Finetuning, Packed, refuse_another
from bert_horovod.finetuning.same_files import require_same_files
from bert_horovod.finetuning.squad_scores import squad_scores
from bert_horovod.inference.answers import AnswerRules, Answers, find_answers, write_answers
from bert_horovod.interchange.pretrained import read_configuration
from bert_horovod.interchange.suitability import named_class, require_segments
from bert_horovod.recipe.sections import SPANS
from bert_horovod.tasks.span import ARCHITECTURE, Span
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.job import Job
from bert_horovod.training.run import FIRST_STEP_S, Run
from bert_horovod.training.start import check_size

WINDOWS = 32  # approximately, in a step
_PAYS = 1.1  # packing is the default if it puts more windows than this into a row
_PRETRAINING = ("BertForPreTraining", "BertForMaskedLM", "BertModel")


@dataclass(frozen=True)
class SquadOptions:
    """The options that are not in the recipe."""

    doc_stride: int = STRIDE  # tokens from one window of a context to the next
    null_score_threshold: float = 0.0  # of SQuAD 2.0: no answer if the null odds are above it
    index_dir: Path | None = None  # where tokens are kept; None: index/ beside the train file


class SquadFinetuning(Finetuning):
    """A checkpoint, and the questions to fine-tune it on, checked.

    Args:
        checkpoint: see Finetuning.
        data_dir: directory with train-v1.1.json and dev-v1.1.json, or with those of v2.0, plain or .gz.
        train_file, dev_file: replace the files in `data_dir`.
        options: of the task.

    Raises:
        ReportedError: checkpoint, data or an option is invalid.
    """

    what = SPANS
    phase: ClassVar[dict[str, Any]] = {"sequence_length": 384, "learning_rate": 3e-5, "warmup": 0.1}

    def __init__(
        self,
        checkpoint: Path,
        data_dir: Path | None = None,
        train_file: Path | None = None,
        dev_file: Path | None = None,
        options: SquadOptions = SquadOptions(),
    ) -> None:
        if options.doc_stride < 1:
            raise UserError(f"--doc_stride {options.doc_stride}: expected at least 1 token")
        if not math.isfinite(options.null_score_threshold):
            raise UserError(f"--null_score_threshold {options.null_score_threshold}: expected a finite number")
        super().__init__(checkpoint)
        self.options = options
        special_ids(self.vocabulary, self.tokenizer_settings)
        require_pairs(self.tokenizer_settings, str(checkpoint))
        require_segments(self.directory, self.model, "question", "context")
        self.train = read_squad(_file(data_dir, "train", train_file), scored=True)
        self.dev = read_squad(_file(data_dir, "dev", dev_file), scored=True)
        _refuse_mixed_versions(self.train, self.dev)

    def job(
        self,
        output_dir: Path,
        epochs: float = 2.0,
        overrides: list[str] | tuple[str, ...] = (),
        world_size: int = 1,
        **options,
    ) -> Job:
        """Make the job of one run, and check it.

        Args:
            output_dir: the run's.
            epochs: over the train windows.
            overrides: settings of the recipe, as `section.key=value`; a global_batch is in rows.
            world_size: ranks.
            options: further fields of Job.

        Raises:
            UserError: a setting is invalid, or does not fit the checkpoint or the data.
        """
        stride = str(self.options.doc_stride)
        refuse_another(output_dir, "--doc_stride", stride, str(STRIDE), "which cuts other windows")
        length = self.settings(overrides).phase[0].sequence_length
        train, dev = (cut_spans(tokens, length, self.options.doc_stride) for tokens in self._tokens)
        count = len(train.question)
        if not count:
            raise UserError(
                f"{self.train.path}: no answer of its {len(self.train.ids):,} questions is in its context at "
                "answer_start, so that there is nothing to train on"
            )
        pays = count > _PAYS * templates_of(train.lengths, length, True).rows.sum()
        overrides = [f"data.packing={str(bool(pays)).lower()}", *overrides]
        packing = self.settings(overrides).data.packing
        rows, dev_rows = (int(templates_of(windows.lengths, length, packing).rows.sum()) for windows in (train, dev))
        packed = Packed(count, rows, WINDOWS, "windows")
        recipe, step = self.recipe(packed, dev_rows, epochs, overrides, world_size)
        task = Span(packing, self.train.version_2, self.options.doc_stride)
        check_size(recipe, task, world_size)
        scores = DevAnswers(self.dev, AnswerRules(self.dev.version_2, self.options.null_score_threshold))
        return Job(
            recipe,
            task,
            SpanDataset(
                self.train.path.parent,
                self.vocabulary,
                self.tokenizer_settings,
                recipe,
                *self._tokens,
                self.options.doc_stride,
            ),
            output_dir,
            init_checkpoint=self.directory,
            evaluator=partial(DevScores, scores),
            hooks=(partial(AnswersHook, scores, self.train, self._notices(), step),),
            **options,
        )

    @cached_property
    def _opened(self) -> list[tuple[SpanTokens, str | None]]:
        directory = self.options.index_dir or self.train.path.parent / "index"
        texts = span_texts(self.train), span_texts(self.dev, labelled=False)
        return [open_spans(some, self.vocabulary, self.tokenizer_settings, directory) for some in texts]

    @property
    def _tokens(self) -> tuple[SpanTokens, ...]:
        """The tokens of train and dev."""
        return tuple(tokens for tokens, _ in self._opened)

    def _notices(self) -> list[str]:
        notices = [f"SQuAD {'2.0' if self.train.version_2 else '1.1'}: {self.train.path.name} and {self.dev.path.name}"]
        notices += [problem for _, problem in self._opened[:1] if problem]
        skipped = int(np.count_nonzero(self._tokens[0].answers[:, 0] == NOT_FOUND))
        if skipped:
            notices.append(
                f"{skipped:,} train questions are skipped: their answer is not in their context at answer_start"
            )
        config = read_configuration(self.directory)
        if (kind := named_class(config)) != ARCHITECTURE:
            left_out = "" if kind in _PRETRAINING else ", whose own head is left out"
            named = str(config["architectures"][0])[:100] if kind else "no class of model"
            notices.append(f"the answers' head starts afresh: the checkpoint is of {named}{left_out}")
        return notices


class DevAnswers:
    """Scores a dev set's outputs, and remembers the answers.

    Args:
        questions: the dev set's, with their right answers.
        rules: how answers are chosen.
    """

    def __init__(self, questions: Questions, rules: AnswerRules) -> None:
        self.questions, self._rules = questions, rules
        self.answers: list[Answers] | None = None  # the last evaluation's

    def __call__(self, source: SpanRows, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """The official scores, and for version 2.0 also the best thresholds and their scores."""
        self.answers = find_answers(source, outputs, self.questions.contexts, self._rules)
        predictions = {
            number: answer.best.text for number, answer in zip(self.questions.ids, self.answers, strict=True)
        }
        scores = squad_scores(self.questions, predictions)
        scores = {name: score for name, score in scores.items() if not name.endswith("total")}
        if not self.questions.version_2:
            return scores
        # The best thresholds are searched with each question's best answer that is not "".
        odds = {number: answer.null_odds for number, answer in zip(self.questions.ids, self.answers, strict=True)}
        never = {
            number: next((candidate.text for candidate in answer.n_best if candidate.text), "")
            for number, answer in zip(self.questions.ids, self.answers, strict=True)
        }
        best = squad_scores(self.questions, never, odds)
        return scores | {name: score for name, score in best.items() if name.startswith("best_")}


class AnswersHook(Hook):
    """Prints the data's sizes at the start; at the end writes the dev set's answers, and says if all are the same."""

    def __init__(self, scores: DevAnswers, train: Questions, notices: list[str], step: str, run: Run) -> None:
        super().__init__(run)
        self._scores, self._notices, self._step = scores, notices, step
        files = {"train": train, "dev": scores.questions}
        contents = {name: (questions.path, vars(questions) | {"path": ""}) for name, questions in files.items()}
        require_same_files(contents, run.world)

    def phase(self) -> None:
        train, dev = self.run.phase.source, self.run.phase.held_out
        for notice in (*self._notices, f"train: {_size(train)}", f"dev: {_size(dev)}", self._step):
            self.run.say(notice)

    def finish(self) -> None:
        self.wait()
        run = self.run
        if run.state.progress.step < run.last_step:
            return
        if self._scores.answers is None:  # nothing was left to train, but the files may be missing
            self._answer()
        answers = self._scores.answers
        if run.world.rank == 0:
            write_answers(run.job.output_dir, self._scores.questions.ids, answers)
        self._say_scores({name.removeprefix("held_out_"): score for name, score in run.held_out.items()})
        texts = {answer.best.text for answer in answers}
        if len(answers) > 1 and len(texts) == 1:
            run.say(
                f"collapsed: {f'{texts.pop()!r} is answered' if any(texts) else 'nothing is answered'} to every "
                "question; try another data.seed, a lower learning rate or more epochs"
            )

    def _answer(self) -> None:
        run = self.run
        rows = run.job.dataset.open(len(run.recipe.phase) - 1, "held_out")

        def progress(done: int, of: int) -> None:
            run.doing(f"predicting, {done} of {of} rows")

        run.doing("predicting", FIRST_STEP_S)
        scores = self._scores(rows, run_outputs(run)(run.state.parameters, rows, progress))
        run.held_out = {f"held_out_{name}": score for name, score in scores.items()}

    def _say_scores(self, scores: dict[str, float]) -> None:
        exact = scores.get("exact_match", scores.get("exact"))
        count = len(self._scores.answers)
        self.run.say(f"dev set: exact match {exact:.2f}, F1 {scores['f1']:.2f}, of {count:,} questions")
        if "best_f1" in scores:
            self.run.say(
                f"best thresholds: --null_score_threshold {scores['best_f1_thresh']} gives F1 {scores['best_f1']:.2f}, "
                f"{scores['best_exact_thresh']} exact match {scores['best_exact']:.2f}"
            )


def _file(data_dir: Path | None, split: str, file: Path | None) -> Path:
    if file is not None:
        return file
    if data_dir is None:
        raise UserError(f"expected --data_dir, or --{split}_file")
    return find_squad_file(data_dir, split)


def _refuse_mixed_versions(train: Questions, dev: Questions) -> None:
    if train.version_2 != dev.version_2:
        versions = ["2.0" if questions.version_2 else "1.1" for questions in (train, dev)]
        raise UserError(
            f"{train.path} is SQuAD {versions[0]} and {dev.path} is {versions[1]} (2.0 has is_impossible); expected "
            "one version: name the files with --train_file and --dev_file"
        )


def _size(rows: SpanRows) -> str:
    questions, windows = len(rows.tokens.answers), len(rows.windows.question)
    return f"{questions:,} questions in {windows:,} windows in {rows.count:,} rows"
