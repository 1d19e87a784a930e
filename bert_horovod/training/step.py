"""One optimizer step: K micro-batches, one exchange, one update.

A task's losses are sums over a micro-batch divided by *global* counts, so that the gradient does not depend on how a
global batch is split over micro-batches and ranks. The first K - 1 micro-batches only accumulate gradients, in float32;
in the last one each bucket of gradients goes to the exchange as soon as backward has computed it. The sparse embedding
gradients of the earlier micro-batches are added to the dense accumulators; only those of the last one are still sparse.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np

from bert_horovod.collectives.world import World
from bert_horovod.errors import RunError
from bert_horovod.exchange.base import Exchange, Gradients, Lookups, UpdateInputs
from bert_horovod.exchange.updater import norms_of_parts
from bert_horovod.model.forward import ComputePolicy, DropoutState, Forward
from bert_horovod.model.gpu_kernels.call import with_lookups
from bert_horovod.model.gpu_kernels.choice import chosen
from bert_horovod.model.gpu_kernels.programs import try_layers, try_table
from bert_horovod.model.parameters import WORD_EMBEDDINGS
from bert_horovod.model.weights import CastWeights, cast_names, layer_weights, parameter_gradients
from bert_horovod.optimizers.applying import next_loss_scale_on_device
from bert_horovod.recipe.sections import Recipe
from bert_horovod.runs.state import TrainingState
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.devices import has_gpu
from bert_horovod.runtime.xla import Clock, clock, no_clock
from bert_horovod.tasks.base import Task
from bert_horovod.training.micro_batches import Accumulators, FirstPass, needs_first_pass
from bert_horovod.training.step_results import (
    Layout,
    StartedStep,
    StepInputs,
    StepResult,
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
        self.exchange, self._model = exchange, recipe.model
        self.shapes = {name: tuple(variable.shape) for name, variable in state.trained.items()}
        self._trained_weights = cast_names(state.trained)
        self._kernels, self._by_layer = recipe.execution.kernels, recipe.execution.layer_norms
        self._task, self._state, self._cast, self._world = task, state, cast, world
        self._micro_batches, self._policy = micro_batches, compute_policy(recipe)
        self._kernels_tried = self.folds_lookups = False  # build_step sets the second one
        self._accumulators = Accumulators(self.shapes, self._policy.xla == "layers") if micro_batches > 1 else None
        self._sums = tf.Variable(tf.zeros([len(task.sum_names)], tf.float64), trainable=False)
        progress, numerics = state.progress, recipe.numerics
        self._growth_steps = numerics.loss_scale_growth_steps if numerics.precision == "float16" else 0  # 0: no scale
        self._updates, self._loss_scale, self._good_steps = (
            tf.Variable(tf.constant(counter, tf.float32), trainable=False)
            for counter in (progress.updates, progress.loss_scale, progress.good_steps)
        )
        self._keeps_loss_scale = micro_batches == 1 and exchange.divides_by_loss_scale  # else they are added up first
        # By with_times, and whether checksums are asked for; each graph is traced at its first call.
        kinds = list(itertools.product((False, True), repeat=2))
        self._accumulate = {asked: _graph(self._accumulate_micro_batch, *asked) for asked in kinds}
        self._finish = {asked: _graph(self._finish_step, *asked) for asked in kinds}
        two_passes = needs_first_pass(task, world.size, micro_batches)
        self._first_pass = FirstPass(task, world, micro_batches, self._forward) if two_passes else None
        self._replay = tf.function(self._replayed_checksums, autograph=False)
        self.checksum_names: tuple[str, ...] = ()  # of `replay` and of StepResult.checksums, once they are traced
        self._scalars: tuple[str, ...] = ()  # names of the scalars of a step; known once its graph is traced
        self._look = tf.function(self._finite_parts, autograph=False)

    def run(
        self, batches: list[dict[str, np.ndarray]], first_rows: list[int], inputs: StepInputs, with_times: bool = False
    ) -> StepResult:
        """Train on this rank's K micro-batches of a global batch; returns after the step's end."""
        return self.start(batches, first_rows, inputs, with_times).result()

    def start(
        self,
        batches: list[dict[str, np.ndarray]],
        first_rows: list[int],
        inputs: StepInputs,
        with_times: bool = False,
        checked: int | None = None,
    ) -> StartedStep:
        """Enqueue a step as `run` does it; on a GPU the next one may be enqueued before its end.

        `checked`: the number of the micro-batch of whose gradient the result has checksums.
        """
        assert len(batches) == self._micro_batches, f"{len(batches)} micro-batches for a step of {self._micro_batches}"
        if not self._kernels_tried:
            self._try_kernels(*batches[0]["input_ids"].shape)
        spans, checksums = [], None
        sent = [
            together(flat(batch, first_row, inputs) | {"first": np.float32(k == 0)})
            for k, (batch, first_row) in enumerate(zip(batches, first_rows, strict=True))
        ]
        first_pass = self._first_pass.run(sent) if self._first_pass else [{}] * len(sent)
        for k, (arguments, more) in enumerate(zip(sent, first_pass, strict=True)):
            graphs = self._accumulate if k < self._micro_batches - 1 else self._finish
            *outputs, of_gradient, span = graphs[with_times, k == checked](*arguments, more)
            spans.append(span)
            checksums = of_gradient if k == checked else checksums
        return StartedStep(self._task.sum_names, self._scalars, outputs, spans if with_times else None, checksums)

    def replay(self, batch: dict[str, np.ndarray], first_row: int, inputs: StepInputs) -> tf.Tensor:
        """Enqueue forward and backward of a micro-batch; the checksums of its gradient, int64 [checksum_names].

        Nothing is trained. `start` has the same checksums, of the gradient that it trains.
        """
        if not self._kernels_tried:
            self._try_kernels(*batch["input_ids"].shape)
        return self._replay(*together(flat(batch, first_row, inputs)))

    def _replayed_checksums(self, tensor: tf.Tensor, layout: Layout) -> tf.Tensor:
        batch, first_row, inputs, _ = unflat(tensor, layout)
        gradients, lookups, _ = self.forward_backward(batch, first_row, inputs)
        return self._checksums(gradients, lookups)

    def _checksums(self, gradients: Gradients, lookups: Lookups, asked: bool = True) -> tf.Tensor:
        """The checksums of a micro-batch's gradient, int64 [checksum_names]; [0] if they are not asked for."""
        if not asked:
            return tf.zeros([0], tf.int64)
        checksums = gradient_checksums(gradients, lookups)
        self.checksum_names = tuple(checksums)
        return tf.stack(list(checksums.values()))

    def parameters_now(self) -> dict[str, np.ndarray]:
        """A copy of the trained parameters, float32 by name, in the host's memory."""
        return {name: variable.numpy() for name, variable in self._state.trained.items()}

    def set_back(self, parameters: dict[str, np.ndarray], loss_scale: float) -> None:
        """Compute with these parameters, and in float16 this loss scale, from now on: for `replay`."""
        for name, array in parameters.items():
            self._state.trained[name].assign(array)
        self._cast.refresh({name: tf.convert_to_tensor(v) for name, v in self._state.parameters.items()}, None)
        self._loss_scale.assign(loss_scale)

    def _try_kernels(self, rows: int, length: int) -> None:
        """Compile the Triton kernels for this shape, if they are to be used; if that fails, say it and go on without.

        Raises RunError if it fails and execution.kernels is "triton".
        """
        self._kernels_tried = True
        weights = layer_weights(self._cast.values(self._state.parameters), self._model)
        failure = try_layers(self._model, self._policy, weights, rows, length)
        if self.folds_lookups and not failure:
            entries, width = self._state.parameters[WORD_EMBEDDINGS].shape
            failure = try_table(entries, width, rows * length, self._policy.dtype)
        if not failure:
            return
        self.folds_lookups = False
        if self._kernels == "triton":
            raise RunError(f'the Triton kernels failed: {failure}; execution.kernels = "xla" does without them')
        print(
            f"bert-horovod: warning: the Triton kernels failed for sequence length {length} ({failure}); this run goes "
            'on without them, as with execution.kernels = "xla"',
            file=sys.stderr,
            flush=True,
        )

    def forward_backward(
        self,
        batch: dict[str, tf.Tensor],
        first_row: tf.Tensor,
        inputs: StepInputs,
        loss_scale: tf.Tensor | None = None,
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
            sums = self._task.sums(forward, batch | inputs.task)
            loss = self._task.loss(sums, inputs.counts) * scale
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
        return gradients, lookups, tf.cast(tf.stack([sums[name] for name in self._task.sum_names]), tf.float64)

    def _forward(self, first_row: tf.Tensor, inputs: StepInputs) -> Forward:
        """The forward pass of a micro-batch."""
        weights = self._cast.values(self._state.parameters)
        return Forward(self._model, weights, self._policy, DropoutState(inputs.dropout_key, first_row))

    def _scale(self, loss_scale: tf.Tensor | None = None) -> tf.Tensor:
        """The factor of the loss, float32 scalar; the loss scale is the step's own unless another is given.

        In float16, backward has the magnitude of (mean over a micro-batch) * (loss scale).
        """
        if not self._growth_steps:
            return tf.constant(1.0)
        loss_scale = self._loss_scale if loss_scale is None else loss_scale
        return loss_scale * float(self._world.size * self._micro_batches)

    def not_finite(
        self, batches: list[dict[str, np.ndarray]], first_rows: list[int], inputs: StepInputs, loss_scale: float
    ) -> list[tuple[int, list[str]]]:
        """Run forward and backward of a skipped step's micro-batches again, to find values that are not finite.

        `loss_scale`: the step's; 1 without loss scaling. Returns the numbers of the micro-batches with such values,
        each with the names of the parameters that are not finite, or, if all parameters are, of those whose gradients
        are not, in backward's order. The list is empty if only the sum over ranks or its wire overflowed.
        """
        bad = []
        for k, (batch, first_row) in enumerate(zip(batches, first_rows, strict=True)):
            finite = self._look(*together(flat(batch, first_row, inputs) | {"scale": np.float32(loss_scale)}))
            parameters, gradients = (
                [name for name, fine in zip(self.shapes, part.numpy(), strict=True) if not fine] for part in finite
            )
            if parameters or gradients:
                bad.append((k, parameters or gradients[::-1]))
        return bad

    def _finite_parts(self, tensor: tf.Tensor, layout: Layout) -> tuple[tf.Tensor, tf.Tensor]:
        """Whether each parameter and each gradient is finite, bool [parameters]."""
        *arguments, others = unflat(tensor, layout)
        gradients, lookups, _ = self.forward_backward(*arguments, others["scale"])
        parts = {name: [gradient] for name, gradient in gradients.items()}
        for name, part in lookups.items():
            parts[name].append(part.values)

        def finite(tensors: list[tf.Tensor]) -> tf.Tensor:
            return tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors])

        finite_parameters = [finite([tf.convert_to_tensor(variable)]) for variable in self._state.trained.values()]
        return tf.stack(finite_parameters), tf.stack([finite(parts[name]) for name in self.shapes])

    @property
    def traces(self) -> int:
        """Number of traces of the step's graphs so far; it stays the same after a phase's first step."""
        graphs = (*self._accumulate.values(), *self._finish.values())
        return sum(graph.experimental_get_tracing_count() for graph in graphs)

    def _accumulate_micro_batch(
        self, clock: Clock, checked: bool, tensor: tf.Tensor, layout: Layout, first_pass: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Add a micro-batch's gradients to the accumulators; returns `_checksums`, and begin and end, float64 [2]."""
        batch, first_row, inputs, others = unflat(tensor, layout)
        first = others["first"] > 0
        begin = clock([first_row])
        gradients, lookups, sums = self.forward_backward(batch | first_pass, first_row, inputs)
        checksums = self._checksums(gradients, lookups, checked)
        gradients, lookups = self.exchange.clip(gradients, lookups, self._micro_batches)
        added = self._accumulators.add(gradients, lookups, first)
        self._sums.assign_add(sums)
        self.exchange.during_backward(self._micro_batches)
        return checksums, tf.stack([begin, clock(added)])

    def _finish_step(
        self, clock: Clock, checked: bool, tensor: tf.Tensor, layout: Layout, first_pass: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Run the last micro-batch, exchange and update.

        Returns float64 tensors for StartedStep: the task's sums and the scalars that `_scalars` names, the all-reduces'
        begins, their ends; then `_checksums`; and begin and end of the micro-batch.
        """
        batch, first_row, inputs, _ = unflat(tensor, layout)
        begin = clock([first_row])
        gradients, lookups, sums = self.forward_backward(batch | first_pass, first_row, inputs)
        checksums = self._checksums(gradients, lookups, checked)
        gradients, lookups = self.exchange.clip(gradients, lookups, self._micro_batches)
        if self._accumulators is not None:
            gradients = self._accumulators.with_last(gradients)
        # Grappler drops control dependencies on an inlined call's outputs; tf.identity keeps them.
        gradients, lookups = tf.nest.map_structure(tf.identity, (gradients, lookups), expand_composites=True)
        computed = clock([*gradients.values(), *(part.values for part in lookups.values())])
        self.exchange.during_backward(self._micro_batches)
        update_inputs = UpdateInputs(inputs.learning_rate, self._updates + 1, self._scale())
        before = {name: tf.identity(variable) for name, variable in self._state.trained.items() if self._by_layer}
        update = self.exchange.update(gradients, lookups, update_inputs, clock)
        self._count(update.finite)
        sums = self._world.all_reduce(self._sums + sums, "sums")
        with tf.control_dependencies([sums, update.scalars["gradient_norm"]]):
            self._sums.assign(tf.zeros_like(self._sums))
        scalars = {"finite": update.finite, "reduced_s": update.reduced_s, "updated_s": update.updated_s}
        scalars |= update.scalars | self._update_ratios(before)
        self._scalars = tuple(scalars)
        numbers = tf.stack([tf.cast(scalar, tf.float64) for scalar in scalars.values()])
        return tf.concat([sums, numbers], 0), update.ready_s, update.done_s, checksums, tf.stack([begin, computed])

    def _update_ratios(self, before: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """|x' - x| / |x| of each part of the model, where x are the parameters `before` an update, and x' those now."""
        moved = {name: self._state.trained[name] - parameter for name, parameter in before.items()}
        norms, sizes = norms_of_parts(moved), norms_of_parts(before)
        return {f"update_ratio_{part}": tf.math.divide_no_nan(norm, sizes[part]) for part, norm in norms.items()}

    def _count(self, finite: tf.Tensor) -> None:
        """Count this step on the device as Progress.count does on the host."""
        self._updates.assign_add(tf.cast(finite, tf.float32))
        if self._growth_steps:
            scale, good_steps = next_loss_scale_on_device(
                self._loss_scale, self._good_steps, finite, self._growth_steps
            )
            self._loss_scale.assign(scale)
            self._good_steps.assign(good_steps)


def compute_policy(recipe: Recipe) -> ComputePolicy:
    """The recipe's compute policy for this rank's device, which decides "auto" in execution.xla and execution.kernels.

    Raises UserError if execution.kernels is "triton" and the kernels cannot be used.
    """
    precision, xla = recipe.numerics.precision, recipe.execution.xla
    if xla == "auto":
        xla = "layers" if has_gpu() else "elementwise"
    lengths = tuple(phase.sequence_length for phase in recipe.phase)
    kernels = chosen(recipe.execution.kernels, recipe.model, lengths, precision, xla)
    return ComputePolicy(tf.as_dtype(precision), xla, recipe.execution.recompute, kernels)


def _graph(work, with_times: bool, checked: bool):
    """Method `work` of the step as a graph, with a clock or without, and with checksums or without."""
    clock_or_none = clock if with_times else no_clock
    return tf.function(lambda *inputs: work(clock_or_none, checked, *inputs), autograph=False)
