"""The mean of a run's last checkpoints, parameter by parameter, as a Hugging Face directory."""

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_horovod.errors import ReportedError, UserError
from bert_horovod.interchange.huggingface import HuggingFace, write_directory
from bert_horovod.runs.checkpoint import is_removed, paths, recorded_length, step_of, whole_checkpoints
from bert_horovod.runs.model_card import CARD, model_card
from bert_horovod.runs.opening import RUN, OpenCheckpoint
from bert_horovod.runs.resuming import recorded_recipe
from bert_horovod.storage.writing import new_directory


class Averaged(NamedTuple):
    """What was averaged."""

    steps: list[int]  # of the checkpoints, ascending
    class_name: str  # Hugging Face's
    length: int | None  # of the rows that the newest was trained on
    left_out: list[int]  # steps of damaged checkpoints that are newer than the oldest of these


def average_checkpoints(run: OpenCheckpoint, last: int, directory: Path) -> Averaged:
    """Write the mean of a run's last undamaged checkpoints to a new or empty directory; sums are in float64.

    Raises ReportedError if the run has fewer, or if they are not of one model: nothing is left of the directory then.
    """
    output_dir = run.given
    if run.kind is not RUN:
        raise UserError(f"RUN {output_dir} is one checkpoint; expected the output_dir of a run, which has several")
    while True:
        there = paths(output_dir)
        newest_first = list(itertools.islice(whole_checkpoints(output_dir), last))
        steps = [step_of(path.name) or 0 for path in reversed(newest_first)]
        if len(steps) < last:
            raise UserError(
                f"--last {last}: {output_dir} has {len(steps)} undamaged checkpoint(s), of step "
                f"{', '.join(map(str, steps))}; expected at most as many. A run keeps as many as "
                "execution.keep_checkpoints says, execution.checkpoint_steps apart"
            )
        left_out = [step for path in there if path.exists() and (step := step_of(path.name) or 0) > steps[0]]
        left_out = [step for step in left_out if step not in steps]
        try:
            return _write(output_dir, newest_first[::-1], steps, directory, left_out)
        except (OSError, ReportedError):
            if not any(map(is_removed, newest_first)):  # by the run, which goes on
                raise


def _write(
    output_dir: Path, checkpoints: list[Path], steps: list[int], directory: Path, left_out: list[int]
) -> Averaged:
    newest, recipe = HuggingFace(checkpoints[-1]).contents(), recorded_recipe(checkpoints[-1])
    if recipe is None:
        raise UserError(f"{checkpoints[-1]}: its recipe is of another version of this program")
    for path in checkpoints[:-1]:
        other = HuggingFace(path).contents()
        if other.model != newest.model or other.shapes != newest.shapes:
            raise UserError(
                f"--last {len(checkpoints)}: {path.name} is of another model than {checkpoints[-1].name} "
                f"({other.model.num_hidden_layers} and {newest.model.num_hidden_layers} layers), so that they have no "
                "mean; expected fewer, of one phase"
            )
    architecture, sums = newest.architectures[0], {}
    for path in checkpoints:
        pretrained = HuggingFace(path).read(architecture)
        if path is checkpoints[0]:
            tokenizer = pretrained.vocabulary, pretrained.tokenizer_settings
        if (pretrained.vocabulary, pretrained.tokenizer_settings) != tokenizer:
            raise UserError(
                f"--last {len(checkpoints)}: {path.name} has another vocabulary or tokenizer than the oldest, "
                "so that their embeddings have no mean; expected fewer, of one vocabulary"
            )
        for name in architecture.parameters(newest.model):
            sums[name] = sums.get(name, 0.0) + pretrained.parameters[name].astype(np.float64)
    means = {name: (total / len(checkpoints)).astype(np.float32) for name, total in sums.items()}
    class_name = architecture.class_name(newest.model)
    with new_directory(directory) as temporary:
        vocabulary = pretrained.vocabulary or []  # a run's checkpoint has one
        tokenizer = vocabulary, pretrained.tokenizer_settings, HuggingFace(checkpoints[-1]).max_length
        write_directory(temporary, newest.model, architecture, means, *tokenizer)
        numbers = sum(mean.size for mean in means.values())
        card = model_card(
            output_dir, steps[-1], recipe, numbers, architecture.configuration(newest.model), None, mean_of=steps
        )
        (temporary / CARD).write_text(card, encoding="utf-8", newline="\n")
    return Averaged(steps, class_name, recorded_length(checkpoints[-1]), left_out)
