"""Local updates with hidden averages: each step averages one part of the parameters, while it computes.

With H = exchange.interval the parameters, one after another, are cut into H parts of equal bytes (at a row of a
tensor). In step t, for part t mod H:

    x_r <- (x_1 + ... + x_n) / n              of the values at the start of the step, while forward and backward run
    x_r, m_r, v_r <- rule(x_r, m_r, v_r, n g_r)        from the averaged values; g_r is the gradient at the old values

(DreamDDP, arXiv 2502.11058, averages in place: a layer is averaged after backward has computed its gradient. So it must
search for a cut of layers into steps that exposes the least communication after backward.) Here a copy of the part is
sent. The copy exists when the step starts, so its average may take the whole step with all micro-batches, and every cut
into equal bytes is equally good. The average is hidden if H is at least (time to average all parameters) / (time of a
step). Each micro-batch sends an equal share of the part and waits for it at its own end.

Averages of parts never make ranks equal, and slots are not in them. So after every exchange.full_interval steps all
parameters and slots are averaged at once, and nothing hides that: at these steps the run may be compared, evaluated,
saved, and resumed bit for bit. If an update is not finite on one rank, all ranks skip it and do not assign the
averaged part either.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.errors import UserError
from bert_horovod.exchange.base import Gradients, Lookups, Update, UpdateInputs
from bert_horovod.exchange.link_measurement import measure_link
from bert_horovod.exchange.local.local_step import (
    LocalExchange,
    LocalSettings,
    assign_pieces,
    cut,
    flat_pieces,
    local_stage,
    numbers,
    piece_size,
    slots_a_parameter,
    update_alone,
)
from bert_horovod.exchange.updater import Updater
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import Recipe, Shape, Stage
from bert_horovod.recipe.settings import Phase
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import Clock

_TIMED = 10  # steps of a phase that are timed to judge the interval, after the untimed ones
_UNTIMED = 3  # first steps, which trace and compile
_FULL = 0.9  # if a part's average takes more than this share of a step, it is assumed to have made the step longer


class DreamDdpExchange(LocalExchange):
    """See exchange.local.local_step.LocalExchange. The plan's buckets are for averages of all parameters and slots."""

    def __init__(self, recipe: Recipe, world: World, state, updater: Updater, plan: BucketPlan) -> None:
        super().__init__(recipe, world, state, updater, plan)
        self._interval = recipe.exchange.interval
        self._parts = cut(self._shapes, self._interval)
        self._sizes = [sum(piece_size(self._shapes[name], *rows) for name, *rows in part) for part in self._parts]
        if world.size > 1:
            self._part_values = tf.Variable(tf.zeros([max(self._sizes)]), trainable=False)
            with tf.device("/CPU:0"):
                self._turn = tf.Variable(0, trainable=False)  # number of the part that this step averages
                self._micro_batch = tf.Variable(0, trainable=False)  # number of the micro-batch in this step
        self._all_s = 0.0  # seconds of an average of all parameters
        self._steps, self._since = 0, 0.0  # of the phase, and the time after the untimed ones

    def begin(self, first: int, last: int) -> None:
        if self._world.size > 1:
            self._take_turn(self._state.progress.step + 1)
            link = measure_link(self._world, self._world.all_reduce, tf.float32, 4)
            self._all_s = self._interval * link.seconds(4 * numbers(self._updater.parameters) / self._interval)

    def during_backward(self, micro_batches: int) -> None:
        if self._world.size == 1:
            return
        k, size = self._micro_batch.read_value(), self._part_values.shape[0]
        starting_values = tf.cond(
            tf.equal(k, 0), lambda: self._of_this_turn(self._starting_values), self._part_values.read_value
        )
        share = -(-size // micro_batches)
        begin = tf.minimum(k * share, size)
        end = tf.minimum(begin + share, size)
        mean = self._world.all_reduce(starting_values[begin:end], "average") / self._world.size
        self._part_values.assign(
            tf.ensure_shape(tf.concat([starting_values[:begin], mean, starting_values[end:]], 0), [size])
        )
        self._micro_batch.assign((k + 1) % micro_batches)

    def update(self, gradients: Gradients, lookups: Lookups, inputs: UpdateInputs, clock: Clock) -> Update:
        if self._world.size == 1:
            return update_alone(self._world, self._updater, gradients, lookups, inputs, clock)
        means = self._part_values.read_value()

        def take_part() -> None:
            self._of_this_turn(lambda part: self._assign_part(part, means))

        return update_alone(self._world, self._updater, gradients, lookups, inputs, clock, [means], take_part)

    def after_step(self, step: int, loss: float) -> str:
        if self._world.size == 1:
            return ""
        if self.ranks_equal_after(step):
            self._average()
        self._take_turn(step + 1)
        return self._judge_interval(time.monotonic())

    def _numbers_reduced(self) -> float:
        return max(self._sizes) + self._numbers / self._agreement

    def _take_turn(self, step: int) -> None:
        self._turn.assign((step - 1) % self._interval)

    def _of_this_turn(self, work: Callable[[int], tf.Tensor]) -> tf.Tensor:
        """Call `work` with the number of this step's part, in a graph: tf.switch_case has a branch for each part."""
        return tf.switch_case(self._turn.read_value(), [functools.partial(work, i) for i in range(self._interval)])

    def _starting_values(self, part: int) -> tf.Tensor:
        """The current values of the part, flat, padded with zeros to the size of the largest part."""
        return flat_pieces(self._updater.parameters, self._parts[part], self._part_values.shape[0])

    def _assign_part(self, part: int, means: tf.Tensor) -> tf.Tensor:
        """Assign `means`, in the order of _starting_values; returns a constant, as a branch must return a tensor."""
        assign_pieces(self._updater.parameters, self._parts[part], means[: self._sizes[part]])
        return tf.constant(part)

    def _judge_interval(self, now: float) -> str:
        """Once a phase, a line of the log that says whether steps are long enough to hide a part's average; else ""."""
        self._steps += 1
        if self._steps == _UNTIMED:
            self._since = now
        if self._steps != _UNTIMED + _TIMED:
            return ""
        return judged(self._interval, self._all_s, (now - self._since) / _TIMED)


def judged(interval: int, all_s: float, step_s: float) -> str:
    """Judge the interval by measured times: a line for people."""
    times = f"averaging all parameters takes {all_s:.3g} s in {interval} parts, a step {step_s:.3g} s"
    if all_s / interval > _FULL * step_s:
        return f"warning: {times}: exchange.interval = {interval} is too small to hide it; try {2 * interval}"
    return f"{times}: hidden; the smallest exchange.interval that hides it is {math.ceil(all_s / step_s / _FULL)}"


@dataclass(frozen=True)
class DreamDdpSettings(LocalSettings):
    """Averages of one part of the parameters in each step, while it computes."""

    method: str = named("dreamddp")
    code: ClassVar[type] = DreamDdpExchange
    # Steps between two averages of all parameters and slots at once. Ranks are equal only after such an average, so
    # checkpoints, evaluations and comparisons of ranks must fall on it, and a request to stop waits for it. Backward
    # does not hide it: it takes as long as an average of all parameters, times 1 + the number of slots
    full_interval: int = setting(100, minimum=1)

    intervals: ClassVar[tuple[str, ...]] = ("full_interval",)

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        after = (1 + slots_a_parameter(recipe, shapes)) / self.full_interval
        return [local_stage(meanwhile=1 / self.interval, after=after)]

    @property
    def agreement(self) -> int:
        return self.full_interval

    @property
    def cycle(self) -> int:
        return self.interval

    def kept_numbers(self, recipe: Recipe, shapes: dict[str, Shape]) -> float:
        return sum(map(math.prod, shapes.values())) / self.interval

    def sends_less(self, recipe: Recipe) -> str:
        return ""  # it judges its interval itself, by its own steps

    def check(self, recipe: Recipe) -> None:
        if self.full_interval % self.interval:
            raise UserError(
                f"exchange.full_interval = {self.full_interval}: every parameter is averaged once in exchange.interval "
                f"= {self.interval} steps; expected a multiple of it"
            )
