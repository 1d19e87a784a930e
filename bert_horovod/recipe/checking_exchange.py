"""Exchanges that do not fit the rest of a recipe: a function for each method."""

from collections.abc import Callable

from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import Recipe


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
            "changes float16 would round away; expected float32"
        )
    _check_steps_where_ranks_agree(recipe)


def _check_onebit_adam(recipe: Recipe) -> None:
    _check_optimizer(recipe, "adamw")
    _check_staged(recipe)
    _check_gradients(recipe)


def _check_onebit_lamb(recipe: Recipe) -> None:
    exchange = recipe.exchange
    _check_optimizer(recipe, "lamb")
    _check_staged(recipe)
    _check_gradients(recipe)
    if exchange.smallest_ratio > exchange.largest_ratio:
        raise UserError(
            f"exchange.smallest_ratio = {exchange.smallest_ratio:g}: expected at most exchange.largest_ratio = "
            f"{exchange.largest_ratio:g}"
        )


def _check_zero_one_adam(recipe: Recipe) -> None:
    interval = recipe.exchange.interval
    _check_optimizer(recipe, "adamw")
    _check_staged(recipe)
    if not recipe.optimizer.bias_correction:
        raise UserError(
            "optimizer.bias_correction = false: exchange.method = 'zero_one_adam' updates the second moment rarely, "
            "so that without correction it would be far too small; expected true"
        )
    if interval & (interval - 1):
        raise UserError(
            f"exchange.interval = {interval}: exchange.method = 'zero_one_adam' doubles its interval up to this one; "
            "expected a power of two"
        )
    _check_steps_where_ranks_agree(recipe)


def _check_optimizer(recipe: Recipe, name: str) -> None:
    if recipe.optimizer.name != name:
        raise UserError(
            f"optimizer.name = {recipe.optimizer.name!r}: exchange.method = {recipe.exchange.method!r} is made for "
            f"{name}; expected {name}"
        )


def _check_staged(recipe: Recipe) -> None:
    method, dense, wire = recipe.exchange.method, recipe.exchange.dense, recipe.numerics.wire
    if wire not in ("float32", "float16"):
        raise UserError(
            f"numerics.wire = {wire!r}: the dense gradients of exchange.method = {method!r} decide the second moment; "
            "expected float32 or float16"
        )
    for i, phase in enumerate(recipe.phase):
        if dense != "auto" and dense < phase.warmup:
            raise UserError(
                f"exchange.dense = {dense:g}: the second moment cannot be frozen before the learning rate has settled; "
                f"expected at least phase.{i}.warmup = {phase.warmup:g}, or 'auto'"
            )


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
    "onebit_adam": _check_onebit_adam,
    "onebit_lamb": _check_onebit_lamb,
    "zero_one_adam": _check_zero_one_adam,
}
