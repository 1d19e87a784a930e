"""The ways to sum over ranks that a recipe allows."""

from bert_horovod.recipe.sections import REDUCTIONS, Recipe


def reductions(recipe: Recipe) -> tuple[str, ...]:
    """The ways to sum over ranks that the recipe allows: a measurement chooses one; without measurement, the first."""
    settings = recipe.execution
    if settings.reduction != "auto":
        return (settings.reduction,)
    possible = REDUCTIONS[recipe.numerics.wire]
    return possible if settings.bucket_bytes == "auto" else possible[:1]


def sums_by_host(recipe: Recipe) -> bool:
    """Whether ranks of one host sum among themselves first: yes if the numbers that leave the host are encoded."""
    return recipe.exchange.sums_by_host(reductions(recipe))


def may_sum_in_two_steps(recipe: Recipe) -> bool:
    """Whether exchange/two_step.py may sum: it encodes, or a measurement may prefer it to the ring."""
    return recipe.exchange.may_sum_in_two_steps(reductions(recipe))
