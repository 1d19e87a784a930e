"""All-reduces and scaling over this host's GPUs: the ranks section of lab/gpu.py. Needs Horovod."""

import os
import sys
from pathlib import Path
from typing import Any

from bert_horovod.cluster.doctor.facts import gpus, horovod_with
from bert_horovod.costs.choices import doubling
from bert_horovod.errors import RunError
from bert_horovod.measuring.weak_scaling import Layout, measure, results, run_layout
from lab.gpu_work import PROJECT, settings, work_recipe

KEPT = ("step_s", "exposed_s", "exposed_held_back_s", "hidden_share", "wire_bytes", "link", "reduction", "bucket_bytes")


def scaling(work: dict[str, Any]) -> dict[str, Any]:
    """The step on 1, 2, 4, ... and all of `ranks` ranks, each with the same rows, and the all-reduces that were timed.

    `ranks`: as many as GPUs; on a host without a GPU they compute on the CPU, and Gloo adds.
    """
    ranks, built = work["ranks"], horovod_with()
    if ranks < 2:
        return {"absent": "one GPU: there is nothing to add up between ranks"}
    if not built:
        return {"absent": f"{sys.executable} has no Horovod, which several ranks need: run/setup.sh builds it"}
    if gpus()["names"] and "NCCL" not in built:
        return {"absent": "Horovod was built without NCCL, and would add gradients on the CPU: GPU=yes run/setup.sh"}
    here = str(Path(sys.executable).parent)  # of horovodrun, where the environment is not activated
    os.environ["PATH"] = os.pathsep.join([here, os.environ.get("PATH", os.defpath)])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    words = ["--model", work["size"], "--rows", str(work["rows"]), "--length", str(work["length"])]
    words += ["--steps", str(work["steps"])]
    problems: list[str] = []

    def run(layout: Layout) -> dict[str, Any]:
        changed = settings(work | {"rows": work["rows"] * layout.ranks})
        return run_layout(layout, {"localhost": ranks}, [], [*words, *(f"--set={each}" for each in changed)])

    def tell(_: int, layout: Layout, outcome: dict[str, Any] | RunError) -> None:
        if isinstance(outcome, RunError):
            problems.append(f"{layout}: {outcome}")

    measured = list(measure([Layout(1, count) for count in doubling(ranks)], 1, run, tell))
    if not measured:
        raise RunError("; ".join(problems))
    table = results(measured, work_recipe(work), 1, None, "")
    for line, each in zip(table["lines"], measured, strict=True):
        line |= {name: each.rounds[-1][name] for name in KEPT if name in each.rounds[-1]}
    return {"horovod_with": built, "lines": table["lines"], "problems": problems}
