"""Prints the derived numbers and the warnings of a run before its first step."""

import sys

from bert_horovod.collectives.world import World
from bert_horovod.costs import choices
from bert_horovod.costs.derived import describe
from bert_horovod.model.gpu_kernels.choice import capability
from bert_horovod.recipe.sections import Recipe
from bert_horovod.tasks.base import Task
from bert_horovod.training.peak import describe_peak, find_peak, precision_advice
from bert_horovod.training.step import compute_policy


def print_start(recipe: Recipe, task: Task, world: World) -> float | None:
    """Print the derived numbers and warnings; returns all ranks' peak FLOP/s of matrix products (None: unknown)."""
    precision = recipe.numerics.precision
    warnings = [
        precision_advice(precision),
        choices.for_one_rank(recipe, world.size),
    ]
    for warning in filter(None, warnings):
        print(f"bert-horovod: warning: {warning}", file=sys.stderr, flush=True)
    for note in recipe.notes:
        print(f"bert-horovod: note: {note}", flush=True)
    peak = find_peak(precision, recipe.model)
    policy = compute_policy(recipe)
    kernels = ", Triton kernels" if policy.kernels == "triton" else ""
    print(
        f"world: {world.size} rank(s); XLA {policy.xla}{kernels}\n"
        f"{describe(recipe, world.size, capability(), task.parameters)}\n"
        f"{describe_peak(peak, precision)}"
    )
    return peak.flops_per_s * world.size if peak.flops_per_s else None
