"""Computes an update with a rule: x - sum of rate * direction, in as few passes over memory as the rule allows."""

from __future__ import annotations

import functools
from collections.abc import Callable

from bert_horovod.optimizers.base import Rule
from bert_horovod.recipe.sections import Optimizer
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import has_gpu
from bert_horovod.runtime.xla import compiled

SUMMANDS = 4


def clip_factor(global_norm: tf.Tensor, max_grad_norm: float) -> tf.Tensor:
    """The factor by which clipping multiplies all gradients before the rule: 1 / max(1, global_norm / max_grad_norm).

    `global_norm`: float32 scalar, L2 norm over the gradients of all tensors after averaging; `max_grad_norm` 0: no
    clipping. Float32 scalar in (0, 1]; if the norm is not finite, 0 or not finite: the caller must skip such a step.
    """
    if max_grad_norm == 0:
        return tf.constant(1.0, tf.float32)
    return 1.0 / tf.maximum(1.0, tf.cast(global_norm, tf.float32) / max_grad_norm)


def update(
    rule: Rule,
    x: tf.Tensor,
    g: tf.Tensor,
    slots: dict[str, tf.Tensor],
    t: tf.Tensor,
    learning_rate: tf.Tensor,
    factor: tf.Tensor,
    decay: bool,
    settings: Optimizer,
    narrow: tf.DType,
    xla: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
    """One step of a rule for n tensors of one shape; assigns nothing.

    Args:
        rule: the update rule.
        x: float32 [n, ...]: the parameters.
        g: their averaged gradients, of x's shape and any float dtype.
        slots: float32 [n, ...]: the rule's slots that exist for tensors of this shape.
        t: float32 scalar: 1 at the first update; skipped steps do not count.
        learning_rate: float32 scalar.
        factor: float32 scalar: clipping's factor of g.
        decay: whether weight decay applies to these tensors (model.parameters.decays).
        settings: the recipe's.
        narrow: the dtype that the model computes in.
        xla: compile with XLA the functions that read and write whole tensors.

    Returns:
        The new parameters in float32 and cast to `narrow`, and the new slots.
    """
    if rule.normalized:
        norms = tf.sqrt(square_sums(g, xla)) * factor
        factor = tf.where(norms > 0, factor / (norms + settings.epsilon), factor)
    advance, apply, at_once = (
        compiled(compute_pass) if xla else compute_pass for compute_pass in _passes(rule, settings, decay, narrow)
    )
    factor = _per_tensor(factor, x)
    if not rule.adaptive:
        return at_once(x, g, slots, t, factor, learning_rate)
    new_slots, squares = advance(x, g, slots, t, factor)
    norms = tuple(tf.sqrt(tf.reduce_sum(each, 1)) for each in squares)
    rates = rule.rates(learning_rate, norms, decay, settings)
    rates = tuple(_per_tensor(rate, x) for rate in rates)
    return *apply(x, g, slots | new_slots, t, factor, rates), new_slots


def square_sums(x: tf.Tensor, xla: bool = False) -> tf.Tensor:
    """The sum of squares of each of n tensors [n, ...] of any float dtype: float32 [n]."""
    if not has_gpu():  # on a CPU XLA's loops over more axes are slower
        x = tf.reshape(x, [x.shape[0], x.shape[1:].num_elements()])
    return tf.reduce_sum((compiled(_square_sums) if xla else _square_sums)(x), 1)


def square_sum(tensors: list[tf.Tensor], xla: bool = False) -> tf.Tensor:
    """The sum of squares of all numbers of flat tensors of any float dtype: float32 scalar."""
    squares = (compiled(_all_square_sums) if xla else _all_square_sums)([tensor[None] for tensor in tensors])
    return tf.reduce_sum(tf.stack([tf.reduce_sum(each) for each in squares]))


def _all_square_sums(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    return [_square_sums(tensor) for tensor in tensors]


def _square_sums(x: tf.Tensor) -> tf.Tensor:
    """[n, ...] to [n, m]: each number is a sum of SUMMANDS squares (of 1 if the size has no such divisor).

    On a CPU elementwise sums are as fast as the memory, and XLA's reductions are slower. On a GPU each number is the
    sum of a row, because XLA then adds up in the pass that computes x: no x goes to memory for it.
    """
    if has_gpu():
        return tf.reshape(tf.reduce_sum(tf.square(tf.cast(x, tf.float32)), -1), [x.shape[0], -1])
    n, size = x.shape[0], x.shape[1:].num_elements()
    parts = SUMMANDS if size % SUMMANDS == 0 else 1
    return tf.add_n([tf.square(tf.cast(part, tf.float32)) for part in tf.split(tf.reshape(x, [n, size]), parts, 1)])


def _per_tensor(scalars: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Reshape a scalar, or n scalars, so that they multiply x [n, ...]."""
    return tf.reshape(scalars, [-1] + [1] * (len(x.shape) - 1))


@functools.cache
def _passes(rule: Rule, settings: Optimizer, decay: bool, narrow: tf.DType) -> tuple[Callable, Callable, Callable]:
    """Three functions: `advance` and `apply` for adaptive rules, `at_once` for all others.

    `advance` computes the new slots and the squares for the norms, `apply` the new parameters: two passes over memory.
    `at_once` computes new slots and new parameters in one pass.
    """

    def advance(x, g, slots, t, factor) -> tuple[dict[str, tf.Tensor], tuple[tf.Tensor, ...]]:
        g = tf.cast(g, tf.float32) * factor
        new_slots = rule.next_slots(g, slots, settings)
        directions = rule.directions(x, g, slots | new_slots, t, decay, settings)
        return new_slots, tuple(_square_sums(tensor) for tensor in (x, *directions))

    def apply(x, g, slots, t, factor, rates) -> tuple[tf.Tensor, tf.Tensor]:
        g = tf.cast(g, tf.float32) * factor
        for rate, direction in zip(rates, rule.directions(x, g, slots, t, decay, settings), strict=True):
            x -= rate * direction
        return x, tf.cast(x, narrow)

    def at_once(x, g, slots, t, factor, rate) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
        new_slots = rule.next_slots(tf.cast(g, tf.float32) * factor, slots, settings)
        read = slots if rule.from_old_slots else slots | new_slots
        return *apply(x, g, read, t, factor, rule.rates(rate, (), decay, settings)), new_slots

    return advance, apply, at_once
