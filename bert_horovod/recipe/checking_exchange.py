"""Checks that [exchange] fits the rest of a recipe; methods with further conditions have a function each."""

from collections.abc import Callable

from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import REDUCTIONS, ExchangeMethod, Recipe


def check_exchange(recipe: Recipe) -> None:
    """Raise UserError if the exchange's settings cannot work, alone or with the rest of the recipe."""
    exchange, defaults = recipe.exchange, ExchangeMethod()
    for setting, methods in _METHODS_OF.items():
        value, default = getattr(exchange, setting), getattr(defaults, setting)
        if value != default and exchange.method not in methods:
            raise UserError(
                f"exchange.{setting} = {value}: exchange.method = {exchange.method!r} has no such setting; expected "
                f"{default}, which is its default, or exchange.method = {' or '.join(methods)}"
            )
    if recipe.optimizer.clipping == "bucket" and exchange.method != "gradients":
        raise UserError(
            f"optimizer.clipping = 'bucket': exchange.method = {exchange.method!r} has a clipping of its own; expected "
            "'global', or exchange.method = 'gradients'"
        )
    wire, reduction = recipe.numerics.wire, recipe.execution.reduction
    if reduction not in ("auto", *REDUCTIONS[wire]):
        raise UserError(
            f"execution.reduction = {reduction!r}: numerics.wire = {wire!r} goes by {REDUCTIONS[wire][0]} alone; "
            "expected auto"
        )
    if exchange.method in _CHECKS:
        _CHECKS[exchange.method](recipe)


def _check_largest_chunks(recipe: Recipe) -> None:
    if recipe.exchange.dense == "auto":
        raise UserError(
            "exchange.dense = 'auto': exchange.method = 'largest_chunks' freezes no second moment whose change could "
            "decide; expected a fraction of each phase's steps"
        )
    wire, reduction = recipe.numerics.wire, recipe.execution.reduction
    if wire == "int8" or reduction == "two_step":
        raise UserError(
            f"numerics.wire = {wire!r}, execution.reduction = {reduction!r}: exchange.method = 'largest_chunks' sums "
            "its chunks by ring; expected float32 or float16, and auto or ring"
        )


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
            "whose small changes a narrow one would round away; expected float32"
        )


def _check_onebit_adam(recipe: Recipe) -> None:
    _check_optimizer(recipe, "adamw")
    _check_staged(recipe)


def _check_onebit_lamb(recipe: Recipe) -> None:
    exchange = recipe.exchange
    _check_optimizer(recipe, "lamb")
    _check_staged(recipe)
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
    """Raise UserError unless phases end, and states are saved, evaluated and compared, at steps where ranks are equal.

    At other steps ranks differ, so that a checkpoint or an evaluation would be of one rank alone.
    """
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


_LOCAL = ("parameters", "mt_dao", "dreamddp")
_SIGNS = ("onebit_adam", "onebit_lamb", "zero_one_adam")
# Settings that are intervals and decide after which steps ranks are equal; with the methods that use each.
_INTERVALS = {
    "interval": ("parameters", "mt_dao", "zero_one_adam"),
    "momentum_interval": ("mt_dao",),
    "second_moment_interval": ("mt_dao",),
    "full_interval": ("dreamddp",),
}
# Each setting of [exchange], with the methods that use it.
_METHODS_OF = _INTERVALS | {
    "interval": (*_LOCAL, "zero_one_adam"),
    "dense": ("largest_chunks", *_SIGNS),
    "error_feedback": ("gradients",),
    "form": _SIGNS,
    "encoding": _SIGNS,
    "variance_updates": ("zero_one_adam",),
    "smallest_ratio": ("onebit_lamb",),
    "largest_ratio": ("onebit_lamb",),
    "fraction": ("largest_chunks",),
    "chunk": ("largest_chunks",),
    "slow_beta": ("mt_dao",),
    "slow_weight": ("mt_dao",),
}
_CHECKS: dict[str, Callable[[Recipe], None]] = {
    "largest_chunks": _check_largest_chunks,
    "parameters": _check_parameters,
    "mt_dao": _check_mt_dao,
    "dreamddp": _check_dreamddp,
    "onebit_adam": _check_onebit_adam,
    "onebit_lamb": _check_onebit_lamb,
    "zero_one_adam": _check_zero_one_adam,
}
