"""Functions that the methods with local updates share: a rank's own update, and averages over ranks.

Each rank updates from its share of the gradient times the number of ranks: that is the gradient of its own rows.
It clips by the norm of that gradient. If the gradient of one rank is not finite, all ranks skip the update, because
otherwise one rank would have made an update less than the others.

Parameters are cut, at rows of tensors, into parts of nearly equal size that are sent in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.exchange.base import Exchange, Gradients, Lookups, Update, UpdateInputs
from bert_horovod.exchange.dense.reducer import whole
from bert_horovod.exchange.updater import Updater
from bert_horovod.optimizers.base import slot_numbers
from bert_horovod.recipe.fields import setting
from bert_horovod.recipe.sections import ExchangeMethod, Recipe, Shape, Stage
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import Clock


class LocalExchange(Exchange):
    """See exchange.base.Exchange; arguments as for GradientExchange. An average makes one all-reduce a bucket."""

    def __init__(self, recipe: Recipe, world: World, state, updater: Updater, plan: BucketPlan) -> None:
        super().__init__(recipe, world, state, updater, plan)
        # Numbers in an average of all parameters and slots.
        self._numbers = numbers(updater.parameters) + sum(map(numbers, state.slots.values()))
        self._agreement = recipe.exchange.agreement
        self._average = tf.function(lambda: average_all(world, updater, state.slots, plan.buckets), autograph=False)

    def update(self, gradients: Gradients, lookups: Lookups, inputs: UpdateInputs, clock: Clock) -> Update:
        return update_alone(self._world, self._updater, gradients, lookups, inputs, clock)

    def ranks_equal_after(self, step: int) -> bool:
        return step % self._agreement == 0

    def bytes_reduced(self, rows: int = 0) -> float:
        return 4 * self._numbers_reduced() if self._world.size > 1 else 0.0

    def _numbers_reduced(self) -> float:
        """Float32 numbers that averages sum over ranks, per step, on average over steps; with several ranks."""
        raise NotImplementedError


def update_alone(
    world: World,
    updater: Updater,
    gradients: Gradients,
    lookups: Lookups,
    inputs: UpdateInputs,
    clock: Clock,
    after: Sequence[tf.Tensor] = (),
    first: Callable[[], None] | None = None,
) -> Update:
    """Update this rank's parameters and slots; called inside a graph, with the arguments of Exchange.update.

    `after`: tensors that must exist before the update. `first`, if given, is called before it, and assigns the values
    from which it starts. The result's gradient_norm is the mean of the ranks' norms.
    """
    gradients = {name: tf.cast(gradient, tf.float32) for name, gradient in whole(gradients, lookups).items()}
    grouped = [group * float(world.size) for group in updater.grouped(gradients)]
    norm = updater.norm(grouped)
    mean_norm = world.all_reduce(tf.stack([norm]), "norms")[0] / world.size
    finite = tf.math.is_finite(mean_norm)
    reduced_s = clock([*after, mean_norm])

    def apply() -> tf.Tensor:
        if first is not None:
            first()
        return clock(updater.apply(grouped, norm, inputs))

    updated_s = tf.cond(finite, apply, lambda: clock([norm]))
    none = tf.zeros([0], tf.float64)
    return Update(finite, {"gradient_norm": mean_norm}, none, none, reduced_s, updated_s)


def average(
    world: World, variables: dict[str, tf.Variable], buckets: list[list[str]], name: str
) -> dict[str, tf.Tensor]:
    """Average float32 variables over ranks and assign the means, which are returned; called inside a graph.

    Each bucket of names is one all-reduce; `name` is the prefix of their names.
    """
    means = {}
    for i, bucket in enumerate(buckets):
        bucket = [
            variable_name for variable_name in bucket if variable_name in variables
        ]  # a slot may lack a parameter
        if not bucket:
            continue
        flat = tf.concat([tf.reshape(variables[variable_name], [-1]) for variable_name in bucket], 0)
        flat = world.all_reduce(flat, f"{name}.{i}") / world.size
        parts = tf.split(flat, [math.prod(variables[variable_name].shape) for variable_name in bucket])
        for variable_name, part in zip(bucket, parts, strict=True):
            means[variable_name] = tf.reshape(part, variables[variable_name].shape)
            variables[variable_name].assign(means[variable_name])
    return {variable_name: means[variable_name] for variable_name in variables}


def average_all(
    world: World, updater: Updater, slots: dict[str, dict[str, tf.Variable]], buckets: list[list[str]]
) -> None:
    """Average parameters and slots over ranks, assign the means, refresh the cast weights; called inside a graph."""
    updater.cast.refresh(average(world, updater.parameters, buckets, "parameters"), narrow=None)
    for slot, variables in slots.items():
        average(world, variables, buckets, f"parameters.{slot}")


def numbers(variables: dict[str, tf.Variable]) -> int:
    """How many numbers the variables hold."""
    return sum(math.prod(variable.shape) for variable in variables.values())


@dataclass(frozen=True)
class LocalSettings(ExchangeMethod):
    """Averages of parameters; in between each rank updates alone."""

    # Steps between two averages of a parameter over ranks. In between each rank updates alone, so the learning rate
    # must be tuned again: on a toy model with interval 8 three times Adam's learning rate was best (loss 3.260 nats;
    # Adam with its own best rate: 3.234), and intervals 4 and 32 made no difference. MT-DAO was published with 32,
    # DreamDDP with 5 to 10
    interval: int = setting(1, minimum=1)

    wires: ClassVar[tuple[str, ...]] = ("float32",)
    why_wires: ClassVar[str] = "sends parameters, whose small changes a narrow one would round away"
    intervals: ClassVar[tuple[str, ...]] = ("interval",)
    overlaps: ClassVar[bool] = False

    @property
    def agreement(self) -> int:
        return self.interval


def local_stage(**sums: float) -> Stage:
    """The one stage of a local method; `sums`: see Stage."""
    return Stage("local", 1.0, "float32", "ring", during_backward=False, **sums)


def slots_a_parameter(recipe: Recipe, shapes: dict[str, Shape]) -> float:
    """Numbers in slots over numbers in parameters, of these shapes."""
    return slot_numbers(recipe, shapes) / sum(map(math.prod, shapes.values()))


Piece = tuple[str, int, int]  # a parameter, its first row, its last row + 1


def cut(shapes: dict[str, tuple[int, ...]], parts: int) -> list[list[Piece]]:
    """Cut parameters, one after another, at rows of tensors, into `parts` parts of nearly equal size (or empty)."""
    total = sum(math.prod(shape) for shape in shapes.values())
    pieces: list[list[Piece]] = [[] for _ in range(parts)]
    place = 0
    for name, shape in shapes.items():
        rows, width = shape[0], math.prod(shape[1:])
        begin = 0
        while begin < rows:
            part = place * parts // total
            # Up to the first row that begins in the next part.
            end = min(rows, begin + -(-((part + 1) * total - place * parts) // (parts * width)))
            pieces[part].append((name, begin, end))
            place += (end - begin) * width
            begin = end
    return pieces


def flat_pieces(variables: dict[str, tf.Variable], pieces: list[Piece], size: int) -> tf.Tensor:
    """The numbers of the pieces, one after another, padded with zeros: float32 [size]."""
    flat = []
    for name, begin, end in pieces:
        variable = variables[name]
        part = begin > 0 or end < variable.shape[0]
        # tf.gather reads no other rows.
        rows = tf.gather(variable, tf.range(begin, end)) if part else variable.read_value()
        flat.append(tf.reshape(rows, [-1]))
    return tf.concat([*flat, tf.zeros([size - sum(rows.shape[0] for rows in flat)])], 0)


def assign_pieces(variables: dict[str, tf.Variable], pieces: list[Piece], flat: tf.Tensor, whole: bool = True) -> None:
    """Assign the numbers of the pieces, one after another; `whole`: assign whole variables, with their other rows.

    After an assignment of rows alone TensorFlow copies the whole variable at each read.
    """
    sizes = [piece_size(tuple(variables[name].shape), *rows) for name, *rows in pieces]
    for (name, begin, end), part in zip(pieces, tf.split(flat, sizes), strict=True):
        variable = variables[name]
        part = tf.reshape(part, [end - begin, *variable.shape[1:]])
        if whole or end - begin == variable.shape[0]:
            variable.assign(tf.concat([variable[:begin], part, variable[end:]], 0))
        else:
            variable.scatter_update(tf.IndexedSlices(part, tf.range(begin, end)))


def piece_size(shape: tuple[int, ...], begin: int, end: int) -> int:
    """How many numbers rows begin to end of a parameter have."""
    return (end - begin) * math.prod(shape[1:])
