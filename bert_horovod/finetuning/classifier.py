"""Fine-tuning of a classifier or a regression: its recipe, and the job that the loop trains."""

from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_horovod.batches.examples.documents import DocumentDataset
from bert_horovod.batches.examples.labelled import LabelledDataset, LabelledRows, LabelledTokens, tokenised
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.errors import UserError
from bert_horovod.finetuning.best_checkpoint import BestCheckpoint
from bert_horovod.finetuning.class_weights import balanced
from bert_horovod.finetuning.dev_scores import DevScores
from bert_horovod.finetuning.elimination import Elimination
from bert_horovod.finetuning.examples import Split
from bert_horovod.finetuning.initialisation import Finetuning, Packed, refuse_another
from bert_horovod.finetuning.outcome import Outcome
from bert_horovod.finetuning.text_data import TextData
from bert_horovod.interchange.labels import head_rows
from bert_horovod.interchange.pretrained import read_configuration
from bert_horovod.interchange.suitability import require_segments
from bert_horovod.recipe.sections import CLASSIFICATION, MULTILABEL, REGRESSION, Recipe
from bert_horovod.tasks.base import Task
from bert_horovod.tasks.classification import Classification
from bert_horovod.tasks.label_attention import LabelAttention
from bert_horovod.tasks.multilabel import Multilabel
from bert_horovod.tasks.multiverse import MultiverseClassification
from bert_horovod.tasks.regression import Regression
from bert_horovod.training.hooks.base import Hook
from bert_horovod.training.job import Job
from bert_horovod.training.start import check_size
from bert_horovod.wording import listed

EXAMPLES = 32  # approximately, in a step
SMALL_MODEL_RATE = 1e-4  # the lowest learning rate for models narrower than bert-base
_BASE_WIDTH = 768


class TextFinetuning(Finetuning):
    """A checkpoint, and the task and data to fine-tune it on, checked.

    Args:
        data: the task and its files.
        checkpoint: see Finetuning.

    Raises:
        ReportedError: the checkpoint cannot be read, or does not fit the task.
    """

    phase: ClassVar[dict[str, Any]] = {"sequence_length": 128, "learning_rate": 3e-5, "warmup": 0.1}

    def __init__(self, data: TextData, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        self.data, self.task = data, data.task
        named = {Classification: CLASSIFICATION, Multilabel: MULTILABEL, Regression: REGRESSION}
        self.what = named[type(self.task)]
        if len(data.format.columns) > 1:
            require_segments(self.directory, self.model, "the first text", "the second")

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
            epochs: over the train examples.
            overrides: settings of the recipe, as `section.key=value`.
            world_size: ranks.
            early_stop: evaluations without a better first score after which the run ends; None: it does not.
            options: further fields of Job.

        Raises:
            UserError: a setting is invalid, or does not fit the checkpoint or the data.
        """
        if isinstance(self.task, Multilabel):
            threshold = "dev" if self.data.threshold is None else str(self.data.threshold)
            refuse_another(output_dir, "--threshold", threshold, "0.5", "with which its labels were scored")
        settings = self.settings(overrides)
        train, dev = (self._dataset(settings).open(0, split) for split in ("train", "held_out"))
        packed = Packed(len(train.labels), train.count, EXAMPLES, "examples")
        recipe, step = self.recipe(packed, dev.count, epochs, overrides, world_size)
        task, hooks = self._with_heads(recipe)
        score = partial(self._score, task)
        check_size(recipe, task, world_size)
        rows = f"{packed.count:,} train examples in {packed.rows:,} rows ({packed.mean:.2f} a row)"
        return Job(
            recipe,
            task,
            self._dataset(recipe),
            output_dir,
            init_checkpoint=self.directory,
            evaluator=partial(DevScores, score, more=dict(list(self._dev_splits.items())[1:])),
            hooks=(
                *hooks,
                partial(Outcome, self.data, self.test, (*self._notices(recipe, task), rows, step)),
                partial(BestCheckpoint, self.data.metrics[0], early_stop),
            ),
            **options,
        )

    def _with_heads(self, recipe: Recipe) -> tuple[Task, tuple[type[Hook], ...]]:
        """The task with as many heads as the recipe says, and the hooks that several heads need."""
        heads, weight = recipe.objective.heads, recipe.objective.orthogonality
        if heads > 1:
            task = MultiverseClassification(self.task.labels, self.task.text_columns, heads=heads, orthogonality=weight)
            return task, (Elimination,)
        task = self.data.task
        if windows := recipe.objective.label_attention:
            if len(task.text_columns) > 1:
                raise UserError(
                    f"objective.label_attention = {windows}: windows are of one text; expected one column of text "
                    "(--text_columns)"
                )
            task = LabelAttention(task.labels, task.text_columns, task.separator, task.threshold, windows=windows)
        if recipe.objective.class_weights == "balanced":
            task = replace(task, class_weights=balanced(self._splits["train"].labels, len(task.labels)))
        return task, ()

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer(self.vocabulary, self.tokenizer_settings)

    def _tokens(self, split: Split) -> LabelledTokens:
        return tokenised(split.examples, self._tokenizer)

    @cached_property
    def _dev_splits(self) -> dict[str, str]:
        """The dev files: the split's name in the dataset -> the suffix of its metrics' names."""
        return {f"held_out{suffix}": suffix for suffix in self.data.dev}

    @cached_property
    def _splits(self) -> dict[str, LabelledTokens]:
        dev = zip(self._dev_splits, self.data.dev.values(), strict=True)
        return {"train": self._tokens(self.data.train)} | {name: self._tokens(split) for name, split in dev}

    @cached_property
    def test(self) -> dict[str, LabelledTokens]:
        """The unlabelled examples, by the name of the file of predictions."""
        return {name: self._tokens(split) for name, split in self.data.test.items()}

    def _dataset(self, recipe: Recipe) -> LabelledDataset:
        kind = DocumentDataset if recipe.objective.label_attention else LabelledDataset
        return kind(self.data.train.path.parent, self.vocabulary, self.tokenizer_settings, recipe, self._splits)

    def _score(self, task: Task, source: LabelledRows, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        scores = self.data.score(source.by_example(outputs["logits"]), source.labels)
        if "threshold" in scores:
            task.threshold = scores["threshold"]  # checkpoints are saved after an evaluation, and have it
        return scores

    def _notices(self, recipe: Recipe, task: Task) -> list[str]:
        notices = self.data.notices()
        rate = recipe.phase[0].learning_rate
        if self.model.hidden_size < _BASE_WIDTH and rate < SMALL_MODEL_RATE:
            notices.append(
                f"warning: phase.0.learning_rate = {rate:g} is low for a model of width {self.model.hidden_size}; "
                "models smaller than bert-base need 1e-4 to 5e-4: --set phase.0.learning_rate=1e-4"
            )
        config = read_configuration(self.directory)
        our_configuration = task.configuration(self.model)
        rows = head_rows(config, our_configuration)
        their_class = f"{(config.get('architectures') or ['no class of model'])[0]}"
        if rows is None:
            notices.append(
                f"the head starts afresh: the checkpoint is a {their_class[:100]} without one for these labels"
            )
        elif rows != sorted(rows):
            notices.append("the checkpoint's head has these labels in another order; it is put into this one by name")
        if self.data.format.labels:
            notices.append("labels: " + listed(self.data.format.labels.values(), 300))
        notices.append(f"tokenizer: the checkpoint's, {self.tokenizer_settings}")
        return notices
