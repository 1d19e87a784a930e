"""Begin a fine-tuning: open its checkpoint, and make a recipe whose steps follow from epochs."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from bert_horovod.errors import UserError
from bert_horovod.interchange.huggingface import Pretrained
from bert_horovod.interchange.pretrained import read_checkpoint, read_pretrained
from bert_horovod.interchange.suitability import require_vocabulary
from bert_horovod.recipe.idle import refuse_idle
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe_files.loading import overridden_keys, recipe_from_table
from bert_horovod.runs.status_files import COMMAND, read_command
from bert_horovod.runtime.devices import use_devices

# Settings that may differ from the checkpoint's.
_MAY_DIFFER = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "attention_output_dropout_prob",
    "initializer_range",
)
_MOST_ROWS = 32  # of a micro-batch, if no setting gives its size


def open_checkpoint(checkpoint: Path) -> tuple[Path, Pretrained]:
    """A checkpoint's directory and its content; `checkpoint` may be a run's output_dir.

    Raises:
        ReportedError: `checkpoint` is not a checkpoint, is damaged, or has no vocabulary.
    """
    directory, pretrained = read_checkpoint(checkpoint, lambda directory: (directory, read_pretrained(directory)))
    require_vocabulary(directory, pretrained.vocabulary)
    return directory, pretrained


class StartingPoint(NamedTuple):
    """What a fine-tuning begins with."""

    directory: Path  # the checkpoint's
    model: Model  # its sizes
    phase: dict[str, Any]  # the task's sequence_length, global_batch, learning_rate and warmup, as in a recipe


def first_settings(model: Model, what: str, defaults: dict[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """A task's defaults with overrides, before rows are known: all is final except batch, steps and [execution].

    `what` is trained, as in fields.ReadIf. Raises UserError for an override that it does not read, too.
    """
    table = _table(model, defaults)
    recipe = recipe_from_table(table, overrides)
    refuse_idle(recipe, what, overridden_keys(overrides), recipe_from_table(table))
    return recipe


def finetuning_recipe(
    start: StartingPoint,
    train_rows: int,
    dev_rows: int,
    epochs: float,
    overrides: Sequence[str] = (),
    world_size: int = 1,
) -> Recipe:
    """A task's defaults with overrides.

    Steps follow from epochs and global batch; the whole dev set is evaluated, and a checkpoint saved, once an epoch.

    Args:
        start: the checkpoint and the task's defaults.
        train_rows, dev_rows: rows of an epoch, and of the dev set.
        epochs: over the train rows.
        overrides: settings of the recipe, as `section.key=value`.
        world_size: ranks.

    Raises:
        UserError: a setting is invalid, or a size differs from the checkpoint's.
    """
    if not 0 < epochs < math.inf:
        raise UserError(f"--epochs {epochs:g}: expected more than 0")
    table = _table(start.model, start.phase)
    phase, table["execution"] = table["phase"][0], {"evaluate_rows": dev_rows}
    first = recipe_from_table(table, overrides)
    batch, windows = first.phase[0].global_batch, max(1, first.objective.label_attention)
    an_epoch = math.ceil(train_rows / batch)
    phase["steps"] = math.ceil(epochs * train_rows / batch)
    table["execution"] |= {
        "micro_batch": min(max(1, _MOST_ROWS // windows), math.ceil(batch / world_size)),
        "evaluate_steps": an_epoch,
        "checkpoint_steps": an_epoch,
    }
    recipe = recipe_from_table(table, overrides)
    _refuse_other_sizes(start.directory, start.model, recipe.model)
    return recipe


class Packed(NamedTuple):
    """Train examples, packed into rows."""

    count: int  # of examples
    rows: int  # of an epoch
    usual: int  # examples of a step, approximately, if the user gives no batch
    what: str  # the examples' name in messages

    @property
    def mean(self) -> float:
        """Examples in a row."""
        return self.count / self.rows


class Finetuning:
    """A checkpoint to fine-tune, opened; each task has a subclass that makes the jobs of one or several runs.

    Args:
        checkpoint: of any format, or a run's output_dir; it gives sizes, vocabulary and lower-casing.

    Raises:
        ReportedError: `checkpoint` is not a checkpoint, is damaged, or has no vocabulary.
    """

    what: str  # is trained, as in recipe.fields.ReadIf
    phase: ClassVar[dict[str, Any]]  # the task's sequence_length, learning_rate and warmup, as in a recipe

    def __init__(self, checkpoint: Path) -> None:
        self.directory, pretrained = open_checkpoint(checkpoint)
        self.model, self.vocabulary = pretrained.model, pretrained.vocabulary
        self.tokenizer_settings = pretrained.tokenizer_settings

    def settings(self, overrides: Sequence[str]) -> Recipe:
        """The settings before rows are known; see first_settings."""
        return first_settings(self.model, self.what, self.phase, overrides)

    def use_devices(self, local_rank: int, local_size: int, overrides: Sequence[str]) -> None:
        """Give this rank its device (runtime.devices); call it before `job` if the tokenizer runs in TensorFlow."""
        use_devices(local_rank, local_size, self.settings(overrides).execution.threads)

    def recipe(
        self, train: Packed, dev_rows: int, epochs: float, overrides: Sequence[str], world_size: int
    ) -> tuple[Recipe, str]:
        """The recipe for packed examples, and the notice about its steps that the run prints at the start.

        Arguments and errors are those of finetuning_recipe, except the global batch, which follows from `train`.
        """
        batch = default_batch(train.usual, train.rows, train.mean, world_size)
        start = StartingPoint(self.directory, self.model, self.phase | {"global_batch": batch})
        recipe = finetuning_recipe(start, train.rows, dev_rows, epochs, overrides, world_size)
        refuse_few_rows(recipe, train.rows, train.mean, train.what, world_size)
        return recipe, step_notice(recipe, train.usual, train.mean, train.what, world_size)


def default_batch(usual: int, rows: int, mean: float, world_size: int) -> int:
    """Rows of a step if the user gives no batch: about `usual` examples, and at least a row for each rank.

    Args:
        usual: examples of a step.
        rows: of an epoch.
        mean: examples in a row.
        world_size: ranks.
    """
    return min(rows, max(1, world_size, round(usual / mean)))


def refuse_another(output_dir: Path, flag: str, value: str, usual: str, why: str) -> None:
    """Raise UserError if the run in a directory was begun with another value of a flag.

    Args:
        output_dir: the directory, which may have no run.
        flag: as typed.
        value: that of now.
        usual: without the flag.
        why: what another value changes, behind "was begun with VALUE, ".
    """
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


def refuse_few_rows(recipe: Recipe, rows: int, mean: float, noun: str, world_size: int) -> None:
    """Raise UserError if a step, or an epoch, has fewer rows than there are ranks.

    Args:
        recipe: the run's.
        rows: of an epoch.
        mean: examples in a row.
        noun: the name of the examples.
        world_size: ranks.
    """
    batch = recipe.phase[0].global_batch
    packed = recipe.data.packing and mean > 1
    alone = ", or data.packing=false for rows of one each" if packed else ""
    if rows < world_size:
        packed_text = f"in {rows:,} rows of about {mean:.1f} each, " if packed else ""
        raise UserError(
            f"there are {round(rows * mean):,} train {noun}, {packed_text}but {world_size} ranks, and each needs a "
            f"row; start at most {rows} ranks{alone}"
        )
    if batch < world_size:
        raise UserError(
            f"phase.0.global_batch={batch}: a step has {batch} rows of about {mean:.1f} {noun} each, but there are "
            f"{world_size} ranks, and each needs a row; leave it out, set it to {world_size} or more (about "
            f"{world_size * mean:.0f} {noun} a step), or start at most {batch} ranks{alone}"
        )


def step_notice(recipe: Recipe, usual: int, mean: float, noun: str, world_size: int) -> str:
    """The notice about a step that the run prints at the start; arguments as in default_batch and refuse_few_rows."""
    batch = recipe.phase[0].global_batch
    reason = ""
    if batch == world_size > round(usual / mean):
        reason = f", more than the usual {usual}, because each of the {world_size} ranks needs a row"
    return f"a step of {batch} rows has about {batch * mean:.0f} {noun}{reason}"


def _table(model: Model, defaults: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": dataclasses.asdict(model),
        "objective": {"pair": "none"},  # of pre-training: fine-tuning does not read it
        # As in Google's run_classifier.py and run_squad.py, but with bias correction, which small data sets need.
        "optimizer": {"name": "adamw", "bias_correction": True},
        "phase": [defaults | {"sequence_length": min(defaults["sequence_length"], model.max_position_embeddings)}],
    }


def _refuse_other_sizes(directory: Path, theirs: Model, ours: Model) -> None:
    for field in dataclasses.fields(theirs):
        before, after = getattr(theirs, field.name), getattr(ours, field.name)
        if before != after and field.name not in _MAY_DIFFER:
            raise UserError(
                f"--set model.{field.name}={after}: the checkpoint {directory} has {before!r}; only "
                f"{', '.join(_MAY_DIFFER)} may differ from it"
            )
