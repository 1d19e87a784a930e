"""Several runs of one fine-tuning, by seed and learning rate: one after another, each in a directory of its own.

A finished run is not trained again, so that the same command goes on after it was stopped.
"""

import gc
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.collectives.world import World, from_rank_0
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.finetuning.kinds.kinds import KINDS
from bert_horovod.runs.checkpoint import best_record, path_of
from bert_horovod.runs.metrics_lines import read_log
from bert_horovod.training.job import Job
from bert_horovod.training.loop import train

_MOST_RUNS = 1000  # each has a directory, and a job that is made and checked before the first one is trained


class Variant(NamedTuple):
    """The settings by which a run differs from the other runs."""

    seed: int | None  # None: the recipe's
    learning_rate: float | None

    @property
    def name(self) -> str:
        """The name of the run's directory."""
        rate = "" if self.learning_rate is None else f"rate-{_short(self.learning_rate)}"
        seed = "" if self.seed is None else f"seed-{self.seed}"
        return "-".join(filter(None, (rate, seed)))

    @property
    def overrides(self) -> list[str]:
        """The run's settings, as `section.key=value`."""
        settings = [] if self.seed is None else [f"data.seed={self.seed}"]
        return settings + ([] if self.learning_rate is None else [f"phase.0.learning_rate={self.learning_rate!r}"])


def variants(seeds: str | None, learning_rates: str | None) -> list[Variant]:
    """All pairs of seeds (how many, from 0 on, or several) and learning rates, with commas between; else empty.

    Raises UserError if they are not such numbers, or one is given twice.
    """
    if seeds is None and learning_rates is None:
        return []
    chosen: Sequence[int | None] = [None]
    if seeds is not None:
        numbers = _numbers(seeds, int, "--seeds", "a number of seeds, or seeds with commas between")
        if "," not in seeds and numbers[0] > _MOST_RUNS:
            raise UserError(
                f"--seeds {seeds}: a single number is how many runs there are, with the seeds from 0 on; expected at "
                f"most {_MOST_RUNS:,}; the run of that one seed is --set data.seed={seeds}"
            )
        chosen = range(numbers[0]) if "," not in seeds else numbers
        if min(chosen, default=-1) < 0 or len(set(chosen)) < len(chosen):
            raise UserError(f"--seeds {seeds}: expected at least one, each 0 or more, and none twice")
    rates: Sequence[float | None] = [None]
    if learning_rates is not None:
        rates = _numbers(learning_rates, float, "--learning_rates", "numbers with commas between, as in 2e-5,3e-5")
        if len(set(rates)) < len(rates):
            raise UserError(f"--learning_rates {learning_rates}: expected none twice")
    if (runs := len(chosen) * len(rates)) > _MOST_RUNS:
        raise UserError(
            f"--seeds and --learning_rates make {runs:,} runs; expected at most {_MOST_RUNS:,}: give fewer of them, "
            "with an --output_dir for each part"
        )
    return [Variant(seed, rate) for rate in rates for seed in chosen]


class Finished(NamedTuple):
    """A finished run."""

    variant: Variant
    output_dir: Path
    scores: dict[str, float]


def train_all(
    jobs: Sequence[Job], made_of: Sequence[Variant], world: World, say: Callable[[str], None]
) -> list[Finished] | None:
    """Train the unfinished jobs on all ranks; returns all runs with their scores, None if one was asked to stop."""
    done: list[Finished] = []
    for number, (job, variant) in enumerate(zip(jobs, made_of, strict=True)):
        if world.rank == 0:
            say(f"run {number + 1} of {len(jobs)}: {job.output_dir.name}")
        scores = _scores(job, world)
        if scores is not None:
            if world.rank == 0:
                say("it is finished already")
        else:
            train(job, world)
            gc.collect()  # graphs hold parameters and optimizer slots in reference cycles
            scores = _scores(job, world, ended=True)
            if scores is None:
                return None
        done.append(Finished(variant, job.output_dir, scores))
    return done


