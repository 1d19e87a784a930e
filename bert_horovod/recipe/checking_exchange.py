"""Exchanges that do not fit the rest of a recipe: a function for each method."""

from collections.abc import Callable

from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import REDUCTIONS, Recipe


def check_exchange(recipe: Recipe) -> None:
    """Raise UserError where the exchange's settings cannot work, alone or with the rest of the recipe."""
    _CHECKS[recipe.exchange.method](recipe)


def _check_gradients(recipe: Recipe) -> None:
    interval = recipe.exchange.interval
    if interval != 1:
        raise UserError(
            f"exchange.interval = {interval}: gradients are exchanged every step; expected 1, or "
            "exchange.method = parameters"
        )
    wire, reduction = recipe.numerics.wire, recipe.execution.reduction
    if reduction not in ("auto", *REDUCTIONS[wire]):
        raise UserError(
            f"execution.reduction = {reduction!r}: numerics.wire = {wire!r} goes by {REDUCTIONS[wire][0]} alone; "
            "expected auto"
        )


def _check_parameters(recipe: Recipe) -> None:
    method = recipe.exchange.method
    if recipe.optimizer.name != "sgd":
        raise UserError(
            f"optimizer.name = {recipe.optimizer.name!r}: exchange.method = {method!r} averages parameters alone, "
            "not what an optimizer remembers; expected sgd"
        )
    if recipe.numerics.wire != "float32":
        raise UserError(
            f"numerics.wire = {recipe.numerics.wire!r}: exchange.method = {method!r} sends parameters, whose small "
            "changes a narrow one would round away; expected float32"
        )
    _check_steps_where_ranks_agree(recipe)


def _check_steps_where_ranks_agree(recipe: Recipe) -> None:
    """Elsewhere ranks differ: what is saved, evaluated or compared there would be one rank's own."""
    interval = recipe.exchange.interval
    steps = {f"phase.{i}.steps": phase.steps for i, phase in enumerate(recipe.phase)}
    steps |= {
        f"execution.{name}": getattr(recipe.execution, name)
        for name in ("checkpoint_steps", "evaluate_steps", "consistency_steps")
    }
    for name, value in steps.items():
        if value % interval:
            raise UserError(
                f"{name} = {value}: ranks are equal only every exchange.interval = {interval} steps; expected a "
                "multiple of it"
            )


_CHECKS: dict[str, Callable[[Recipe], None]] = {
    "gradients": _check_gradients,
    "parameters": _check_parameters,
}
