"""Fine-tuning of an entity recognition: its recipe, the job that the loop trains, its scores and its predictions."""

from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_horovod.batches.examples.tag_rows import TagDataset, TagRows
from bert_horovod.batches.examples.tag_windows import TaggedTokens, tokenised_words
from bert_horovod.corpus.reading.tag_schemes import OUTSIDE
from bert_horovod.corpus.reading.tagged_files import TaggedSentences, conll_text
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.errors import UserError, file_error
from bert_horovod.finetuning.best_checkpoint import BestCheckpoint
from bert_horovod.finetuning.dev_scores import DevScores, run_outputs
from bert_horovod.finetuning.entity_scores import entity_scores, scores_by_type, type_cells
from bert_horovod.finetuning.initialisation import Finetuning, Packed
from bert_horovod.finetuning.outcome import DEV_PREDICTIONS
from bert_horovod.finetuning.same_files import require_same_files
from bert_horovod.finetuning.tag_data import TagData
from bert_horovod.inference.word_tags import predicted_tags
from bert_horovod.interchange.labels import head_rows
from bert_horovod.interchange.pretrained import read_configuration
from bert_horovod.recipe.sections import ENTITIES
from bert_horovod.reporting.tables import lines
from bert_horovod.storage.writing import write_atomically
from bert_horovod.tasks.token_classification import TokenClassification
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.job import Job
from bert_horovod.training.run import FIRST_STEP_S, Run
from bert_horovod.training.start import check_size

SENTENCES = 32  # approximately, in a step


