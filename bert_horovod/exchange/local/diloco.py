"""Local updates with an outer step (DiLoCo), at once or in fragments that are summed while training goes on.

    x: the common parameters; b = 0: the outer momentum. Both are equal on all ranks
    x_r, m_r, v_r <- rule(x_r, m_r, v_r, n g_r)      every step; rank r trains a copy; g_r is its share of the gradient
    after every exchange.interval steps:
    d   <- mean over r of (x - x_r)                  the pseudo-gradient: the only sum over ranks
    b   <- mu b + d
    x   <- x - eta (d + mu b)                        eta: exchange.outer_rate, mu: exchange.outer_momentum (Nesterov)
    x_r <- x

(Douillard et al. 2023, arXiv 2311.08105.) m_r and v_r stay with their rank: they are never averaged and never reset.
With eta = 1 and mu = 0 the outer step is an average of the parameters. One rank alone makes outer steps too.

With exchange.fragments = P the parameters are cut into P fragments of equal bytes, at rows of tensors. Each has its own
outer steps, interval / P steps after those of the fragment before. With exchange.delay the sum of d begins after the
step that makes it due, and its outer step comes exchange.delay steps later (Douillard et al. 2025, arXiv 2501.18512):

    x_r <- (x_r + x) / 2                             so what was trained meanwhile stays in part

The sum is sent in equal rows, one a step, each in equal shares, one a micro-batch. A share is sent beside forward and
backward of its micro-batch: Horovod does one sum after another, so one long sum would block the small ones of each
step. The sum is hidden if a share takes no longer than a micro-batch.

d is sent in the dtype of numerics.wire. In int8 each rank keeps its rounding errors, and adds them to what it sends of
the same numbers next time; float16 is scaled by a power of two. At the run's last step the fragments that are not due
become the ranks' mean, so that no step's work is lost. If a gradient is not finite on one rank, all ranks skip the
update; the sum on the way goes on.

Only x and b are compared, evaluated and saved as the model. x_r, m_r, v_r, errors and an unfinished sum are saved rank
by rank, so that a run may be saved and resumed after any step. Another number of ranks begins with their means.

Differences from the publications: fragments are of equal bytes, not of whole layers in strides, so that every sum takes
as long; the last step; and all ranks skip a step together.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from typing import ClassVar

from bert_horovod.collectives.world import World
from bert_horovod.costs.buckets import BucketPlan
from bert_horovod.errors import UserError
from bert_horovod.exchange.base import Exchange, Gradients, Lookups, Update, UpdateInputs
from bert_horovod.exchange.dense.reducer import ENCODINGS, wire_scale
from bert_horovod.exchange.local.local_step import Piece, assign_pieces, cut, flat_pieces, piece_size, update_alone
from bert_horovod.exchange.two_step import Errors, TwoStep
from bert_horovod.exchange.updater import Updater
from bert_horovod.model.weights import cast_together
from bert_horovod.recipe.fields import named, setting
from bert_horovod.recipe.sections import ExchangeMethod, Recipe, Shape, Stage, reductions
from bert_horovod.recipe.settings import Phase
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import Clock

_ROW = 4 << 20  # numbers that are sent at once, at most, if there is no delay
_MIXING = 0.5  # with a delay, the weight of a rank's own numbers when an outer step replaces them
_SMALLEST = 2.0**-90  # the largest magnitude of a fragment is taken to be no smaller, so that its scale is finite


class DiLoCoExchange(Exchange):
    """See exchange.base.Exchange; `updater` applies the rule to this rank's copy of `state`, which is common to all."""

    def __init__(self, recipe: Recipe, world: World, state, updater: Updater, plan: BucketPlan) -> None:
        self._settings = settings = recipe.exchange
        plan = dataclasses.replace(plan, reduction=settings.reduction(recipe))
        super().__init__(recipe, world, state, updater, plan)
        self._wire = recipe.numerics.wire
        self._last_step = recipe.total_steps
        (momentum,) = recipe.exchange.slots
        self._common, self._momentum = state.trained, state.slots[momentum]
        self._fragments = cut(self._shapes, settings.fragments)
        largest = max(sum(piece_size(self._shapes[name], *rows) for name, *rows in each) for each in self._fragments)
        self._rows = settings.delay or math.ceil(largest / _ROW)
        self._width = math.ceil(largest / self._rows)  # numbers of a row
        self._shares = 1  # of a row: micro-batches of a step
        shape = (self._rows, self._width)
        # The fragment that is being summed: rows that were sent are means over ranks, the others this rank's own.
        self._numbers = state.own("sum", shape) if settings.delay else tf.Variable(tf.zeros(shape), trainable=False)
        self._errors = None  # of all fragments, row by row
        if self._wire == "int8" and world.size > 1:
            self._errors = state.own("errors", (settings.fragments * self._rows, self._width))
        self._fragment: int | None = None  # the one that is being summed
        self._sent = 0  # rows of it that were sent
        with tf.device("/CPU:0"):
            self._row = tf.Variable(-1, trainable=False)  # the one that this step sends; -1: none
            self._error_row = tf.Variable(0, trainable=False)  # the one of its errors
            self._micro_batch = tf.Variable(0, trainable=False)  # number of the micro-batch in this step
            self._largest = tf.Variable(1.0, trainable=False)  # magnitude in the fragment, over all ranks
        self._begin_sum = tf.function(self._begin_sum_of, autograph=False)
        self._send_row = tf.function(lambda: self._send_share(1), autograph=False)
        self._outer_step = tf.function(self._outer_step_of, autograph=False)

    def begin(self, first: int, last: int) -> None:
        known = self._state.progress.exchange
        if known.get("fragment") is not None:
            self._fragment, self._sent = known["fragment"], known["sent"]
            self._largest.assign(known["largest"])
        self._point_to_row()

    def during_backward(self, micro_batches: int) -> None:
        self._shares = micro_batches
        if self._world.size == 1 or not self._settings.delay:
            return
        tf.cond(self._row >= 0, lambda: self._send_share(micro_batches), lambda: tf.constant(0))
        self._micro_batch.assign((self._micro_batch + 1) % micro_batches)

    def update(self, gradients: Gradients, lookups: Lookups, inputs: UpdateInputs, clock: Clock) -> Update:
        return update_alone(self._world, self._updater, gradients, lookups, inputs, clock)

    def after_step(self, step: int, loss: float) -> str:
        settings = self._settings
        if self._fragment is not None:
            self._sent += 1
            if self._sent == self._rows:
                self._finish(settings.outer_rate, settings.outer_momentum, _MIXING)
        due = (step // settings.period - 1) % settings.fragments if step % settings.period == 0 else None
        if due is not None and settings.delay:
            self._begin(due)
        elif due is not None:
            self._at_once(due, settings.outer_rate, settings.outer_momentum)
        if step == self._last_step:
            for fragment in range(settings.fragments):
                if fragment != due or settings.delay:
                    self._at_once(fragment, 1.0, 0.0)
        self._point_to_row()
        return ""

    def to_progress(self) -> None:
        largest = float(self._largest.numpy())
        self._state.progress.exchange = {"fragment": self._fragment, "sent": self._sent, "largest": largest}

    def bytes_reduced(self, rows: int = 0) -> float:
        if self._world.size == 1:
            return 0.0
        if self.plan.reduction == "two_step":
            share_bytes = ENCODINGS[self._wire].sent_bytes(self._two_step(self._shares).padded)
        else:
            share_bytes = tf.as_dtype(self._wire).size * math.ceil(self._width / self._shares)
        return self._shares_a_step() * share_bytes

    def wire_bytes(self, rows: int = 0) -> float:
        if self._world.size == 1 or self.plan.reduction == "ring":
            return super().wire_bytes(rows)
        return self._shares_a_step() * self._two_step(self._shares).sent_bytes(ENCODINGS[self._wire])

    def _shares_a_step(self) -> float:
        """Shares that are sent in a step, on average over steps."""
        return self._settings.fragments * self._rows * self._shares / self._settings.interval

    def _two_step(self, shares: int) -> TwoStep:
        return TwoStep(self._world, math.ceil(self._width / shares), "fragment")

    def _point_to_row(self) -> None:
        """Let the next step send the next row of the present fragment, if there is one."""
        self._row.assign(-1 if self._fragment is None else self._sent)
        self._error_row.assign((self._fragment or 0) * self._rows + self._sent)

    def _begin(self, fragment: int) -> None:
        """Begin the sum of a fragment."""
        self._fragment, self._sent = fragment, 0
        self._begin_sum(fragment)

    def _at_once(self, fragment: int, rate: float, momentum: float) -> None:
        """Sum a fragment over ranks and make its outer step, after which all ranks hold the common parameters."""
        self._begin(fragment)
        for row in range(self._rows) if self._world.size > 1 else ():
            self._sent = row
            self._point_to_row()
            self._send_row()
        self._finish(rate, momentum, 0.0)

    def _finish(self, rate: float, momentum: float, mixing: float) -> None:
        self._outer_step(self._fragment, *map(tf.constant, (rate, momentum, mixing)))
        self._fragment = None

    def _begin_sum_of(self, fragment: int) -> None:
        """Compute this rank's distance in the fragment: what it is to send."""
        pieces = self._fragments[fragment]
        distance = self._flat(self._common, pieces) - self._flat(self._updater.parameters, pieces)
        self._numbers.assign(tf.reshape(distance, self._numbers.shape))
        if self._wire == "float16" and self._world.size > 1:
            bits = tf.cast(tf.bitcast(tf.reduce_max(tf.abs(distance)), tf.int32), tf.int64)  # in the numbers' order
            bits = self._world.all_reduce_max(bits[None], "largest")[0]
            self._largest.assign(tf.maximum(tf.bitcast(tf.cast(bits, tf.int32), tf.float32), _SMALLEST))

    def _send_share(self, shares: int) -> tf.Tensor:
        """Sum over ranks the share of the present row that belongs to the present micro-batch, one of `shares`."""
        k = self._micro_batch.read_value()
        numbers = self._row_of(self._numbers, self._row, shares)
        if self._errors is None:
            mean = self._mean(numbers[k])
        else:
            two_step, errors = self._two_step(shares), self._row_of(self._errors, self._error_row, shares)
            none = Errors(tf.zeros(two_step.worker_shape), tf.zeros([two_step.part]))
            total, owed = two_step.sum(numbers[k] + errors[k], ENCODINGS["int8"], none)
            mean = total / self._world.size
            self._assign_row(self._errors, self._error_row, errors, k, two_step.by_number(owed))
        self._assign_row(self._numbers, self._row, numbers, k, mean)
        return tf.constant(0)

    def _mean(self, numbers: tf.Tensor) -> tf.Tensor:
        """The mean over ranks of float32 [n], sent in float32 or float16."""
        size = self._world.size
        if self._wire == "float32":
            return self._world.all_reduce(numbers, "fragment") / size
        scale = wire_scale(self._largest) / 2.0 ** math.ceil(math.log2(size))  # the sum is not to overflow either
        if self.plan.reduction == "ring":
            total = self._world.all_reduce(tf.cast(numbers * scale, tf.float16), "fragment")
        else:
            two_step = TwoStep(self._world, numbers.shape[0], "fragment")
            total, _ = two_step.sum(numbers * scale, ENCODINGS["float16"])
        return tf.cast(total, tf.float32) / scale / size

    def _outer_step_of(self, fragment: int, rate: tf.Tensor, momentum: tf.Tensor, mixing: tf.Tensor) -> None:
        """Make the outer step of a fragment whose sum is done; see the head of this file."""
        pieces, own = self._fragments[fragment], self._updater.parameters
        size = sum(piece_size(self._shapes[name], *rows) for name, *rows in pieces)
        distance = tf.reshape(self._numbers, [-1])[:size]
        common, b, trained = (self._flat(each, pieces)[:size] for each in (self._common, self._momentum, own))
        b = momentum * b + distance
        common -= rate * (distance + momentum * b)
        assign_pieces(self._momentum, pieces, b, whole=False)
        assign_pieces(self._common, pieces, common, whole=False)
        assign_pieces(own, pieces, mixing * trained + (1.0 - mixing) * common)  # each step reads these
        changed = cast_together((name for name, _, _ in pieces), own)
        self._updater.cast.refresh({name: tf.convert_to_tensor(own[name]) for name in changed}, narrow=None)

    def _flat(self, variables: dict[str, tf.Variable], pieces: list[Piece]) -> tf.Tensor:
        """The numbers of the pieces, flat, padded with zeros to whole rows."""
        return flat_pieces(variables, pieces, self._rows * self._width)

    def _row_of(self, variable: tf.Variable, row: tf.Variable, shares: int) -> tf.Tensor:
        """A row of float32 [..., width] in equal shares, [shares, n]; zeros pad the last one."""
        share = math.ceil(self._width / shares)
        return tf.reshape(tf.pad(tf.gather(variable, row), [[0, shares * share - self._width]]), [shares, share])

    def _assign_row(
        self, variable: tf.Variable, row: tf.Variable, old: tf.Tensor, k: tf.Tensor, share: tf.Tensor
    ) -> None:
        """Assign share k of a row; `old`: the row, as `_row_of` returns it."""
        new = tf.tensor_scatter_nd_update(old, k[None, None], share[None])
        new = tf.reshape(new, [-1])[: self._width]
        variable.scatter_update(tf.IndexedSlices(new[None], row[None]))


@dataclass(frozen=True)
class DiLoCoSettings(ExchangeMethod):
    """Local updates with any optimizer, and an outer step with the mean of the distances that ranks have moved."""

    method: str = named("diloco")
    code: ClassVar[type] = DiLoCoExchange
    # Steps between two outer steps of a parameter. Published with 30 to 500; ranks train alone in between, so the
    # learning rate must be tuned again
    interval: int = setting(30, minimum=1)
    outer_rate: float = setting(0.7, above=0)  # learning rate of the outer step; 1 without outer_momentum: an average
    # Decay of the outer step's Nesterov momentum. Published with 0.9 for inner adamw
    outer_momentum: float = setting(0.9, minimum=0, below=1)
    # Parts of equal bytes whose outer steps come one after another, each interval / fragments steps after the one
    # before, so that fewer bytes are sent at once
    fragments: int = setting(1, minimum=1)
    # Steps during which a fragment's sum over ranks is sent, while training goes on; its outer step comes after them.
    # 0: at once, and ranks wait for it
    delay: int = setting(0, minimum=0)

    slots: ClassVar[tuple[str, ...]] = ("outer_momentum",)
    overlaps: ClassVar[bool] = False
    for_one_rank: ClassVar[bool] = True
    trains_copies: ClassVar[bool] = True
    price: ClassVar[str] = (
        "ranks train alone between outer steps: learning rates must be found again; BERT-mini, 400 steps in fragments, "
        "interval 30: 0.05 nats behind float32"
    )

    def stages(self, recipe: Recipe, phase: Phase, shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        wire, reduction = recipe.numerics.wire, self.reduction(recipe)
        if not self.delay:
            return [Stage("local", 1.0, wire, reduction, during_backward=False, after=1 / self.interval)]
        sending = self.delay / self.period  # share of steps
        each = 1 / (self.fragments * self.delay)
        return [
            Stage("sending", sending, wire, reduction, during_backward=False, meanwhile=each),
            Stage("alone", 1 - sending, wire, reduction, during_backward=False),
        ]

    @property
    def period(self) -> int:
        """Steps between the outer steps of two fragments."""
        return self.interval // self.fragments

    @property
    def cycle(self) -> int:
        return self.interval

    def kept_numbers(self, recipe: Recipe, shapes: dict[str, Shape]) -> float:
        copies = 1 + 1 / self.fragments + (recipe.numerics.wire == "int8")  # parameters, numbers on the way, errors
        return copies * sum(map(math.prod, shapes.values()))

    def check(self, recipe: Recipe) -> None:
        if self.interval % self.fragments:
            raise UserError(
                f"exchange.fragments = {self.fragments}: their outer steps are spread evenly over exchange.interval = "
                f"{self.interval} steps; expected a divisor of it"
            )
        if self.delay > self.period:
            raise UserError(
                f"exchange.delay = {self.delay}: the next fragment is sent {self.period} steps later "
                f"(exchange.interval = {self.interval} / exchange.fragments = {self.fragments}); expected at most that"
            )

    def reduction(self, recipe: Recipe) -> str:
        """The way to sum: two_step where the recipe allows it, because it rounds narrow numbers twice only."""
        return "two_step" if "two_step" in reductions(recipe) else "ring"

    def sums_by_host(self, reductions: tuple[str, ...]) -> bool:
        return "two_step" in reductions

    @classmethod
    def offered(cls, recipe: Recipe, steps: int) -> Recipe:
        fragments = min(steps, 4)
        return replace(recipe, exchange=cls(interval=steps, fragments=fragments, delay=steps // fragments))
