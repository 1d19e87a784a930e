"""Prints the derived numbers and the warnings of a run before its first step."""

import sys

from bert_horovod.collectives.world import World
from bert_horovod.costs import advice
from bert_horovod.costs.derived import describe
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runtime.devices import has_gpu
from bert_horovod.tasks.base import Task
from bert_horovod.training.peak import describe_peak, find_peak, precision_advice
from bert_horovod.training.step import compute_policy


def print_start(recipe: Recipe, task: Task, world: World) -> float | None:
    """Print the derived numbers and warnings; returns all ranks' peak FLOP/s of matrix products (None: unknown)."""
    precision = recipe.numerics.precision
    for warning in (precision_advice(precision), advice.for_one_rank(recipe, world.size)):
        if warning:
            print(f"bert-horovod: warning: {warning}", file=sys.stderr, flush=True)
    if world.size > 2 and (recipe.execution.fusion_bytes or recipe.execution.autotune):
        print(
            "bert-horovod: warning: Horovod fuses tensors as they come (execution.fusion_bytes or autotune): sums "
            "depend on timing, and a resumed run equals one that was not stopped to rounding only",
            file=sys.stderr,
            flush=True,
        )
    peak = find_peak(precision, recipe.model)
    print(
        f"world: {world.size} rank(s); XLA {compute_policy(recipe).xla}\n"
        f"{describe(recipe, world.size, has_gpu(), task.parameters)}\n"
        f"{describe_peak(peak, precision)}"
    )
    return peak.flops_per_s * world.size if peak.flops_per_s else None
