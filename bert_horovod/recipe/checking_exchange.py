"""Exchanges that do not fit the rest of a recipe: a function for each method that asks for more than its settings."""

from collections.abc import Callable

from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import ExchangeMethod, Recipe


def check_exchange(recipe: Recipe) -> None:
    """Raise UserError where the exchange's settings cannot work, alone or with the rest of the recipe."""
    exchange, defaults = recipe.exchange, ExchangeMethod()
    for setting, methods in _METHODS_OF.items():
        value, default = getattr(exchange, setting), getattr(defaults, setting)
        if value != default and exchange.method not in methods:
            raise UserError(
                f"exchange.{setting} = {value}: exchange.method = {exchange.method!r} has no such setting; expected "
                f"{default}, which is its default, or exchange.method = {' or '.join(methods)}"
            )
    if exchange.method in _CHECKS:
        _CHECKS[exchange.method](recipe)


def _check_parameters(recipe: Recipe) -> None:
    _check_wire(recipe)
    _check_steps_where_ranks_agree(recipe)


def _check_mt_dao(recipe: Recipe) -> None:
    if recipe.optimizer.name != "adamw":
        raise UserError(
            f"optimizer.name = {recipe.optimizer.name!r}: exchange.method = 'mt_dao' has an update rule of its own, "
            "which takes beta_2, epsilon, weight_decay and max_grad_norm of adamw; expected adamw"
        )
    _check_wire(recipe)
    _check_steps_where_ranks_agree(recipe)


def _check_dreamddp(recipe: Recipe) -> None:
    exchange = recipe.exchange
    if exchange.full_interval % exchange.interval:
        raise UserError(
            f"exchange.full_interval = {exchange.full_interval}: every parameter is averaged once in exchange.interval "
            f"= {exchange.interval} steps; expected a multiple of it"
        )
    _check_wire(recipe)
    _check_steps_where_ranks_agree(recipe)


def _check_wire(recipe: Recipe) -> None:
    if recipe.numerics.wire != "float32":
        raise UserError(
            f"numerics.wire = {recipe.numerics.wire!r}: exchange.method = {recipe.exchange.method!r} sends parameters, "
            "whose small changes float16 would round away; expected float32"
        )


def _check_steps_where_ranks_agree(recipe: Recipe) -> None:
    """Elsewhere ranks differ: what is saved, evaluated or compared there would be one rank's own."""
    exchange, agreement = recipe.exchange, recipe.exchange.agreement
    made_of = [name for name, methods in _INTERVALS.items() if exchange.method in methods]
    made_of = " and ".join(f"exchange.{name} = {getattr(exchange, name)}" for name in made_of)
    steps = {f"phase.{i}.steps": phase.steps for i, phase in enumerate(recipe.phase)}
    steps |= {
        f"execution.{name}": getattr(recipe.execution, name)
        for name in ("checkpoint_steps", "evaluate_steps", "consistency_steps")
    }
    for name, value in steps.items():
        if value % agreement:
            raise UserError(
                f"{name} = {value}: ranks are equal only every {agreement} steps ({made_of}); expected a multiple of it"
            )


# By setting: the intervals that decide after which steps ranks are equal, and the methods that have it.
_INTERVALS = {
    "interval": ("parameters", "mt_dao"),
    "momentum_interval": ("mt_dao",),
    "second_moment_interval": ("mt_dao",),
    "full_interval": ("dreamddp",),
}
# By setting: the methods that have it.
_METHODS_OF = _INTERVALS | {
    "interval": ("parameters", "mt_dao", "dreamddp"),
    "dense": ("largest_chunks",),
    "fraction": ("largest_chunks",),
    "chunk": ("largest_chunks",),
    "slow_beta": ("mt_dao",),
    "slow_weight": ("mt_dao",),
}
_CHECKS: dict[str, Callable[[Recipe], None]] = {
    "parameters": _check_parameters,
    "mt_dao": _check_mt_dao,
    "dreamddp": _check_dreamddp,
}
