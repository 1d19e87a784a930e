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
    warnings = [
        precision_advice(precision),
        advice.for_one_rank(recipe, world.size),
    ]
    for warning in filter(None, warnings):
        print(f"bert-horovod: warning: {warning}", file=sys.stderr, flush=True)
    peak = find_peak(precision, recipe.model)
    policy = compute_policy(recipe)
    kernels = policy.kernels == "triton"
    print(
        f"world: {world.size} rank(s); XLA {policy.xla}{', Triton kernels' if kernels else ''}\n"
        f"{describe(recipe, world.size, has_gpu(), task.parameters, kernels)}\n"
        f"{describe_peak(peak, precision)}"
    )
    return peak.flops_per_s * world.size if peak.flops_per_s else None
