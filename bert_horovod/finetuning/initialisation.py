"""Begin a fine-tuning: open its checkpoint, and make a recipe whose steps follow from epochs."""

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.batches.examples.base import LabelledDataset
from bert_horovod.errors import UserError
from bert_horovod.finetuning.kinds.base import Kind
from bert_horovod.finetuning.outcome import BestCheckpoint, DevScores, Evaluated, Outcome
from bert_horovod.interchange.suitability import head_rows, named_class, require_vocabulary
from bert_horovod.model.shapes import encoder_shapes
from bert_horovod.recipe.checking import refuse_idle
from bert_horovod.recipe.finetuning_heads import Head
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe.settings import CLASSIFICATION
from bert_horovod.recipe_files.loading import about_experiments, overridden_keys, recipe_from_table
from bert_horovod.runs.opening import OpenCheckpoint
from bert_horovod.runs.status_files import COMMAND, read_command
from bert_horovod.runtime.devices import use_devices
from bert_horovod.tasks.base import PredictingTask
from bert_horovod.training.initial import Initial
from bert_horovod.training.job import Job, check_size

# Settings that may differ from the checkpoint's.
_MAY_DIFFER = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "attention_output_dropout_prob",
    "initializer_range",
)
_MOST_ROWS = 32  # of a micro-batch, if no setting gives its size