class TagFinetuning(Finetuning):
    """A checkpoint, and the sentences to fine-tune it on, checked.

    Args:
        data: the sentences with their tags.
        checkpoint: see Finetuning.

    Raises:
        ReportedError: the checkpoint cannot be read.
    """

    what = ENTITIES
    phase: ClassVar[dict[str, Any]] = {"sequence_length": 128, "learning_rate": 3e-5, "warmup": 0.1}

    def __init__(self, data: TagData, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        self.data, self.task = data, TokenClassification(data.labels)

    def job(
        self,
        output_dir: Path,
        epochs: float = 3.0,
        overrides: list[str] | tuple[str, ...] = (),
        world_size: int = 1,
        early_stop: int | None = None,
        **options,
    ) -> Job:
        """Make the job of one run, and check it.

        Args:
            output_dir: the run's.
            epochs: over the train sentences.
            overrides: settings of the recipe, as `section.key=value`; a global_batch is in rows.
            world_size: ranks.
            early_stop: evaluations without a better F1 after which the run ends; None: it does not.
            options: further fields of Job.

        Raises:
            UserError: a setting is invalid, or does not fit the checkpoint or the data.
        """
        settings = self.settings(overrides)
        train, dev = (self._dataset(settings).open(0, split) for split in ("train", "held_out"))
        packed = Packed(len(train.windows.begin), train.count, SENTENCES, "sentences")
        recipe, step = self.recipe(packed, dev.count, epochs, overrides, world_size)
        check_size(recipe, self.task, world_size)
        scores = DevTags(self.data)
        notices = *self._notices(), _size("train", self.data.train, train), _size("dev", self.data.dev, dev), step
        return Job(
            recipe,
            self.task,
            self._dataset(recipe),
            output_dir,
            init_checkpoint=self.directory,
            evaluator=partial(DevScores, scores),
            hooks=(partial(TagsHook, scores, self._test, notices), partial(BestCheckpoint, "f1", early_stop)),
            **options,
        )

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer(self.vocabulary, self.tokenizer_settings)

    def _tokens(self, sentences: TaggedSentences) -> TaggedTokens:
        tokens = tokenised_words(sentences.words, self.data.numbers(sentences), self._tokenizer)
        if not len(tokens.ids):
            raise UserError(f"{sentences.path}: the tokenizer makes no token of its words; expected text")
        return tokens

    @cached_property
    def _splits(self) -> dict[str, TaggedTokens]:
        return {"train": self._tokens(self.data.train), "held_out": self._tokens(self.data.dev)}

    @cached_property
    def _test(self) -> TaggedTokens | None:
        return self._tokens(self.data.test) if self.data.test else None

    def _dataset(self, recipe: Any) -> TagDataset:
        return TagDataset(
            self.data.train.path.parent,
            self.vocabulary,
            self.tokenizer_settings,
            recipe,
            self.data.labels,
            self._splits,
        )

    def _notices(self) -> list[str]:
        notices = self.data.notices()
        config = read_configuration(self.directory)
        rows = head_rows(config, self.task.configuration(self.model))
        if rows is None:
            their_class = f"{(config.get('architectures') or ['no class of model'])[0]}"
            notices.append(
                f"the head starts afresh: the checkpoint is a {their_class[:100]} without one for these tags"
            )
        elif rows != sorted(rows):
            notices.append("the checkpoint's head has these tags in another order; it is put into this one by name")
        notices.append(f"tokenizer: the checkpoint's, {self.tokenizer_settings}")
        return notices


class DevTags:
    """Scores a dev set's outputs, and remembers the predicted tags.

    Args:
        data: the sentences, with the dev set's right tags.
    """

    def __init__(self, data: TagData) -> None:
        self.data = data
        self.predicted: list[list[str]] | None = None  # the last evaluation's

    def __call__(self, source: TagRows, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """The scores of entity_scores."""
        self.predicted = predicted_tags(source, outputs["logits"], self.data.labels).tags
        return entity_scores(self.data.dev.tags, self.predicted, self.data.scheme)


class TagsHook(Hook):
    """Prints the data's sizes at the start; at the end prints scores and writes the predicted tags of dev and test.

    Args:
        scores: the dev set's.
        test: the test sentences, if there are any.
        notices: lines to print at the run's start.
        run: the run.
    """

    def __init__(self, scores: DevTags, test: TaggedTokens | None, notices: tuple[str, ...], run: Run) -> None:
        super().__init__(run)
        self._scores, self._test, self._notices = scores, test, notices
        data = scores.data
        files = {"train": data.train, "dev": data.dev} | ({"test": data.test} if data.test else {})
        require_same_files({name: (file.path, [file.words, file.tags]) for name, file in files.items()}, run.world)

    def phase(self) -> None:
        for notice in self._notices:
            self.run.say(notice)

    def finish(self) -> None:
        self.wait()
        run, data = self.run, self._scores.data
        if run.state.progress.step < run.last_step and not run.ended:
            return
        if self._test is not None:
            rows = run.job.dataset.rows(len(run.recipe.phase) - 1, self._test)
            predicted = predicted_tags(rows, self._logits("test", rows), data.labels).tags
            self._write("test", data.test, predicted)
        # Nothing was left to train, but the files may be missing; or the run has ended after more steps than evaluated.
        if self._scores.predicted is None or run.ended:
            rows = run.job.dataset.open(len(run.recipe.phase) - 1, "held_out")
            self._scores(rows, {"logits": self._logits("dev", rows)})
        predicted = self._scores.predicted
        self._write(DEV_PREDICTIONS.stem, data.dev, predicted)
        scores = entity_scores(data.dev.tags, predicted, data.scheme)
        text = ", ".join(f"{name.replace('_', ' ')} {score:.4f}" for name, score in scores.items())
        run.say(f"{data.dev.path.name}: {text}")
        run.say(lines(type_cells(scores_by_type(data.dev.tags, predicted))))
        if all(tag == OUTSIDE for tags in predicted for tag in tags):
            run.say(
                "collapsed: no entity is predicted; train longer, or with a higher learning rate: "
                "--epochs, --set phase.0.learning_rate=1e-4"
            )

    def _logits(self, split: str, rows: TagRows) -> np.ndarray:
        run = self.run

        def progress(done: int, of: int) -> None:
            run.doing(f"predicting {split}, {done} of {of} rows")

        run.doing(f"predicting {split}", FIRST_STEP_S)
        return run_outputs(run)(run.state.parameters, rows, progress)["logits"]

    def _write(self, stem: str, sentences: TaggedSentences, predicted: list[list[str]]) -> None:
        """Write words, right tags where they are known, and predicted tags as the columns of a CoNLL file."""
        if self.run.world.rank:
            return
        path = (self.run.job.output_dir / DEV_PREDICTIONS).with_stem(stem)
        columns = [
            [list(fields) for fields in zip(words, *([tags] if tags else []), new, strict=True)]
            for words, tags, new in zip(sentences.words, sentences.tags, predicted, strict=True)
        ]
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, conll_text(columns))
        except OSError as error:
            raise file_error(error, f"cannot write {path}: {error.strerror}") from error
        self.run.say(f"predictions: {path}")


def _size(name: str, sentences: TaggedSentences, rows: TagRows) -> str:
    windows, words = len(rows.windows.begin), sum(map(len, sentences.words))
    return f"{name}: {len(sentences.words):,} sentences of {words:,} words, {windows:,} windows in {rows.count:,} rows"
