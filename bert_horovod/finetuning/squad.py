"""Fine-tuning for SQuAD: the job that the loop trains, its recipe, its scores, and the files that it leaves."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.batches.span_rows import SpanDataset, SpanRows, templates_of
from bert_horovod.batches.span_windows import STRIDE, cut_spans
from bert_horovod.batches.spans import NOT_FOUND, tokenised_spans
from bert_horovod.corpus.reading.located_tokens import LocatingTokenizer
from bert_horovod.errors import UserError
from bert_horovod.finetuning.dev_scores import DevScores
from bert_horovod.finetuning.initialisation import finetuning_recipe, open_checkpoint
from bert_horovod.finetuning.squad_files import Questions, find_squad_file, read_squad
from bert_horovod.finetuning.squad_scores import squad_scores
from bert_horovod.inference.answers import AnswerRules, Answers, find_answers
from bert_horovod.interchange.tokenizer_files import read_json
from bert_horovod.storage.writing import write_atomically
from bert_horovod.tasks.span import ARCHITECTURE, Span
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.job import Job
from bert_horovod.training.run import Run
from bert_horovod.training.start import check_size

PHASE = {"sequence_length": 384, "global_batch": 32, "learning_rate": 3e-5, "warmup": 0.1}
WINDOWS_A_BATCH = PHASE["global_batch"]
EPOCHS = 2.0
_PAYS = 1.1  # windows a row, from which on packing is worth it
_PRETRAINING = ("BertForPreTraining", "BertForMaskedLM", "BertModel")


def squad_job(
    checkpoint: Path,
    output_dir: Path,
    data_dir: Path | None = None,
    train_file: Path | None = None,
    dev_file: Path | None = None,
    epochs: float = EPOCHS,
    stride: int = STRIDE,
    null_score_threshold: float = 0.0,
    overrides: list[str] | tuple[str, ...] = (),
    world_size: int = 1,
    **options,
) -> Job:
    """Fine-tuning of a checkpoint on SQuAD 1.1 or 2.0, checked; the data say which.

    Args:
        checkpoint: a Hugging Face BERT directory, or a run's output_dir; it gives sizes, vocabulary and lower-casing.
        output_dir: the run's.
        data_dir: with the files train-v1.1.json and dev-v1.1.json or v2.0's, plain or .gz.
        train_file, dev_file: in place of those.
        epochs: over the train windows.
        stride: tokens from one window of a context to the next.
        null_score_threshold: of SQuAD 2.0: no answer where the null odds are above.
        overrides: settings of the recipe, as `section.key=value`; global_batch is in rows, by default as many as hold
            32 windows.
        world_size: ranks.
        options: further fields of Job.

    Raises:
        ReportedError: checkpoint, data or a setting is not what it should be, or they do not fit together.
    """
    if stride < 1:
        raise UserError(f"--doc_stride {stride}: expected at least 1 token")
    directory, found = open_checkpoint(checkpoint)
    train, dev = (
        read_squad(_file(data_dir, name, file), scored=True)
        for name, file in (("train", train_file), ("dev", dev_file))
    )
    _refuse_mixed_versions(train, dev)
    tokenizer = LocatingTokenizer(found.vocabulary, found.lowercase)
    train_tokens = tokenised_spans(train.texts(), tokenizer)
    dev_tokens = tokenised_spans(dev.texts(labelled=False), tokenizer)
    recipe_of = partial(finetuning_recipe, directory, found.model, epochs=epochs, world_size=world_size)
    first = recipe_of(PHASE, 1, 1, overrides=overrides)  # for the length of rows
    length = first.phase[0].sequence_length
    windows = cut_spans(train_tokens, length, stride)
    if not len(windows.question):
        raise UserError(f"{train.path}: no answer of all {len(train.ids):,} questions is in its context")
    packed = templates_of(windows, length, packing=True).rows.sum()
    pays = f"data.packing={str(len(windows.question) > _PAYS * packed).lower()}"
    packing = recipe_of(PHASE, 1, 1, overrides=[pays, *overrides]).data.packing
    rows = int(templates_of(windows, length, packing).rows.sum())
    dev_rows = int(templates_of(cut_spans(dev_tokens, length, stride), length, packing).rows.sum())
    phase = PHASE | {"global_batch": max(1, round(WINDOWS_A_BATCH * rows / len(windows.question)))}
    recipe = recipe_of(phase, rows, dev_rows, overrides=[pays, *overrides])
    task = Span(packing)
    check_size(recipe, task.parameters(recipe.model), world_size)
    scores = DevAnswers(dev, AnswerRules(dev.version_2, null_score_threshold))
    return Job(
        recipe,
        task,
        SpanDataset(train.path.parent, found.vocabulary, found.lowercase, recipe, train_tokens, dev_tokens, stride),
        output_dir,
        init_checkpoint=directory,
        evaluator=partial(DevScores, scores),
        hooks=(partial(AnswersHook, scores),),
        **options,
    )


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
        """The official scores, and in version 2.0 those of the best thresholds."""
        self.answers = find_answers(source, outputs, self.questions.contexts, self._rules)
        predictions = {
            number: answer.best.text for number, answer in zip(self.questions.ids, self.answers, strict=True)
        }
        if not self.questions.version_2:
            return squad_scores(self.questions, predictions)
        scores = squad_scores(self.questions, predictions)
        # The best thresholds are found on what would be answered where nothing abstains.
        odds = {number: answer.null_odds for number, answer in zip(self.questions.ids, self.answers, strict=True)}
        never = {
            number: next((one.text for one in answer.n_best if one.text), "")
            for number, answer in zip(self.questions.ids, self.answers, strict=True)
        }
        best = squad_scores(self.questions, never, odds)
        return scores | {name: value for name, value in best.items() if name.startswith("best_")}


class AnswersHook(Hook):
    """Says what is trained on, writes the dev set's answers at the end, and whether they are one and the same."""

    def __init__(self, scores: DevAnswers, run: Run) -> None:
        super().__init__(run)
        self._scores = scores

    def phase(self) -> None:
        run, train = self.run, self.run.phase.source
        dev = run.phase.held_out
        skipped = np.count_nonzero(train.tokens.answers[:, 0] == NOT_FOUND)
        run.say(
            f"{_size(train)} to train on, {_size(dev)} in the dev set"
            + (f"; {skipped:,} questions are skipped: their answer is not in their context" if skipped else "")
        )
        theirs = read_json(run.job.init_checkpoint / "config.json").get("architectures")
        if run.state.progress.step == 0 and theirs and theirs[0] not in (*_PRETRAINING, ARCHITECTURE):
            run.say(f"the checkpoint is of {theirs[0]}: its head is left out, the answers' head begins anew")

    def finish(self) -> None:
        self.settle()
        answers, run = self._scores.answers, self.run
        if answers is None:
            return
        if run.world.rank == 0:
            write_answers(run.job.output_dir, self._scores.questions.ids, answers)
        found = {name.removeprefix("held_out_"): value for name, value in run.held_out.items()}
        exact = found.get("exact_match", found.get("exact"))
        run.say(f"dev set: exact match {exact:.2f}, F1 {found['f1']:.2f}, of {len(answers):,} questions")
        if "best_f1" in found:
            run.say(
                f"with --null_score_threshold {found['best_f1_thresh']:.4f} F1 would be {found['best_f1']:.2f}, with "
                f"{found['best_exact_thresh']:.4f} exact match {found['best_exact']:.2f}"
            )
        texts = {answer.best.text for answer in answers}
        if len(answers) > 1 and len(texts) == 1:
            run.say(
                f"collapsed: {f'{texts.pop()!r} is answered' if any(texts) else 'nothing is answered'} to every "
                "question; try another data.seed, a lower learning rate or more epochs"
            )


def write_answers(directory: Path, ids: list[str], answers: list[Answers]) -> None:
    """Write predictions.json, nbest_predictions.json and, in version 2.0, null_odds.json, as run_squad.py does."""

    def write(name: str, content: dict[str, Any]) -> None:
        write_atomically(directory / name, json.dumps(content, indent=4, ensure_ascii=False) + "\n")

    write("predictions.json", {number: answer.best.text for number, answer in zip(ids, answers, strict=True)})
    fields = ("text", "probability", "start_logit", "end_logit")
    n_best = ([{name: getattr(one, name) for name in fields} for one in answer.n_best] for answer in answers)
    write("nbest_predictions.json", dict(zip(ids, n_best, strict=True)))
    if answers[0].null_odds is not None:
        odds = (answer.null_odds for answer in answers)
        write("null_odds.json", dict(zip(ids, odds, strict=True)))


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
