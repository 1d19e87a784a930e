"""Which share of a store's work a call with --part makes."""

import heapq
import re
from collections.abc import Mapping
from dataclasses import dataclass

from bert_horovod.corpus.preparing.planning import Plan
from bert_horovod.errors import UserError

_MOST_SHARES = 10_000
_HASHED_BYTES = 64  # are read to hash a file in the time in which one byte becomes tokens


@dataclass(frozen=True)
class Share:
    """Share `number`, from 1, of `of`."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def find_share(given: str, environment: Mapping[str, str]) -> Share:
    """What --part names: "3/16"; "" in a SLURM array, "/16" in an Indexed Job of Kubernetes, whose variables tell 3.

    Says what the variables told. Raises UserError for anything else.
    """
    expected = (
        "expected K/N, part K of N; --part alone in a SLURM array; --part /N in an Indexed Job of Kubernetes with N "
        "completions"
    )
    number: int | None
    if given == "":
        names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "MAX", "STEP", "COUNT")]
        if "SLURM_ARRAY_TASK_ID" not in environment:
            raise UserError(f"--part without a value, and SLURM_ARRAY_TASK_ID is not set; {expected}")
        try:
            task, first, last, step, count = (int(environment[name]) for name in names)
        except (KeyError, ValueError) as error:
            raise UserError(f"--part: the variables of a SLURM array are not as SLURM sets them ({error})") from error
        if step < 1 or (last - first) // step + 1 != count:
            raise UserError(f"--part: {count} tasks of a SLURM array from {first} to {last} have gaps; {expected}")
        number, of, source = (task - first) // step + 1, count, f"SLURM_ARRAY_TASK_ID={task}, {count} tasks"
    elif match := re.fullmatch(r"(\d{1,9})?/(\d{1,9})", given):
        number, of, source = int(match[1]) if match[1] else None, int(match[2]), ""
        if number is None:
            index = environment.get("JOB_COMPLETION_INDEX", "")
            if not index.isdecimal():
                raise UserError(f"--part {given}, and JOB_COMPLETION_INDEX is not set; {expected}")
            number, source = int(index) + 1, f"JOB_COMPLETION_INDEX={index}"
    else:
        raise UserError(f"--part {given}: {expected}")
    if not 1 <= number <= of <= _MOST_SHARES:
        raise UserError(f"--part: part {number} of {of}; expected 1 to N of at most {_MOST_SHARES:,}")
    if source:
        print(f"--part {number}/{of} ({source})", flush=True)
    return Share(number, of)


def share_plan(plan: Plan, of: int) -> list[Plan]:
    """The shares of a plan, about equal in work: whole runs of tasks and files to hash, the largest dealt out first."""
    runs = len(plan.runs)
    costs = [sum(task.text_bytes for task in run) for run in plan.runs]
    costs += [source.bytes // _HASHED_BYTES for source in plan.to_hash]
    loads = [(0, number) for number in range(of)]
    dealt: list[list[int]] = [[] for _ in range(of)]
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        load, number = loads[0]
        heapq.heapreplace(loads, (load + max(1, costs[item]), number))
        dealt[number].append(item)
    return [
        Plan(
            [plan.runs[item] for item in sorted(items) if item < runs],
            plan.together,
            [plan.to_hash[item - runs] for item in sorted(items) if item >= runs],
        )
        for items in dealt
    ]