def sweep_summary(task: str, runs: Sequence[Finished]) -> dict[str, Any]:
    """The content of scores.json: every run, mean and spread by learning rate, and the best run by the first score.

    None is the best by uniformity, which tells nothing of how well texts are found.
    """
    decides = next((name for name in runs[0].scores if name != "uniformity"), None)
    rates = list(dict.fromkeys(run.variant.learning_rate for run in runs))
    best = max(runs, key=lambda run: run.scores[decides]) if decides else None
    return {
        "task": task,
        "decides": decides,
        "runs": [_entry(run) for run in runs],
        "by_learning_rate": [
            {"learning_rate": rate, **_spread([run.scores for run in runs if run.variant.learning_rate == rate])}
            for rate in rates
        ],
        "best": best and _entry(best),
    }


def sweep_cells(summary: dict[str, Any]) -> list[list[str]]:
    """The summary as the cells of a table."""
    names = list(summary["runs"][0]["scores"])
    lines = [["run", *(name.replace("_", " ") for name in names)]]
    lines += [
        [Path(run["output_dir"]).name, *(f"{run['scores'][name]:.4f}" for name in names)] for run in summary["runs"]
    ]
    for group in summary["by_learning_rate"]:
        rate = "" if group["learning_rate"] is None else f", rate {_short(group['learning_rate'])}"
        head = f"mean of {group['runs']}{rate}"
        lines.append(
            [head, *(f"{group['mean'][name]:.4f} +- {group['standard_deviation'][name]:.4f}" for name in names)]
        )
    return lines


def _entry(run: Finished) -> dict[str, Any]:
    return {**run.variant._asdict(), "output_dir": str(run.output_dir), "scores": run.scores}


def _spread(scores: list[dict[str, float]]) -> dict[str, Any]:
    columns = {name: [run_scores[name] for run_scores in scores] for name in scores[0]}
    return {
        "runs": len(scores),
        "mean": {name: statistics.fmean(column) for name, column in columns.items()},
        "standard_deviation": {
            name: statistics.stdev(column) if len(column) > 1 else 0.0 for name, column in columns.items()
        },
    }


def _scores(job: Job, world: World, ended: bool = False) -> dict[str, float] | None:
    """The dev scores of the run's last step, on every rank; None if the run has not ended.

    `ended`: whether it has ended if that step is there; else its last file is looked for too, which not each kind of
    dev set has: a run without one is entered again, and trains no step.
    """
    return from_rank_0(_last_scores(job, ended) if world.rank == 0 else None, world, "scores")


def _last_scores(job: Job, ended: bool) -> dict[str, float] | None:
    last = min(job.recipe.total_steps, job.max_steps or job.recipe.total_steps)
    if (best := best_record(job.output_dir)) and best.ended:
        last = best.last_step
    path = job.output_dir / "metrics.jsonl"
    written = ended or any((job.output_dir / kind.last_file).is_file() for kind in KINDS)
    if not path_of(job.output_dir, last).is_dir() or not written:
        return None
    prefix, scores = "held_out_", None
    if not path.exists():
        raise DamagedData(
            f"{path} is missing, which held the scores of a run that is at its end; restore it, or remove "
            f"{job.output_dir} to train that run again"
        )
    for line in read_log(path).events:
        if line["step"] == last and any(name.startswith(prefix) for name in line):
            scores = {name.removeprefix(prefix): score for name, score in line.items() if name.startswith(prefix)}
    return scores


def _short(rate: float) -> str:
    """A rate with six digits, or with as many as tell it from every other rate."""
    return f"{rate:g}" if float(f"{rate:g}") == rate else repr(rate)


def _numbers(text: str, kind: Callable[[str], Any], flag: str, expected: str) -> list[Any]:
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError as error:
        raise UserError(f"{flag} {text}: expected {expected}") from error
