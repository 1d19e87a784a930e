"""One optimizer step: K micro-batches, one exchange, one update.

A task's losses are sums over a micro-batch divided by *global* counts, so that the gradient does not depend on how a
global batch is split over micro-batches and ranks. The first K - 1 micro-batches only accumulate gradients, in float32;
in the last one each bucket of gradients goes to the exchange as soon as backward has computed it. The sparse embedding
gradients of the earlier micro-batches are added to the dense accumulators; only those of the last one are still sparse.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bert_horovod.collectives.world import World
from bert_horovod.exchange.base import Exchange, Gradients, Lookups, UpdateInputs
from bert_horovod.model.forward import DropoutState, Forward
from bert_horovod.model.gpu_kernels.call import width_served, with_lookups
from bert_horovod.model.gpu_kernels.choice import compute_policy
from bert_horovod.model.gpu_kernels.programs import try_kernels
from bert_horovod.model.parameters import WORD_EMBEDDINGS
from bert_horovod.model.weights import CastWeights, cast_names, layer_weights, parameter_gradients
from bert_horovod.optimizers.loss_scale import next_loss_scale_on_device
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.state import TrainingState
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.xla import Clock, clock, no_clock
from bert_horovod.tasks.base import Task
from bert_horovod.training.micro_batches import Accumulators, FirstPass, needs_first_pass
from bert_horovod.training.step_results import (
    Layout,
    Named,
    StartedStep,
    StepInputs,
    as_named,
    flat,
    gradient_checksums,
    together,
    unflat,
)


class TrainStep:
    """The compiled step of one phase, of so many micro-batches per rank.

    It counts updates and keeps the loss scale on the device, as the progress does on the host, which learns only later
    whether a step was skipped. The cast weights follow the state's parameters.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        state: TrainingState,
        exchange: Exchange,
        cast: CastWeights,
        world: World,
        micro_batches: int,
    ) -> None:
        self.task, self.state, self.exchange, self.cast = task, state, exchange, cast
        self.shapes, self._trained_weights = state.shapes, cast_names(state.trained)
        self._model = recipe.model
        self._world, self._micro_batches, self._policy = world, micro_batches, compute_policy(recipe)
        self._kernels, self._kernels_tried = recipe.execution.kernels, False
        # Where looked-up rows are not sent alone, a kernel adds them to the dense gradient of their table.
        served = self._policy.kernels == "triton" and width_served(recipe.model.embedding_width)
        self.folds_lookups = served and exchange.plan.rows is None
        self._accumulators = Accumulators(self.shapes, self._policy.xla == "layers") if micro_batches > 1 else None
        self._sums = tf.Variable(tf.zeros([len(task.sum_names)], tf.float64), trainable=False)
        progress, self._has_loss_scale = state.progress, recipe.numerics.precision == "float16"
        self._updates, self.loss_scale, self._good_steps = (
            tf.Variable(tf.constant(counter, tf.float32), trainable=False)
            for counter in (progress.updates, progress.loss_scale, progress.good_steps)
        )
        self._keeps_loss_scale = micro_batches == 1 and exchange.divides_by_loss_scale  # else they are added up first
        self._graphs: dict[tuple[bool, ...], Callable] = {}  # by the arguments of _graph
        two_passes = needs_first_pass(task, world.size, micro_batches)
        self._first_pass = FirstPass(task, world, micro_batches, self._forward) if two_passes else None

    def start(
        self,
        batches: list[dict[str, np.ndarray]],
        first_rows: list[int],
        inputs: StepInputs,
        with_times: bool = False,
        checked: int | None = None,
    ) -> StartedStep:
        """Enqueue a step on this rank's K micro-batches of a global batch; on a GPU the next may follow before its end.

        `first_rows`: the place of each one's first row in the global batch. `checked`: the number of the micro-batch of
        whose gradient the result has checksums.
        """
        assert len(batches) == self._micro_batches, f"{len(batches)} micro-batches for a step of {self._micro_batches}"
        self.try_kernels(*batches[0]["input_ids"].shape)
        spans, checksums = [], None
        sent = [
            together(flat(batch, first_row, inputs) | {"first": np.float32(k == 0)})
            for k, (batch, first_row) in enumerate(zip(batches, first_rows, strict=True))
        ]
        first_pass = self._first_pass.run(sent) if self._first_pass else [{}] * len(sent)
        for k, (arguments, more) in enumerate(zip(sent, first_pass, strict=True)):
            graph = self._graph(k == self._micro_batches - 1, with_times, k == checked)
            outputs, of_gradient, span = graph(*arguments, more)
            spans.append(span)
            checksums = of_gradient if k == checked else checksums
        return StartedStep(self.task.sum_names, outputs, spans if with_times else None, checksums)

    def _graph(self, last: bool, with_times: bool, checked: bool) -> Callable:
        """The graph of a micro-batch, the `last` or another, with a clock or without, and with checksums or without."""
        kind = (last, with_times, checked)
        if kind not in self._graphs:
            clock_or_none = clock if with_times else no_clock
            self._graphs[kind] = tf.function(
                lambda *sent: self._micro_batch(last, clock_or_none, checked, *sent), autograph=False
            )
        return self._graphs[kind]

    def try_kernels(self, rows: int, length: int) -> None:
        """Compile the Triton kernels for this shape, once, if they are to be used; raises as programs.try_kernels."""
        if self._kernels_tried:
            return
        self._kernels_tried = True
        weights = layer_weights(self.cast.values(self.state.parameters), self._model)
        table = tuple(self.state.parameters[WORD_EMBEDDINGS].shape) if self.folds_lookups else None
        works = try_kernels(self._kernels, self._model, self._policy, weights, table, rows, length)
        self.folds_lookups = self.folds_lookups and works

    def _micro_batch(
        self,
        last: bool,
        clock: Clock,
        checked: bool,
        tensor: tf.Tensor,
        layout: Layout,
        first_pass: dict[str, tf.Tensor],
    ) -> tuple[tuple, Named | None, tf.Tensor]:
        """Forward and backward; then add the gradients to the accumulators or, in the `last`, exchange and update.

        Returns what `_finish` returns, the gradient's checksums, and begin and end of the micro-batch, float64 [2].
        """
        batch, first_row, inputs, others = unflat(tensor, layout)
        begin = clock([first_row])
        gradients, lookups, sums = self.forward_backward(batch | first_pass, first_row, inputs)
        checksums = as_named(gradient_checksums(gradients, lookups), tf.int64) if checked else None
        gradients, lookups = self.exchange.clip(gradients, lookups, self._micro_batches)
        if last:
            outputs, end = self._finish(gradients, lookups, sums, inputs, clock)
            return outputs, checksums, tf.stack([begin, end])
        added = self._accumulators.add(gradients, lookups, others["first"] > 0)
        self._sums.assign_add(sums)
        self.exchange.during_backward(self._micro_batches)
        return (), checksums, tf.stack([begin, clock(added)])

    def forward_backward(
        self, batch: dict[str, tf.Tensor], first_row: tf.Tensor, inputs: StepInputs, loss_scale: tf.Tensor | None = None
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.IndexedSlices], tf.Tensor]:
        """This micro-batch's share of the gradient, as parameter_gradients returns it, and loss sums, float64 [sums].

        With `folds_lookups` the sparse embedding gradients are already added to the dense ones.
        Gradients have the dtype of the computation. In float16 they become float32 and lose the loss scale, which is
        the step's own unless another is given; where the exchange takes it away, those in float16 keep it.
        """
        scale = self._scale(loss_scale)
        forward = self._forward(first_row, inputs)
        trained = {name: forward.weights[name] for name in self._trained_weights}
        with tf.GradientTape() as tape:
            tape.watch(trained)  # the tape records nothing of the layers below: they read no watched weight
            sums = self.task.sums(forward, batch | inputs.task)
            loss = self.task.loss(sums, inputs.counts) * scale
        gradients, lookups = parameter_gradients(tape.gradient(loss, trained), self.shapes)
        if self.folds_lookups:
            dtype = self._policy.dtype
            gradients |= {name: with_lookups(gradients[name], part, dtype) for name, part in lookups.items()}
            lookups = {}
        if self._policy.dtype == tf.float16:
            gradients = {
                name: gradient
                if self._keeps_loss_scale and gradient.dtype == tf.float16 and name not in lookups
                else tf.cast(gradient, tf.float32) / scale
                for name, gradient in gradients.items()
            }
            lookups = {name: tf.IndexedSlices(part.values / scale, part.indices) for name, part in lookups.items()}
        return gradients, lookups, tf.cast(tf.stack([sums[name] for name in self.task.sum_names]), tf.float64)

    def _forward(self, first_row: tf.Tensor, inputs: StepInputs) -> Forward:
        """The forward pass of a micro-batch."""
        weights = self.cast.values(self.state.parameters)
        return Forward(self._model, weights, self._policy, DropoutState(inputs.dropout_key, first_row))

    def _scale(self, loss_scale: tf.Tensor | None = None) -> tf.Tensor:
        """The factor of the loss, float32 scalar; the loss scale is the step's own unless another is given.

        In float16, backward has the magnitude of (mean over a micro-batch) * (loss scale).
        """
        if not self._has_loss_scale:
            return tf.constant(1.0)
        loss_scale = self.loss_scale if loss_scale is None else loss_scale
        return loss_scale * float(self._world.size * self._micro_batches)

    def _finish(
        self, gradients: Gradients, lookups: Lookups, sums: tf.Tensor, inputs: StepInputs, clock: Clock
    ) -> tuple[tuple[Named, tf.Tensor, tf.Tensor], tf.Tensor]:
        """Exchange and update.

        Returns what StartedStep reads, float64: the task's sums and the update's scalars, the all-reduces' begins and
        their ends; and the time at which the gradients existed.
        """
        if self._accumulators is not None:
            gradients = self._accumulators.with_last(gradients)
        # Grappler drops control dependencies on an inlined call's outputs; tf.identity keeps them.
        gradients, lookups = tf.nest.map_structure(tf.identity, (gradients, lookups), expand_composites=True)
        computed = clock([*gradients.values(), *(part.values for part in lookups.values())])
        self.exchange.during_backward(self._micro_batches)
        update_inputs = UpdateInputs(inputs.learning_rate, self._updates + 1, self._scale())
        update = self.exchange.update(gradients, lookups, update_inputs, clock)
        self._count(update.finite)
        sums = self._world.all_reduce(self._sums + sums, "sums")
        with tf.control_dependencies([sums, update.scalars["gradient_norm"]]):
            self._sums.assign(tf.zeros_like(self._sums))
        numbers = dict(zip(self.task.sum_names, tf.unstack(sums), strict=True))
        numbers |= {"finite": update.finite, "reduced_s": update.reduced_s, "updated_s": update.updated_s}
        numbers |= update.scalars
        return (as_named(numbers, tf.float64), update.ready_s, update.done_s), computed

    def _count(self, finite: tf.Tensor) -> None:
        """Count this step on the device as Progress.count does on the host."""
        self._updates.assign_add(tf.cast(finite, tf.float32))
        if self._has_loss_scale:
            scale, good_steps = next_loss_scale_on_device(self.loss_scale, self._good_steps, finite)
            self.loss_scale.assign(scale)
            self._good_steps.assign(good_steps)