def finetuning_recipe(
    checkpoint: OpenCheckpoint,
    model: Model,
    defaults: dict[str, Any],
    rows: tuple[int, int],
    epochs: float,
    overrides: Sequence[str],
    world_size: int,
) -> Recipe:
    """A checkpoint's model and the defaults of a task's phase, with overrides; `rows`: of the train and the dev set.

    Steps follow from epochs and global batch; the whole dev set is evaluated, and a checkpoint saved, once an epoch.
    Raises UserError if a setting is invalid, or a size differs from the checkpoint's.
    """
    if not 0 < epochs < math.inf:
        raise UserError(f"--epochs {epochs:g}: expected more than 0")
    (train_rows, dev_rows), table = rows, _table(model, defaults)
    phase, table["execution"] = table["phase"][0], {"evaluate_rows": dev_rows, "replay_steps": 0}
    first = recipe_from_table(table, overrides)
    batch, windows = first.phase[0].global_batch, max(1, first.finetuning.windows)
    an_epoch = math.ceil(train_rows / batch)
    phase["steps"] = math.ceil(epochs * train_rows / batch)
    table["execution"] |= {
        "micro_batch": min(max(1, _MOST_ROWS // windows), math.ceil(batch / world_size)),
        "evaluate_steps": an_epoch,
        "checkpoint_steps": an_epoch,
    }
    recipe = recipe_from_table(table, overrides)
    _refuse_other_sizes(checkpoint, model, recipe.model)
    return recipe


class Packed(NamedTuple):
    """Train items, packed into rows."""

    count: int  # of items
    rows: int  # of an epoch
    usual: int  # items of a step, about, if the user gives no batch
    noun: str  # the items' name in messages

    @property
    def mean(self) -> float:
        """Items in a row."""
        return self.count / self.rows

    def default_batch(self, world_size: int) -> int:
        """Rows of a step if the user gives no batch: about `usual` items, and at least a row for each rank."""
        return min(self.rows, max(1, world_size, round(self.usual / self.mean)))

    def refuse_few_rows(self, recipe: Recipe, world_size: int) -> None:
        """Raise UserError if a step, or an epoch, has fewer rows than there are ranks."""
        batch, rows, mean, noun = recipe.phase[0].global_batch, self.rows, self.mean, self.noun
        packed = recipe.data.packing and mean > 1
        alone = ", or data.packing=false for rows of one each" if packed else ""
        if rows < world_size:
            packed_text = f"in {rows:,} rows of about {mean:.1f} each, " if packed else ""
            raise UserError(
                f"there are {self.count:,} train {noun}, {packed_text}but {world_size} ranks, and each needs a row; "
                f"start at most {rows} ranks{alone}"
            )
        if batch < world_size:
            raise UserError(
                f"phase.0.global_batch={batch}: a step has {batch} rows of about {mean:.1f} {noun} each, but there are "
                f"{world_size} ranks, and each needs a row; leave it out, set it to {world_size} or more (about "
                f"{world_size * mean:.0f} {noun} a step), or start at most {batch} ranks{alone}"
            )

    def step_notice(self, recipe: Recipe, world_size: int) -> str:
        """The notice about a step that the run prints at the start."""
        batch = recipe.phase[0].global_batch
        reason = ""
        if batch == world_size > round(self.usual / self.mean):
            reason = f", more than the usual {self.usual}, because each of the {world_size} ranks needs a row"
        return f"a step of {batch} rows has about {batch * self.mean:.0f} {self.noun}{reason}"


class Finetuning:
    """A checkpoint, opened, and the data to fine-tune it on; makes the jobs of one or several runs.

    The checkpoint gives sizes, vocabulary and lower-casing; its parameters are read when a run starts from them.
    Raises ReportedError if it is damaged, has no vocabulary, or does not fit the data.
    """

    def __init__(self, kind: Kind, checkpoint: OpenCheckpoint) -> None:
        self.kind = kind
        self.initial = checkpoint.whole(Initial)
        self.checkpoint = self.initial.checkpoint
        self.model, tokenizer = self.checkpoint.reader.model, self.checkpoint.reader.tokenizer
        self.vocabulary = require_vocabulary(self.checkpoint, tokenizer.vocabulary)
        self.tokenizer_settings = tokenizer.settings
        kind.check(self.checkpoint, self.model, self.tokenizer_settings)

    def job(
        self,
        output_dir: Path,
        epochs: float | None = None,
        overrides: Sequence[str] = (),
        world_size: int = 1,
        early_stop: int | None = None,
        **options: Any,
    ) -> Job:
        """Make the job of one run, and check it; raises UserError if a setting is invalid, or does not fit.

        `epochs` are over the train items; None: the kind's. A global_batch among the overrides is in rows.
        `early_stop`: evaluations without a better first score after which the run ends; None: it does not. `options`:
        further fields of Job.
        """
        kind = self.kind
        if early_stop and not kind.decides:
            raise UserError(f"--early_stop {early_stop}: the dev set has no score that decides; leave it out")
        task = kind.data.name
        for flag in (("--task", task, task, "whose head and loss it has"), *kind.lasting()):
            refuse_another(output_dir, *flag)
        if kind.packing_pays and not self._packing_pays(overrides):
            overrides = ["data.packing=false", *overrides]
        settings = self.settings(overrides)
        train, dev = (self._dataset(settings).open(0, split) for split in ("train", "held_out"))
        packed = Packed(len(train.lengths), train.count, kind.items, kind.noun)
        phase = kind.phase | {"global_batch": packed.default_batch(world_size)}
        epochs, counts = kind.epochs if epochs is None else epochs, (train.count, dev.count)
        recipe = finetuning_recipe(self.checkpoint, self.model, phase, counts, epochs, overrides, world_size)
        packed.refuse_few_rows(recipe, world_size)
        task, last = kind.task(recipe), Evaluated()
        check_size(recipe, task, world_size)
        sizes = (("train", kind.data.train, train), ("dev", kind.data.dev[""], dev))
        notices = (
            *kind.notices(recipe),
            *about_experiments(recipe),
            f"tokenizer: the checkpoint's, {self.tokenizer_settings}",
            *(f"{name}: {kind.size(split, rows)} in {rows.count:,} rows" for name, split, rows in sizes),
            packed.step_notice(recipe, world_size),
        )
        best = (partial(BestCheckpoint, kind.decides, early_stop),) if kind.decides else ()
        return Job(
            recipe,
            task,
            self._dataset(recipe),
            output_dir,
            initial=self.initial,
            evaluator=partial(DevScores, kind, last),
            hooks=(
                *kind.hooks(recipe),
                partial(Outcome, kind, last, self._tests, notices, self._notices_of_head(task)),
                *best,
            ),
            **options,
        )

    def settings(self, overrides: Sequence[str]) -> Recipe:
        """The settings before rows are known: all is final except batch, steps and [execution].

        Raises UserError for an override that what is trained does not read, too.
        """
        table = _table(self.model, self.kind.phase)
        recipe = recipe_from_table(table, overrides)
        refuse_idle(recipe, self.kind.trained, overridden_keys(overrides), recipe_from_table(table))
        head = recipe.finetuning
        if type(head).task is not Head.task and self.kind.trained != CLASSIFICATION:  # a package's, without a read_if
            raise UserError(f"finetuning.head = {head.head!r}: it is of a classification; leave it out")
        return recipe

    def use_devices(self, local_rank: int, local_size: int, overrides: Sequence[str]) -> None:
        """Give this rank its device (runtime.devices); call it before `job` if the tokenizer runs in TensorFlow."""
        use_devices(local_rank, local_size, self.settings(overrides).execution.threads)

    @cached_property
    def _tokenizer(self) -> Any:
        return self.kind.tokenizer(self.vocabulary, self.tokenizer_settings)

    @cached_property
    def _splits(self) -> dict[str, Any]:
        data = self.kind.data
        splits = {"train": data.train} | {f"held_out{suffix}": split for suffix, split in data.dev.items()}
        return {name: self.kind.tokens(split, self._tokenizer) for name, split in splits.items()}

    @cached_property
    def _tests(self) -> dict[str, Any]:
        """The arrays of splits without labels, by the name of the file of predictions."""
        return {name: self.kind.tokens(split, self._tokenizer) for name, split in self.kind.data.test.items()}

    def _dataset(self, recipe: Recipe) -> LabelledDataset:
        return self.kind.dataset(self.vocabulary, self.tokenizer_settings, recipe, self._splits)

    def _packing_pays(self, overrides: Sequence[str]) -> bool:
        """Whether packing puts more train items than kind.packing_pays into a row."""
        settings = self.settings(overrides)
        packing = dataclasses.replace(settings, data=dataclasses.replace(settings.data, packing=True))
        rows = self._dataset(packing).open(0, "train")
        return len(rows.lengths) > self.kind.packing_pays * rows.count

    def _notices_of_head(self, task: PredictingTask) -> list[str]:
        theirs, ours = self.checkpoint.reader.configuration, task.configuration(self.model)
        if "id2label" in ours:
            rows = head_rows(theirs, ours)
        else:
            rows = [] if named_class(theirs) == named_class(ours) else None
        if rows is None and task.parameters(self.model).keys() <= encoder_shapes(self.model, pooler=True).keys():
            return []  # vectors of texts: there is no head
        if rows is None:
            their_class = f"{(theirs.get('architectures') or ['no class of model'])[0]}"[:100]
            return [f"the head starts afresh: the checkpoint is a {their_class} without one for {self.kind.outputs}"]
        if rows != sorted(rows):
            return [f"the checkpoint's head has {self.kind.outputs} in another order; it is put into this one by name"]
        return []


def refuse_another(output_dir: Path, flag: str, value: str, usual: str, why: str) -> None:
    """Raise UserError if the run in a directory was begun with another value of a flag."""
    if not (output_dir / COMMAND).is_file():
        return
    words = [part for word in read_command(output_dir).words for part in word.split("=", 1)]
    before = words[words.index(flag) + 1] if flag in words[:-1] else usual
    if _number(before) != _number(value):
        raise UserError(
            f"{flag} {value}: the run in --output_dir {output_dir} was begun with {before}, {why}; give {flag} "
            f"{before}, or a new directory"
        )


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _table(model: Model, defaults: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": dataclasses.asdict(model),
        "objective": {"pair": "none"},  # of pre-training: fine-tuning does not read it
        # As in Google's run_classifier.py and run_squad.py, but with bias correction, which small data sets need.
        "optimizer": {"name": "adamw", "bias_correction": True},
        "phase": [defaults | {"sequence_length": min(defaults["sequence_length"], model.max_position_embeddings)}],
    }


def _refuse_other_sizes(checkpoint: OpenCheckpoint, theirs: Model, ours: Model) -> None:
    for field in dataclasses.fields(theirs):
        before, after = getattr(theirs, field.name), getattr(ours, field.name)
        if before != after and field.name not in _MAY_DIFFER:
            raise UserError(
                f"--set model.{field.name}={after}: the checkpoint {checkpoint} has {before!r}; only "
                f"{', '.join(_MAY_DIFFER)} may differ from it"
            )
