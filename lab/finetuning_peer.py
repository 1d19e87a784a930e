"""transformers fine-tunes what ours fine-tunes: the same first parameters, token ids and settings, in a process.

lab/finetuning_gain.py says what for.
"""

import contextlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.batches.positions import step_positions
from bert_horovod.collectives.world import World
from bert_horovod.errors import RunError
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.interchange.huggingface import write_directory
from bert_horovod.optimizers.schedule import learning_rate
from bert_horovod.training.job import Job
from bert_horovod.training.loop import train
from bert_horovod.training.opening_state import first_state
from lab.finetuning_pace import EXAMPLES, PEER, padded
from lab.kept import read_lines

NO_DROPOUT = ("model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0")
FIRST = 20  # steps whose losses are compared


def first_losses(
    finetuning: Finetuning, work: Path, python: str = sys.executable, overrides: tuple[str, ...] = ()
) -> list[tuple[float, float]]:
    """The losses of the first steps of a fine-tuning without dropout, ours and transformers', on the same examples.

    `work`: an empty directory; `python`: one that has transformers. Raises RunError if transformers failed.
    """
    output_dir = work / "ours"
    output_dir.mkdir()
    job = finetuning.job(output_dir, overrides=[*overrides, *NO_DROPOUT, "execution.log_steps=1"], max_steps=FIRST)
    theirs = _run(python, _start(job, finetuning, work) | {"splits": []}, _steps(job, FIRST))
    with contextlib.redirect_stdout(sys.stderr):
        train(job, World())
    ours = [line["loss"] for line in read_lines(output_dir / "metrics.jsonl") if "loss" in line]
    return list(zip(ours, theirs, strict=True))


def fine_tune(
    finetuning: Finetuning,
    output_dir: Path,
    python: str,
    seeds: int,
    epochs: float,
    overrides: tuple[str, ...],
    max_steps: int | None = None,
) -> dict[str, Any]:
    """Fine-tune with transformers, and score as ours is scored; a seed that is finished is not done again.

    A step has the examples that a step of ours has with that seed; dropout and learning rate are as `overrides` say;
    the schedule does not notice `max_steps`. Returns {"runs": [...]}: seed and scores of each. Raises RunError if
    transformers failed.
    """
    runs = []
    for seed in range(seeds):
        directory = output_dir / f"seed-{seed}"
        finished = directory / "scores.json"
        if not finished.is_file():
            print(f"seed {seed}", file=sys.stderr, flush=True)
            directory.mkdir(parents=True, exist_ok=True)
            job = finetuning.job(directory, epochs, [*overrides, f"data.seed={seed}"])
            logits = directory / "logits.npz"
            splits = [split for split in job.dataset.splits if split != "train"]
            shape = _start(job, finetuning, directory) | {"seed": seed, "splits": splits, "logits": str(logits)}
            _run(python, shape, _steps(job, max_steps or job.recipe.phase[0].steps))
            record = {"seed": seed, "scores": _scores(job, finetuning, dict(np.load(logits)))}
            finished.write_text(json.dumps(record) + "\n", encoding="utf-8")
            shutil.rmtree(directory / "checkpoint")
            (directory / "tokens.npz").unlink()
        runs.append(json.loads(finished.read_text(encoding="utf-8")))
    return {"runs": runs}


def _scores(job: Job, finetuning: Finetuning, logits_of: dict[str, np.ndarray]) -> dict[str, float]:
    """The dev scores of logits of all examples of the dev splits, in the examples' order."""
    kind, scores = finetuning.kind, {}
    for (split, logits), (suffix, dev) in zip(logits_of.items(), kind.data.dev.items(), strict=True):
        source = _unpacked(job).open(0, split)
        in_rows = logits[source.members(np.arange(source.count))[:, 0]]
        in_rows = in_rows if in_rows.ndim > 2 else in_rows[:, None]  # a text's are of its row's one example
        answers = kind.answers(job.task, source, {"logits": in_rows}, dev)
        scores |= {f"{name}{suffix}": value for name, value in kind.scores(job.task, answers, dev).items()}
    return scores


def _unpacked(job: Job) -> Any:
    """The job's dataset with rows of one example each."""
    recipe = job.recipe
    return replace(job.dataset, recipe=replace(recipe, data=replace(recipe.data, packing=False)))


def _start(job: Job, finetuning: Finetuning, directory: Path) -> dict[str, Any]:
    """Write a job's first parameters, with its head, and the token ids of its examples; what the peer is asked."""
    recipe = job.recipe
    state, _ = first_state(job, World())
    parameters = {name: variable.numpy() for name, variable in state.parameters.items()}
    checkpoint, tokens = directory / "checkpoint", directory / "tokens.npz"
    write_directory(
        checkpoint, recipe.model, job.task, parameters, finetuning.vocabulary, finetuning.tokenizer_settings
    )
    unpacked = _unpacked(job)
    arrays = {split: padded(unpacked.open(0, split)) for split in job.dataset.splits}
    np.savez(tokens, **{f"{split}_{name}": values for split in arrays for name, values in arrays[split].items()})
    return {
        "checkpoint": str(checkpoint),
        "tokens": str(tokens),
        "labels": job.task.configuration(recipe.model)["num_labels"],
        "examples": EXAMPLES,
        "threads": 1,
        "precision": recipe.numerics.precision,
        "compiled": False,
    }


def _steps(job: Job, count: int) -> dict[str, list]:
    """The learning rate and the numbers of the examples of each of a job's first steps."""
    recipe, phase, source = job.recipe, job.recipe.phase[0], job.dataset.open(0, "train")
    batches = []
    for number in range(count):
        taken = step_positions(number, phase.global_batch, 0, 1, recipe.execution.micro_batch)
        examples = source.members(np.concatenate([positions for positions, _ in taken]))
        batches.append(examples[examples >= 0].tolist())
    rates = [learning_rate(phase, step) for step in range(1, count + 1)]
    return {"rates": rates, "batches": batches}


def _run(python: str, shape: dict[str, Any], steps: dict[str, list]) -> list[float]:
    """Let transformers train; the losses of its steps."""
    path = Path(shape["tokens"]).with_name("steps.json")
    path.write_text(json.dumps(steps), encoding="utf-8")
    words = [python, str(PEER), json.dumps(shape | {"steps": str(path)})]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RunError(f"transformers ended with {done.returncode}")
    return json.loads(done.stdout)
