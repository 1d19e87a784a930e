"""What every fine-tuning begins with: a checkpoint, and a recipe whose steps follow from epochs."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_horovod.errors import UserError
from bert_horovod.interchange.huggingface import Pretrained, read_directory
from bert_horovod.recipe.loading import recipe_from_table
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.runs.checkpoint import find_checkpoint

_MAY_DIFFER = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")  # from the checkpoint's


def open_checkpoint(checkpoint: Path) -> tuple[Path, Pretrained]:
    """A checkpoint's directory and what it holds; `checkpoint` may be a run's output_dir.

    Raises:
        ReportedError: it is none, is damaged, or has no vocabulary.
    """
    directory = find_checkpoint(checkpoint)
    found = read_directory(directory)
    if found.vocabulary is None:
        raise UserError(
            f"--checkpoint {directory} has no vocabulary; expected vocab.txt or tokenizer.json beside config.json: "
            "copy the vocab.txt there that the model was trained with"
        )
    return directory, found


def finetuning_recipe(
    directory: Path,
    model: Model,
    defaults: dict[str, Any],
    train_rows: int,
    dev_rows: int,
    epochs: float,
    overrides: Sequence[str] = (),
    world_size: int = 1,
) -> Recipe:
    """A task's defaults, overridden.

    Steps follow from epochs and global batch; the whole dev set is evaluated, and a checkpoint saved, once an epoch.

    Args:
        directory, model: the checkpoint and its sizes.
        defaults: sequence_length, global_batch, learning_rate and warmup of the phase, as in a recipe.
        train_rows, dev_rows: rows of an epoch.
        epochs: over the train rows.
        overrides: settings of the recipe, as `section.key=value`.
        world_size: ranks.

    Raises:
        UserError: a setting is not what it should be, or is a size other than the checkpoint's.
    """
    if not 0 < epochs < math.inf:
        raise UserError(f"--epochs {epochs:g}: expected more than 0")
    phase = defaults | {"sequence_length": min(defaults["sequence_length"], model.max_position_embeddings)}
    table = {
        "model": dataclasses.asdict(model),
        "objective": {"pair": "none"},  # a pre-training's: nothing reads it
        # Google's run_classifier.py and run_squad.py, but with bias correction, which small data sets need.
        "optimizer": {"name": "adamw", "bias_correction": True},
        "phase": [phase],
        "execution": {"evaluate_rows": dev_rows},
    }
    batch = recipe_from_table(table, overrides).phase[0].global_batch
    an_epoch = math.ceil(train_rows / batch)
    phase["steps"] = math.ceil(epochs * train_rows / batch)
    table["execution"] |= {
        "micro_batch": min(defaults["global_batch"], math.ceil(batch / world_size)),
        "evaluate_steps": an_epoch,
        "checkpoint_steps": an_epoch,
    }
    recipe = recipe_from_table(table, overrides)
    _refuse_other_sizes(directory, model, recipe.model)
    return recipe


def _refuse_other_sizes(directory: Path, theirs: Model, ours: Model) -> None:
    for field in dataclasses.fields(Model):
        before, after = getattr(theirs, field.name), getattr(ours, field.name)
        if before != after and field.name not in _MAY_DIFFER:
            raise UserError(
                f"--set model.{field.name}={after}: the checkpoint {directory} has {before!r}; only "
                f"{', '.join(_MAY_DIFFER)} may differ from it"
            )
